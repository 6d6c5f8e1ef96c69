"""Programmatic dependent launch: a kernel begins while the one before it runs, and waits for it where it must.

In a pass over few rows a kernel runs for microseconds, a good part of which is its beginning. GPUs since compute
capability 9.0 let blocks of the next kernel be placed as soon as every block of this one has said so. Kernels that
leave most of a device idle say so at once, and products when they have read their weights. (Fetching weights to the
second-level cache before the wait, line by line or in bulk, made passes on an H100 slower the more was fetched.)

Before its wait a kernel reads nothing but weights, and what was on the device before the first kernel of the pass that
can wait: of the kernels before it, the latest may still be writing. It writes after its wait, so that what any earlier
kernel wrote is complete then, and no longer read.
"""

# pyright: reportOptionalCall=false
# Without the two functions no kernel is told to wait.

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # Triton before 3.4; kernels follow each other as ever there
    gdc_launch_dependents = gdc_wait = None

_SINCE = (9, 0)


def dependent(device: torch.device) -> dict[str, Any]:
    """Options of a launch on `device` of a kernel that calls `wait_for_inputs` and `let_next_begin`."""
    return {"WAITS": True, "launch_pdl": True} if _can_wait(device) else {"WAITS": False}


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
    """Once every block has called this, blocks of the next kernel may be placed."""
    if WAITS:
        gdc_launch_dependents()
