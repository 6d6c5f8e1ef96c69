"""How kernels are compiled: without the GIL, with C's arithmetic errors, and without reference counting.

Numba counts references of every array that one compiled function passes to another, two atomic operations each. Kernels
pass tuples of arrays some hundred thousand times in a pass, and two threads that count the same array wait for each
other: counting took two thirds of the time outside matrix products. Nothing is allocated or freed inside a pass; the
caller owns all arrays and outlives it.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, typeof, types
from numba.core import cgutils

from paceline.models.compiled.disk import InnerCache
from paceline.models.compiled.link_only import LinkOnlyCompiler, is_supported, rebuilt

_ENTRY_OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False, "no_cfunc_wrapper": True}
_INNER = {"no_cpython_wrapper": True, "pipeline_class": LinkOnlyCompiler} if is_supported() else {}

OPTIONS = _ENTRY_OPTIONS | _INNER
"""Options of functions that only compiled code calls; also ``jit_options`` for ``numba.extending.overload``."""


def kernel(function: Callable | None = None, *, forceinline: bool = False) -> Any:
    """Compile a function that only compiled passes call; it must neither allocate arrays nor return them."""
    if function is None:
        return lambda wrapped: kernel(wrapped, forceinline=forceinline)
    return _kept(njit(**OPTIONS, forceinline=forceinline)(function))


def inner(function: Callable) -> Any:
    """As `kernel`, but it may allocate arrays and return them, and raises errors as Python does."""
    options: dict[str, Any] = {"nogil": True, "no_cfunc_wrapper": True} | _INNER
    return _kept(njit(**options)(function))


def _kept(function: Any) -> Any:
    """`function`, which is found on disk again if it was lowered before."""
    if _INNER:
        function._cache = InnerCache(function.py_func, rebuilt)
    return function


def entry(function: Callable) -> Any:
    """Compile a function that Python calls: a whole pass."""
    return njit(**_ENTRY_OPTIONS)(function)


def machine_code(function: Any, *args: object) -> Callable[..., Any]:
    """The compiled form of an entry for arguments of these types, compiled now where it is not yet.

    A call of the entry itself asks for the type of every argument first, which takes 22 microseconds for the hundred
    arrays of a pass, on every thread. The compiled form does not: an array of another item size or rank is a TypeError,
    but other differences from `args` are not noticed.
    """
    return function.compile(tuple(typeof(one) for one in args))


def call_at(context: Any, builder: ir.IRBuilder, arguments: tuple, address: ir.Value, values: list) -> None:
    """In an intrinsic: call the compiled function of these argument types at an address; it returns nothing."""
    kind = context.call_conv.get_function_type(types.none, arguments)
    unused = [cgutils.alloca_once(builder, pointer.pointee) for pointer in kind.args[:2]]  # result and exception
    builder.call(builder.inttoptr(address, kind.as_pointer()), [*unused, *values])
