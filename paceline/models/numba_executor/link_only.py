"""Faster compilation of kernels that only other kernels call: they are optimised and compiled only inside their caller.

Numba optimises every compiled function separately, generates machine code for it, then links its intermediate code into
the caller and repeats this level by level. A pass of a model is a hundred small functions seven levels deep, of which
only the outermost is ever called, so three quarters of the compile time went into unused code. Here the inner functions
stop after lowering; the result of a pass is bitwise the same. Not for functions that Python calls.
"""

# pyright: reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false
# (Numba's code libraries are untyped)

import ctypes
from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

_NOT_CALLABLE = ctypes.cast(ctypes.pythonapi.PyObject_CallNoArgs, ctypes.c_void_p).value or 0


class _LinkOnlyLibrary(JITCodeLibrary):
    """A library that is ready once it is lowered, and is never loaded into the process."""

    @property
    def codegen(self) -> "_Codegen":
        return _Codegen(self._codegen)

    def _optimize_final_module(self) -> None:
        """Left to the caller's library, which is optimised after this one is linked in."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """What Python would call: it has no machine code, so a function that says "object is not callable"."""
        return _NOT_CALLABLE


class _Codegen:
    """Numba's code generator, for a library without machine code: there is no variable to point at an environment."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, env: Any) -> None:
        """Nothing: compiled passes raise no Python errors, and an entry from the disk has no inner ones either."""


class LinkOnlyCompiler(Compiler):
    """For ``njit(pipeline_class=...)``, together with ``no_cpython_wrapper`` and ``no_cfunc_wrapper``."""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *rest: Any) -> None:
        super().__init__(typingctx, targetctx, library or _LinkOnlyLibrary(targetctx.codegen(), "kernel"), *rest)


def is_supported() -> bool:
    """Whether this Numba has the steps that are left out; without them kernels compile the usual way, only slower."""
    steps = ("_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals")
    return all(hasattr(JITCodeLibrary, step) for step in steps)
