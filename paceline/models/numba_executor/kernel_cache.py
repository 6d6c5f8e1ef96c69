"""The compiled pass and race, kept on disk (`models/compiled/disk.py`) until a file of this folder changes."""

from collections.abc import Callable
from functools import cache
from typing import Any

from paceline.models.compiled.disk import keep_on_disk
from paceline.models.numba_executor.forward import forward
from paceline.models.numba_executor.races import race
from paceline.models.numba_executor.sources import kernel_sources


@cache
def compiled_forward() -> Callable[..., Any]:
    """`forward.forward` with the cache attached."""
    return keep_on_disk(forward, kernel_sources())


@cache
def compiled_race() -> Callable[..., Any]:
    """`races.race` with the cache attached."""
    return keep_on_disk(race, kernel_sources())
