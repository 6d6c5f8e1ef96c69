"""Named tuples by reference: a kernel gets a pointer to the tuple and reads the fields that it uses.

Numba passes a tuple by value, every array of it as seven numbers. The tuples of a pass are some 1,500 numbers, and a
call that LLVM does not inline copies all of them: that took 5 % of a pass of a small model, in calls that differed from
one version of LLVM's decisions to the next. `refer` stores a tuple once, in the frame of the entry; `reference.field`
reads from there. A field that is itself a tuple of more than `LOADED_FIELDS` fields is a reference too, a smaller one
is loaded.

A reference is valid until the function that made it returns, and its tuple never changes. Not for Python.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, Generic, TypeVar

import numpy as np
from llvmlite import ir
from numba import typeof, types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.datamodel.registry import register_default
from numba.core.imputils import lower_getattr_generic
from numba.core.registry import cpu_target
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import NativeValue, intrinsic, unbox

T = TypeVar("T", bound=tuple)

LOADED_FIELDS = 8
"""Most fields of a tuple that is loaded as a whole: those that kernels take apart, as `Operand` and `Blocks`."""


class Reference(types.Type):
    """The type of a pointer to a tuple of type `target`, whose fields have names or only places."""

    def __init__(self, target: types.BaseTuple) -> None:
        self.target = target
        super().__init__(name=f"Reference({target.name})")

    def field(self, name: str) -> tuple[int, Any]:
        """Index and type of a field of the tuple."""
        index = self.target.fields.index(name)
        return index, self.target.types[index]


@register_default(Reference)
class _ReferenceModel(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Reference) -> None:
        super().__init__(dmm, fe_type, dmm.lookup(fe_type.target).get_value_type().as_pointer())


def _is_loaded(kind: Any) -> bool:
    return not isinstance(kind, types.BaseNamedTuple) or len(kind.types) <= LOADED_FIELDS


@infer_getattr
class _ReferenceFields(AttributeTemplate):
    key = Reference

    def generic_resolve(self, reference: Reference, name: str) -> Any:
        """The type of a field; None for a name that the tuple lacks, which Numba reports."""
        if name not in getattr(reference.target, "fields", ()):
            return None
        kind = reference.field(name)[1]
        return kind if _is_loaded(kind) else Reference(kind)


@lower_getattr_generic(Reference)
def _read_field(context: Any, builder: ir.IRBuilder, reference: Reference, value: ir.Value, name: str) -> ir.Value:
    index, kind = reference.field(name)
    pointer = cgutils.gep_inbounds(builder, value, 0, index)
    return builder.load(pointer) if _is_loaded(kind) else pointer


def _store_fields(builder: ir.IRBuilder, value: ir.Value, pointer: ir.Value) -> None:
    """Store number by number: LLVM takes long for one store of a large aggregate."""
    kind = value.type
    if not isinstance(kind, (ir.LiteralStructType, ir.ArrayType)):
        builder.store(value, pointer)
        return
    for index in range(len(kind.elements) if isinstance(kind, ir.LiteralStructType) else kind.count):
        _store_fields(builder, builder.extract_value(value, index), cgutils.gep_inbounds(builder, pointer, 0, index))


@intrinsic
def refer(typingctx, value):
    """A reference to a copy of the tuple `value` in the frame of the calling function."""
    if not isinstance(value, types.BaseTuple):
        return None

    def emit(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        pointer = cgutils.alloca_once(builder, args[0].type)
        _store_fields(builder, args[0], pointer)
        return pointer

    return Reference(value)(value), emit


@intrinsic
def stored(typingctx, reference):
    """The tuple that a reference points to."""
    if not isinstance(reference, Reference):
        return None

    def emit(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        return _load_fields(builder, args[0], context.get_value_type(sig.return_type))

    return reference.target(reference), emit


def _load_fields(builder: ir.IRBuilder, pointer: ir.Value, kind: Any) -> ir.Value:
    """What `_store_fields` stored."""
    if not isinstance(kind, (ir.LiteralStructType, ir.ArrayType)):
        return builder.load(pointer)
    value = ir.Constant(kind, ir.Undefined)
    for index in range(len(kind.elements) if isinstance(kind, ir.LiteralStructType) else kind.count):
        field = kind.elements[index] if isinstance(kind, ir.LiteralStructType) else kind.element
        one = _load_fields(builder, cgutils.gep_inbounds(builder, pointer, 0, index), field)
        value = builder.insert_value(value, one, index)
    return value


class Kept(Generic[T]):
    """A named tuple where kernels can read it; it is given to an entry in the tuple's place.

    Args:
        value: a named tuple of arrays, numbers, None and such tuples. A reference is valid as long as this object is.
    """

    __slots__ = ("_memory", "_numba_type_", "address", "value")

    def __init__(self, value: T) -> None:
        self.value = value
        kind = typeof(value)
        self._numba_type_ = Reference(kind)
        self._memory = np.frombuffer(bytearray(struct.pack(_layout(kind), *_numbers(value))), np.uint8)
        self.address = self._memory.ctypes.data


@unbox(Reference)
def _address_of(kind: Reference, kept: ir.Value, c: Any) -> NativeValue:
    """The address that a `Kept` has."""
    number = c.pyapi.object_getattr_string(kept, "address")
    address = c.pyapi.long_as_longlong(number)
    c.pyapi.decref(number)
    return NativeValue(c.builder.inttoptr(address, c.context.get_value_type(kind)), c.pyapi.c_api_error())


@cache
def _layout(kind: Any) -> str:
    """The format, as the module `struct` names it, of a tuple of this type in a kernel's memory."""
    layout = _format(kind)
    size = cpu_target.target_context.get_abi_sizeof(cpu_target.target_context.get_value_type(kind))
    assert struct.calcsize(layout) == size, (layout, size)
    return layout


def _format(kind: Any) -> str:
    """A tuple begins and ends where its widest number may ("0q" and the like are padding)."""
    if isinstance(kind, types.BaseTuple):
        inside = "".join(map(_format, kind.types))
        edge = "0q" if set(inside) & set("qPd") else "0f" if set(inside) & set("fi") else ""
        return edge + inside + edge
    if isinstance(kind, types.Array):
        return "PPqqP" + 2 * kind.ndim * "q"  # as Numba's `ArrayModel`
    if isinstance(kind, types.NoneType):
        return "P"
    return {types.boolean: "?", types.int32: "i", types.int64: "q", types.float32: "f", types.float64: "d"}[kind]


def _numbers(value: Any) -> Iterator[Any]:
    """What `_format` names, one after the other."""
    if isinstance(value, tuple):
        for field in value:
            yield from _numbers(field)
    elif isinstance(value, np.ndarray):
        yield from (0, 0, value.size, value.itemsize, value.ctypes.data, *value.shape, *value.strides)
    else:
        yield 0 if value is None else value
