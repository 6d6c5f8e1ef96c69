"""Programmatic dependent launch: a kernel begins while the one before it runs, and waits for it where it must.

In a pass over few rows a kernel runs for microseconds, a large part of which is launch overhead. From compute
capability 9.0 on, blocks of the next kernel can be scheduled as soon as every block of this one has allowed it. Kernels
that leave most of a device idle allow it at once, and products after reading their weights. (Prefetching weights to the
L2 cache before the wait, line by line or in bulk, made passes on an H100 slower.)

Before its wait a kernel reads only weights and data that was on the device before the pass, because the previous kernel
may still be writing. It writes only after its wait, when all earlier kernels have finished reading and writing.
"""

# pyright: reportOptionalCall=false
# Without the two functions no kernel is launched with waits.

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # Triton before 3.4; kernels follow each other as ever there
    gdc_launch_dependents = gdc_wait = None

IN_TURN: dict[str, Any] = {"WAITS": False}
"""Options of a launch that begins when all work before it has ended, as after a collective of NCCL: whether a graph may
hold a dependent launch right after one is not documented."""
_SINCE = (9, 0)


def dependent(device: torch.device) -> dict[str, Any]:
    """Options of a launch on `device` of a kernel that calls `wait_for_inputs` and `let_next_begin`."""
    return {"WAITS": True, "launch_pdl": True} if _can_wait(device) else IN_TURN


@cache
def _can_wait(device: torch.device) -> bool:
    return device.type == "cuda" and gdc_wait is not None and torch.cuda.get_device_capability(device) >= _SINCE


@triton.jit
def wait_for_inputs(WAITS: tl.constexpr) -> None:
    """Wait for everything that earlier kernels wrote."""
    if WAITS:
        gdc_wait()


@triton.jit
def let_next_begin(WAITS: tl.constexpr) -> None:
    """Allow blocks of the next kernel to be scheduled, once every block of this one has called it."""
    if WAITS:
        gdc_launch_dependents()
