"""A disk cache of compiled functions, so that only the first call ever waits for the compiler.

Numba's own cache checks the source file of the outermost function alone, and would keep stale machine code when a
kernel that it calls changes. It also numbers its files in one shared index, and two processes that compile different
types at the same time can use the same number. Here each compiled signature has a file of its own in Paceline's cache
folder, named by a digest of everything it depends on: the source files given, the function, the argument types, the
processor, and the versions of Numba and Python. A file starts with the checksum of the rest; a damaged file is compiled
again. While one process compiles, others that need the same code wait for it.

A process may load code that several processes compiled, so names of inner functions must be unique across processes
(`_number_anew`).

Functions that only other compiled functions call may be kept too, as they were lowered (`InnerCache`): a pass in
another number format then compiles in two thirds of the time. That is done only while a function is compiled that is
kept itself, so that both depend on the same sources.
"""

# pyright: reportAttributeAccessIssue=false
# (Numba's dispatcher is untyped where its cache is concerned)

import hashlib
import itertools
import os
import pickle
import sys
import tempfile
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from filelock import FileLock, Timeout
from numba.core.bytecode import FunctionIdentity
from numba.core.caching import FunctionCache, NullCache
from numba.core.serialize import dumps

from paceline.models.cache_dir import cache_dir
from paceline.models.cache_use import note_use
from paceline.models.intact import digest_of

Compiled = TypeVar("Compiled")
_FORMAT = 2
"""Version of the file format; increase it to invalidate existing files."""

PATIENCE = 600.0
"""Seconds to wait for another process that compiles the same code, before compiling it here as well."""
_LARGEST_INNER = 1 << 16
"""Most bytes of an inner function that is kept. Larger ones depend on all types of a model: few are found again."""


def _number_anew() -> None:
    """Number compiled functions from a number on that no other process has, a forked one either.

    Numba counts from 1 in every process and distinguishes closures of the same name only by this number. Code that two
    processes compiled for different types could then use one name for two functions, and LLVM, which links the first
    it finds, would silently call the wrong one.
    """
    FunctionIdentity._unique_ids = itertools.count(uuid.uuid4().int >> 80)


_number_anew()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_number_anew)


class _KernelCache(FunctionCache):
    """Numba's cache with a file per compiled signature and a stamp over all kernel sources."""

    def __init__(self, py_func, stamp: str) -> None:
        super().__init__(py_func)
        self._stamp = stamp
        self._locks: dict[Path, FileLock] = {}

    def load_overload(self, sig, target_context) -> Any:
        """The compiled code; None, with the lock taken, where the caller has to compile it."""
        target_context.refresh()
        path = self._path(sig, target_context.codegen())
        found = _read(path)
        if found is None and self._lock(path):
            found = _read(path)  # another process may have written it while this one waited
            if found is not None:
                self._unlock(path)
        return None if found is None else self._impl.rebuild(target_context, found)

    def save_overload(self, sig, data) -> None:
        """Write `data`, the compiled code, to disk and release the lock."""
        path = self._path(sig, data.codegen)
        try:
            if self._impl.check_cachable(data):
                _write(path, dumps(self._impl.reduce(data)))
        finally:
            self._unlock(path)

    def _path(self, sig, codegen) -> Path:
        return _place(self._impl.filename_base, self._stamp, self._index_key(sig, codegen))

    def _lock(self, path: Path) -> bool:
        """Wait for the lock of `path`; False after `PATIENCE` seconds or where the folder cannot be written.

        Where it is False the caller compiles the code without the lock.
        """
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


class _Compiler:
    """The compiler of a kept function, during whose work `stamp` is that of the function."""

    stamp: str | None = None
    """Digest of the sources of the function that is compiled now, under Numba's lock; None for one that is not kept."""

    def __init__(self, compiler: Any, stamp: str) -> None:
        self._compiler, self._own = compiler, stamp

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiler, name)

    def compile(self, args: Any, return_type: Any) -> Any:
        """As the compiler's own."""
        outer, _Compiler.stamp = _Compiler.stamp, self._own
        try:
            return self._compiler.compile(args, return_type)
        finally:
            _Compiler.stamp = outer


class InnerCache(NullCache):
    """Keeps functions that only compiled code calls, without machine code, while a kept function is compiled.

    Args:
        py_func: the function.
        rebuild: maps the target context and what was stored to a compiled function.
    """

    def __init__(self, py_func: Any, rebuild: Callable[..., Any]) -> None:
        self._py_func, self._rebuild = py_func, rebuild

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """What was stored; None where there is nothing."""
        found = _read(self._path(sig, target_context.codegen())) if self._is_kept() else None
        return None if found is None else self._rebuild(target_context, *found)

    def save_overload(self, sig: Any, cres: Any) -> None:
        """Store `cres`, unless it is too large or refers to objects of this process."""
        if not self._is_kept() or cres.library.has_dynamic_globals:
            return
        parts = cres._replace(type_annotation="")._reduce()
        if len(parts[0][1]) <= _LARGEST_INNER:
            _write(self._path(sig, cres.codegen), dumps(parts))

    def _is_kept(self) -> bool:
        """Whether a kept function is compiled, and this one's closure says the same in every process."""
        cells = (cell.cell_contents for cell in self._py_func.__closure__ or ())
        return _Compiler.stamp is not None and all(isinstance(each, int | float | str) for each in cells)

    def _path(self, sig: Any, codegen: Any) -> Path:
        function = self._py_func.__module__, self._py_func.__qualname__
        return _place("inner", _Compiler.stamp, *function, FunctionCache._index_key(cast(Any, self), sig, codegen))


def _place(name: str, *depends: Any) -> Path:
    """The file for code that depends on these objects, by their `repr`, and on the versions of Numba and Python."""
    key = repr((_FORMAT, numba.__version__, sys.version_info[:2], *depends))
    return cache_dir() / "kernels" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:32]}.nbc"


def _read(path: Path) -> Any:
    """The object that `_write` stored, unpickled; None where the file is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    checksum, data = content[:32], content[32:]
    if hashlib.sha256(data).digest() != checksum:
        return None
    note_use(path)
    return pickle.loads(data)


def _write(path: Path, data: bytes) -> None:
    """Write a temporary file and rename it to `path`, so that readers never see a partial file; ignore disk errors."""
    with suppress(OSError):
        descriptor, name = tempfile.mkstemp(dir=path.parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(hashlib.sha256(data).digest() + data)
            os.replace(name, path)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise


def keep_on_disk(function: Compiled, sources: Sequence[Path]) -> Compiled:
    """`function`, made by ``njit``, with its machine code cached on disk until one of the `sources` changes."""
    stamp = digest_of(sources)
    function._cache = _KernelCache(function.py_func, stamp)
    function._compiler = _Compiler(function._compiler, stamp)
    return function
