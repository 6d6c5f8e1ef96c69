"""The compiled pass, kept on disk (`models/kernel_disk.py`) until a file of this folder or below it changes."""

from collections.abc import Callable
from functools import cache
from typing import Any

from paceline.models.kernel_disk import keep_on_disk
from paceline.models.numba_executor.forward import forward
from paceline.models.numba_executor.kernel import kernel_sources


@cache
def compiled_forward() -> Callable[..., Any]:
    """`forward.forward` with the cache attached."""
    return keep_on_disk(forward, kernel_sources())
