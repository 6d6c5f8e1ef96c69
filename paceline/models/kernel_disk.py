"""Compiled functions kept on disk, so that only the first call ever waits for the compiler.

Numba's own cache looks at the file of the outermost function alone and would keep stale machine code when a kernel
beneath it changes; here the stamp covers every file that is named. The entries lie in Paceline's cache folder, keyed by
Numba with its version, the processor and the argument types.
"""

# pyright: reportAttributeAccessIssue=false
# (Numba's dispatcher is untyped where its cache is concerned)

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from numba.core.caching import FunctionCache, IndexDataCacheFile

from paceline.models.cache_dir import cache_dir

Compiled = TypeVar("Compiled")


class _KernelCache(FunctionCache):
    """Numba's cache with another folder and a stamp over all kernel sources."""

    def __init__(self, py_func, stamp: str) -> None:
        super().__init__(py_func)
        folder = cache_dir() / "kernels"
        self._cache_path = str(folder)
        self._cache_file = IndexDataCacheFile(str(folder), self._impl.filename_base, source_stamp=stamp)

    def save_overload(self, sig, data) -> None:
        Path(self._cache_path).mkdir(parents=True, exist_ok=True)
        super().save_overload(sig, data)


def keep_on_disk(function: Compiled, sources: Sequence[Path]) -> Compiled:
    """`function`, made by ``njit``, with its machine code kept until one of the `sources` changes."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    function._cache = _KernelCache(function.py_func, digest.hexdigest())
    return function
