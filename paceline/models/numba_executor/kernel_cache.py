"""Compiled kernels on disk, so that only the first pass ever waits for the compiler.

Numba's own cache looks at the file of the outermost function alone and would keep stale machine code when a kernel
beneath it changes; here the stamp covers every file that is compiled. The entries lie in Paceline's cache folder, keyed
by Numba with its version, the processor and the argument types.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

import hashlib
from functools import cache
from pathlib import Path

from numba.core.caching import FunctionCache, IndexDataCacheFile

from paceline.models.cache_dir import cache_dir
from paceline.models.numba_executor.forward import forward

KERNEL_MODULES = ("vector", "gemm", "attention", "forward", "team")
"""Files whose code ends up in the compiled pass."""


class _KernelCache(FunctionCache):
    """Numba's cache with another folder and a stamp over all kernel sources."""

    def __init__(self, py_func) -> None:
        super().__init__(py_func)
        folder = cache_dir() / "kernels"
        self._cache_path = str(folder)
        self._cache_file = IndexDataCacheFile(str(folder), self._impl.filename_base, source_stamp=_source_stamp())

    def save_overload(self, sig, data) -> None:
        Path(self._cache_path).mkdir(parents=True, exist_ok=True)
        super().save_overload(sig, data)


def _source_stamp() -> str:
    """A hash of every kernel source."""
    digest = hashlib.sha256()
    for name in KERNEL_MODULES:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()


@cache
def compiled_forward():
    """`forward.forward` with the cache attached."""
    forward._cache = _KernelCache(forward.py_func)
    return forward


def is_compiled() -> bool:
    """Whether machine code for some model is on disk already (the first pass compiles otherwise)."""
    return compiled_forward()._cache._cache_file._load_index() != {}
