"""Triton's interpreter, which does once what it would do for every step of a kernel.

It replaces what kernels find in Triton's language before each kernel, and again before each function that a kernel
calls, for which it looks through the whole language. It makes the types of all blocks of numbers anew for each sum and
product, compares their shapes size by size, and computes those of integers once more in 64 bits, to see whether they
overflow, which none of a test does. All that took over three quarters of the time of the tests of kernels. Before each
sum and comparison it asks a dozen questions about the types of the two operands. That took over half of what was left:
where both are of one type, or one is a number of Python, NumPy's result is the interpreter's.
"""

import math
import operator
from dataclasses import replace

import numpy as np
from triton import language
from triton.runtime import interpreter

_replace, _dtype_of, _make_type = interpreter._patch_lang, interpreter._get_np_dtype, language.block_type.__init__
_unwrap, _equal = language.core._unwrap_if_constexpr, language.dtype.__eq__
_done, _types, _stretched_types = set(), {}, {}
_SUMS, _COMPARISONS, _OF_BITS = ("add", "sub", "mul"), ("lt", "le", "gt", "ge", "eq", "ne"), ("and_", "or_")
_UNWRAPPED = {language.tensor, int, str, bool, type(None), language.dtype}
_WHOLE = id(language.int32), id(language.int64)


def keep_what_stays():
    """Let the interpreter do so in this process, in which nothing is compiled."""
    interpreter._patch_lang = _replace_once
    interpreter._get_np_dtype = _known_dtype
    language.block_type.__init__ = _known_type
    language.tensor.__init__ = _tensor
    language.core._unwrap_if_constexpr = lambda one: one if type(one) in _UNWRAPPED else _unwrap(one)
    language.dtype.__eq__ = lambda self, other: self is other or _equal(self, other)
    interpreter.TensorHandle.__post_init__ = lambda self: None  # it compares sizes
    language.semantic.TritonSemantic.broadcast_impl_value = _broadcast
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)


def _replace_once(function):
    """As `_replace` for all functions of a module; nothing is put back."""
    module = function.__globals__["__name__"]
    if module not in _done:
        _done.add(module)
        _replace(function)
        if len(_done) == 1:
            _shorten_operators()
    return interpreter._LangPatchScope()


def _known_dtype(kind) -> np.dtype:
    """NumPy's type for one of Triton's, which keeps it."""
    if (found := kind.__dict__.get("numpy")) is None:
        found = kind.numpy = _dtype_of(kind)
    return found


def _known_type(self, element_ty, shape):
    """The type of a block; those of one shape with elements of one type have all they know in common."""
    key = id(element_ty), *[size.value if type(size) is language.constexpr else size for size in shape]
    if (known := _types.get(key)) is None:
        _make_type(self, element_ty, shape)
        self.sizes = key[1:]
        _types[key] = self.__dict__  # with the element's type in it, whose id stays taken so
    else:
        self.__dict__ = known


def _tensor(self, handle, type):
    """A block of numbers, or one; its type keeps the constants that describe it."""
    if (known := type.__dict__.get("of_tensors")) is None:
        shape = type.shape if type.is_block() else ()
        sizes = language.tuple([language.constexpr(size) for size in shape])
        known = type.of_tensors = language.constexpr(math.prod(shape)), type.scalar, sizes
    self.handle, self.type = handle, type
    self.numel, self.dtype, self.shape = known


def _broadcast(self, left, right):
    """Two blocks, or numbers, as blocks of one shape, by the rules of NumPy, which are Triton's."""
    sizes, others = left.type.__dict__.get("sizes", ()), right.type.__dict__.get("sizes", ())
    if sizes == others:
        return left, right
    shape = np.broadcast_shapes(sizes, others)
    return _stretched(left, sizes, shape), _stretched(right, others, shape)


def _stretched(block, sizes, shape):
    if sizes == shape:
        return block
    key = id(element := block.type.scalar), shape
    if (kind := _stretched_types.get(key)) is None:
        kind = _stretched_types[key] = language.block_type(element, list(shape))
    numbers = block.handle.data
    numbers = np.broadcast_to(numbers, shape) if sizes else np.full(shape, numbers, numbers.dtype)
    return language.tensor(interpreter.TensorHandle(numbers, block.handle.dtype.scalar), kind)


def _shorten_operators():
    """Let NumPy compute what it computes as the interpreter does, once the interpreter has put in its operators."""
    for name in (*_SUMS, *_COMPARISONS, *_OF_BITS):
        _shorten(name)
    language.tensor.__radd__, language.tensor.__rmul__ = language.tensor.__add__, language.tensor.__mul__


def _shorten(name):
    """Make an operator short for operands of one type, whole numbers, numbers of Python, and a pointer's offset."""
    tensor, method, compute = language.tensor, f"__{name.rstrip('_')}__", getattr(operator, name)
    slow, result = getattr(tensor, method), language.int1 if name in _COMPARISONS else None

    def operate(self, other):
        kind, value = self.dtype, other.value if type(other) is language.constexpr else other
        numbers, is_block = self.handle.data, "sizes" in self.type.__dict__
        is_pointer = type(kind) is language.pointer_type
        if type(value) is tensor:
            others, other_kind = value.handle.data, value.dtype
            is_block = is_block or "sizes" in value.type.__dict__
            if is_pointer and name == "add" and other_kind.is_int():
                others = _bytes_of(kind) * others.astype(np.uint64)
            elif id(kind) in _WHOLE and id(other_kind) in _WHOLE:
                kind = kind if kind is other_kind else language.int64
            elif other_kind is not kind or (kind.is_floating() if name in _OF_BITS else kind is language.int1):
                return slow(self, other)
        elif type(value) is int and is_pointer and name in ("add", "sub") and value >= 0:
            others = _bytes_of(kind) * value
        elif (type(value) is int and id(kind) in _WHOLE) or (type(value) is float and kind is language.float32):
            others = value
        else:
            return slow(self, other)
        numbers, kind = compute(numbers, others), result or kind
        whole = language.block_type(kind, list(numbers.shape)) if is_block else kind
        return tensor(interpreter.TensorHandle(numbers, kind), whole)

    setattr(tensor, method, operate)


def _bytes_of(pointer) -> int:
    return max(1, pointer.element_ty.primitive_bitwidth // 8)
