"""Triton's interpreter, which does once what it would do for every step of a kernel.

It replaces what kernels find in Triton's language before each kernel, and again before each function that a kernel
calls, for which it looks through the whole language. It makes the types of all blocks of numbers anew for each sum and
product, compares their shapes size by size, and computes those of integers once more in 64 bits, to see whether they
overflow, which none of a test does. All that took over three quarters of the time of the tests of kernels.
"""

import math
from dataclasses import replace

import numpy as np
from triton import language
from triton.runtime import interpreter

_replace, _dtype_of, _make_type = interpreter._patch_lang, interpreter._get_np_dtype, language.block_type.__init__
_done, _types, _stretched_types = set(), {}, {}


def keep_what_stays():
    """Let the interpreter do so in this process, in which nothing is compiled."""
    interpreter._patch_lang = _replace_once
    interpreter._get_np_dtype = _known_dtype
    language.block_type.__init__ = _known_type
    language.tensor.__init__ = _tensor
    language.semantic.TritonSemantic.broadcast_impl_value = _broadcast
    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)


def _replace_once(function):
    """As `_replace` for all functions of a module; nothing is put back."""
    module = function.__globals__["__name__"]
    if module not in _done:
        _done.add(module)
        _replace(function)
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
