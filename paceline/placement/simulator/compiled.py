"""The simulator's kernels with their machine code kept on disk."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from paceline.models.compiled.disk import keep_on_disk
from paceline.placement.simulator import batched, kernel


@cache
def compiled_run() -> Callable[..., Any]:
    """`kernel.run`."""
    return keep_on_disk(kernel.run, [Path(kernel.__file__)])


@cache
def compiled_run_batched() -> Callable[..., Any]:
    """`batched.run_batched`."""
    return keep_on_disk(batched.run_batched, [Path(batched.__file__)])
