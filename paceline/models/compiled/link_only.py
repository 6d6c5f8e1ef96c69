"""Faster compilation of kernels that only other kernels call: they are optimised and compiled only inside their caller.

Numba optimises every compiled function separately, generates machine code for it, then links its intermediate code into
the caller and repeats this level by level. A pass of a model is a hundred small functions seven levels deep, of which
only the outermost is ever called, so three quarters of the compile time went into unused code. Here the inner functions
stop after lowering; the result of a pass is bitwise the same. They are kept on disk as they were lowered
(`disk.InnerCache`). Not for functions that Python calls.
"""

# pyright: reportAttributeAccessIssue=false, reportIncompatibleMethodOverride=false
# (Numba's code libraries are untyped)

import ctypes
from typing import Any

import llvmlite.binding as llvm
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult

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

    def serialize_using_object_code(self) -> tuple[str, bytes]:
        """Its name and LLVM code, which Numba asks for by this name."""
        self._ensure_finalized()
        return self.name, self._final_module.as_bitcode()

    @classmethod
    def read(cls, codegen: Any, stored: tuple[str, bytes]) -> "_LinkOnlyLibrary":
        """The library that was stored so."""
        name, code = stored
        library = cls(codegen, name)
        library._final_module = llvm.parse_bitcode(code)
        library._finalize_final_module()
        return library


class _Codegen:
    """Numba's code generator, for a library without machine code: there is no variable to point at an environment."""

    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, env: Any) -> None:
        """Nothing: compiled passes raise no Python errors, and an entry from the disk has no inner ones either."""

    def unserialize_library(self, stored: tuple[str, bytes]) -> _LinkOnlyLibrary:
        """See `_LinkOnlyLibrary.read`."""
        return _LinkOnlyLibrary.read(self._codegen, stored)


class _Context:
    """Numba's target context, for functions without machine code."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def codegen(self) -> _Codegen:
        return _Codegen(self._context.codegen())


def rebuilt(context: Any, *stored: Any) -> CompileResult:
    """The inner function that `disk.InnerCache` stored."""
    return CompileResult._rebuild(_Context(context), *stored)._replace(target_context=context)


class LinkOnlyCompiler(Compiler):
    """For ``njit(pipeline_class=...)``, together with ``no_cpython_wrapper`` and ``no_cfunc_wrapper``."""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *rest: Any) -> None:
        super().__init__(typingctx, targetctx, library or _LinkOnlyLibrary(targetctx.codegen(), "kernel"), *rest)


def is_supported() -> bool:
    """Whether this Numba has the steps that are left out; without them kernels compile the usual way, only slower."""
    steps = ("_optimize_final_module", "_finalize_final_module", "_finalize_dynamic_globals")
    return all(hasattr(JITCodeLibrary, step) for step in steps)
