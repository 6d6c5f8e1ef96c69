"""Compiled functions kept on disk, so that only the first call ever waits for the compiler.

Numba's own cache looks at the file of the outermost function alone and would keep stale machine code when a kernel
beneath it changes. It also numbers its files in one shared index, and two processes that compile for different types at
the same time can write under the same number. Here each piece of machine code has a file of its own in Paceline's
cache folder, named by a digest of all that it was made from: the sources that are named, the function, the argument
types, the processor, and the versions of Numba and Python. A file starts with the checksum of the rest; a damaged one
is made again. While one process compiles, others that want the same code wait for it.

Machine code of several processes meets in one, so names of inner functions must differ between processes (`_NAMES`).
"""

# pyright: reportAttributeAccessIssue=false
# (Numba's dispatcher is untyped where its cache is concerned)

import hashlib
import itertools
import os
import pickle
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numba
from filelock import FileLock, Timeout
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import FunctionCache
from numba.core.serialize import dumps

from paceline.models.cache_dir import cache_dir

Compiled = TypeVar("Compiled")
_NAMES = uuid.uuid4().int >> 80
"""Where this process starts to count compiled functions. Numba starts at 1 in every process and tells closures of one
name apart by this number alone. Code that two processes compiled for different types can then hold one name for two
functions, and LLVM, which links the first it finds, would call the wrong one: silently, with wrong numbers."""
FunctionIdentity._unique_ids = itertools.count(_NAMES)

_FORMAT = 1
"""Raise it when files that are there must no longer be read."""

PATIENCE = 600.0
"""Seconds to wait for another process that compiles the same code, before compiling it here as well."""


class _KernelCache(FunctionCache):
    """Numba's cache with a file per compiled signature and a stamp over all kernel sources."""

    def __init__(self, py_func, stamp: str) -> None:
        super().__init__(py_func)
        self._stamp = stamp
        self._locks: dict[Path, FileLock] = {}

    def load_overload(self, sig, target_context) -> Any:
        """The compiled code; None, with the lock taken, where the caller is the one who compiles it."""
        target_context.refresh()
        path = self._path(sig, target_context.codegen())
        found = _read(path)
        if found is None and self._lock(path):
            found = _read(path)  # another process may have written it while this one waited
            if found is not None:
                self._unlock(path)
        return None if found is None else self._impl.rebuild(target_context, found)

    def save_overload(self, sig, data) -> None:
        """Keep `data`, the compiled code, and let others read it."""
        path = self._path(sig, data.codegen)
        try:
            if self._impl.check_cachable(data):
                _write(path, dumps(self._impl.reduce(data)))
        finally:
            self._unlock(path)

    def _path(self, sig, codegen) -> Path:
        key = repr((_FORMAT, self._stamp, numba.__version__, self._index_key(sig, codegen)))
        digest = hashlib.sha256(key.encode()).hexdigest()[:32]
        return cache_dir() / "kernels" / f"{self._impl.filename_base}-{digest}.nbc"

    def _lock(self, path: Path) -> bool:
        """Whether this process may write `path`; also after `PATIENCE`, or where the folder takes no lock."""
        lock = self._locks.setdefault(path, FileLock(path.with_suffix(".lock")))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not lock.is_locked:
                lock.acquire(timeout=PATIENCE)
        except (OSError, Timeout):
            return False
        return True

    def _unlock(self, path: Path) -> None:
        if lock := self._locks.pop(path, None):
            lock.release()


def _read(path: Path) -> Any:
    """What `_write` was given, unpickled; None where nothing whole lies there."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    checksum, data = content[:32], content[32:]
    return pickle.loads(data) if hashlib.sha256(data).digest() == checksum else None


def _write(path: Path, data: bytes) -> None:
    """Write beside `path` and rename, so that no reader ever sees half of it. A full disk costs the cache, no more."""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(data).digest() + data)
        os.replace(file.name, path)
    except OSError:
        pass


def keep_on_disk(function: Compiled, sources: Sequence[Path]) -> Compiled:
    """`function`, made by ``njit``, with its machine code kept until one of the `sources` changes."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    function._cache = _KernelCache(function.py_func, digest.hexdigest())
    return function
