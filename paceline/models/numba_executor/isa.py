"""Features of the processor that code is generated for. Not for the code that uses them (`dot8.py`, `vector.py`)."""

import platform
from typing import Any


def has_feature(context: Any, feature: str) -> bool:
    """Whether code is being generated for a processor with `feature`, by LLVM's name for it."""
    codegen = context.codegen()
    if f"+{feature}" in codegen._get_host_cpu_features().split(","):
        return True
    return feature in _implied(platform.machine(), codegen._get_host_cpu_name())


def _implied(machine: str, processor: str) -> frozenset[str]:
    """Features that LLVM does not list where it knows the processor by name only: Arm's, and Apple's from the M1 on."""
    if machine.lower() not in ("arm64", "aarch64"):
        return frozenset()
    apple = ("dotprod",) if processor == "apple-m1" else ("dotprod", "i8mm") if processor.startswith("apple-m") else ()
    return frozenset({"neon", *apple})


def reads_past_second_cache(context: Any) -> bool:
    """Whether a prefetch into the first cache alone is the faster one for what is read once: measured on AMD's Zen 5.

    Intel's processors keep such lines in one way of the first cache, where those that are asked for far ahead are lost
    before they are used: on a Xeon with AMX a pass over one row took 2.7 to 4 times as long with it.
    """
    return context.codegen()._get_host_cpu_name() == "znver5"


def sums_in_registers(context: Any) -> int:
    """Most sums of sixteen lanes in one loop: three quarters of the registers, as the others hold factors.

    The registers hold 32 such vectors (32 of 64 bytes) or 8 (32 of 16 bytes, or 16 of 32).
    """
    return 24 if has_feature(context, "avx512f") else 6
