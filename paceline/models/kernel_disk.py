"""Compiled functions kept on disk, so that only the first call ever waits for the compiler.

Numba's own cache looks at the file of the outermost function alone and would keep stale machine code when a kernel
beneath it changes; here the stamp covers every file that is named. The entries lie in Paceline's cache folder, keyed by
Numba with its version, the processor and the argument types. Every file begins with a checksum of the rest: what is
damaged counts as missing and is compiled again.
"""

# pyright: reportAttributeAccessIssue=false
# (Numba's dispatcher is untyped where its cache is concerned)

import hashlib
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from numba.core.caching import FunctionCache, IndexDataCacheFile

from paceline.models.cache_dir import cache_dir

Compiled = TypeVar("Compiled")


_DIGEST_BYTES = 32


class _CheckedFiles(IndexDataCacheFile):
    """Numba's pair of index and machine code, each after its checksum."""

    def _load_index(self) -> dict:
        try:
            version, stamp, overloads = self._load_data(self._index_name)
        except OSError:
            return {}
        return overloads if (version, stamp) == (self._version, self._source_stamp) else {}

    def _save_index(self, overloads: dict) -> None:
        self._save_data(self._index_name, (self._version, self._source_stamp, overloads))

    def _load_data(self, name: str) -> Any:
        data = Path(self._data_path(name)).read_bytes()
        digest, rest = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
        if hashlib.sha256(rest).digest() != digest:
            raise OSError(f"{name} is damaged")  # Numba takes it as a file that was removed
        return pickle.loads(rest)

    def _save_data(self, name: str, data: Any) -> None:
        rest = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(rest).digest() + rest)


class _KernelCache(FunctionCache):
    """Numba's cache with another folder and a stamp over all kernel sources."""

    def __init__(self, py_func, stamp: str) -> None:
        super().__init__(py_func)
        folder = cache_dir() / "kernels"
        self._cache_path = str(folder)
        self._cache_file = _CheckedFiles(str(folder), self._impl.filename_base, source_stamp=stamp)

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
