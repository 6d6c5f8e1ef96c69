"""The compiled pass, kept on disk (`models/kernel_disk.py`) until a file of this folder changes.

Of the whole folder, though not every file is compiled: a list of those that are would be forgotten.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from paceline.models.kernel_disk import keep_on_disk
from paceline.models.numba_executor.forward import forward


@cache
def compiled_forward() -> Callable[..., Any]:
    """`forward.forward` with the cache attached."""
    return keep_on_disk(forward, sorted(Path(__file__).parent.glob("*.py")))
