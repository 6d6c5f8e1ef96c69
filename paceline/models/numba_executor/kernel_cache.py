"""The compiled pass, kept on disk (`models/kernel_disk.py`) until one of its kernels changes."""

from functools import cache
from pathlib import Path

from paceline.models.kernel_disk import keep_on_disk
from paceline.models.numba_executor.forward import forward

KERNEL_MODULES = (
    "vector", "dot8", "operand", "tile", "gemm", "attention", "attend", "linear", "experts", "forward", "team",
)  # fmt: skip
"""Files whose code ends up in the compiled pass."""


@cache
def compiled_forward():
    """`forward.forward` with the cache attached."""
    return keep_on_disk(forward, [Path(__file__).with_name(f"{name}.py") for name in KERNEL_MODULES])
