"""Sixteen integer dot products of four bytes each: one vector instruction on processors with VNNI.

Weights are unsigned bytes and activations signed ones, as ``vpdpbusd`` and Arm's ``usdot`` require. Sums are integers,
so every form of the product, and every order, gives the same result. Not for scales or matrices (`gemm.py`).
"""

# pyright: reportCallIssue=false, reportAssignmentType=false, reportArgumentType=false, reportReturnType=false
# (llvmlite is untyped)

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from paceline.models.numba_executor import isa
from paceline.models.numba_executor import vector as v

BYTES = 4
"""Products in one sum: bytes in a 32-bit lane."""

LARGEST_IN_SHORTS = 127
"""Two products of such a weight with a code of -128 fit into 16 bits; it is a signed byte as well."""

_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
SUMS_IR = ir.VectorType(_I32, v.LANES)
_SHORTS_IR = ir.VectorType(ir.IntType(16), 2 * v.LANES)
_HALF_SUMS = ir.VectorType(_I32, v.LANES // 2)
_HALF_SHORTS = ir.VectorType(ir.IntType(16), v.LANES)
_HALF_BYTES = ir.VectorType(ir.IntType(8), 2 * v.LANES)

LARGEST_CODE = 127
"""Of an activation, and of what a weight of 0 to 255 less 128 is multiplied with."""
_SHORT_MAX = 2**15 - 1


def choose_dot(context: Any, largest: int = 255) -> Callable[..., ir.Value]:
    """The fastest of the forms below that the processor has, for weights of at most `largest`."""
    if isa.has_feature(context, "i8mm"):
        return dot_mixed
    if isa.has_feature(context, "dotprod"):
        return dot_signed if largest <= LARGEST_IN_SHORTS else dot_offset
    if isa.has_feature(context, "avx512vnni"):
        return dot_512
    if isa.has_feature(context, "avxvnni"):
        return dot_256
    return dot_anywhere


def dot_512(builder: ir.IRBuilder, sums: ir.Value, weights: ir.Value, activations: ir.Value) -> ir.Value:
    """sums + the sums of four products each, [16] of 32 bits; `weights` are unsigned bytes, `activations` signed."""
    return v.call(builder, "llvm.x86.avx512.vpdpbusd.512", SUMS_IR, [sums, weights, activations])


def dot_256(builder: ir.IRBuilder, sums: ir.Value, weights: ir.Value, activations: ir.Value) -> ir.Value:
    """`dot_512` in two halves."""
    half, eight = ir.VectorType(_I32, v.LANES // 2), range(v.LANES // 2)
    parts = []
    for first in (0, v.LANES // 2):
        lanes = ir.Constant(half, [first + i for i in eight])
        args = [builder.shuffle_vector(x, x, lanes) for x in (sums, weights, activations)]
        parts.append(v.call(builder, "llvm.x86.avx512.vpdpbusd.256", half, args))
    return builder.shuffle_vector(*parts, ir.Constant(SUMS_IR, list(range(v.LANES))))


def adds_shorts(context: Any) -> bool:
    """Whether `row_sums` is the fastest method: with AVX2, but no instruction for dot products of bytes."""
    return isa.has_feature(context, "avx2") and choose_dot(context) is dot_anywhere


def row_sums(builder: ir.IRBuilder, start: ir.Value | None, weights: list[ir.Value], activations: list[ir.Value],
             largest: int) -> ir.Value:  # fmt: skip
    """start + what `dot_512` adds for pairs of `weights` of at most `largest` and `activations` of at most 127.

    Products are added in 16 bits for as many pairs as cannot overflow. Without a `start` weights are signed
    (`less_128`); then their magnitude is multiplied by the activation with the weight's sign applied.
    """
    ones = ir.Constant(_HALF_SHORTS, [1] * v.LANES)
    at_once = max(1, _SHORT_MAX // (2 * min(largest, LARGEST_CODE + 1) * LARGEST_CODE))
    parts = []
    for half in range(2):
        total = None if start is None else _half(builder, start, half)
        for first in range(0, len(weights), at_once):
            shorts = None
            for w, x in zip(weights[first : first + at_once], activations[first : first + at_once], strict=True):
                w, x = (builder.bitcast(_half(builder, one, half), _HALF_BYTES) for one in (w, x))
                if start is None:
                    x = v.call(builder, "llvm.x86.avx2.psign.b", _HALF_BYTES, [x, w])
                    w = v.call(builder, "llvm.abs.v32i8", _HALF_BYTES, [w, ir.Constant(ir.IntType(1), 0)])
                pairs = v.call(builder, "llvm.x86.avx2.pmadd.ub.sw", _HALF_SHORTS, [w, x])
                shorts = pairs if shorts is None else builder.add(shorts, pairs)
            sums = v.call(builder, "llvm.x86.avx2.pmadd.wd", _HALF_SUMS, [shorts, ones])
            total = sums if total is None else builder.add(total, sums)
        parts.append(total)
    return builder.shuffle_vector(*parts, ir.Constant(SUMS_IR, list(range(v.LANES))))


def less_128(builder: ir.IRBuilder, weights: ir.Value) -> ir.Value:
    """Unsigned bytes as signed ones of 128 less."""
    return builder.xor(weights, ir.Constant(SUMS_IR, [0x80808080 - 2**32] * v.LANES))


def _half(builder: ir.IRBuilder, lanes: ir.Value, half: int) -> ir.Value:
    """The first or the second eight of sixteen lanes."""
    eight = range(half * v.LANES // 2, (half + 1) * v.LANES // 2)
    return builder.shuffle_vector(lanes, lanes, ir.Constant(_HALF_SUMS, list(eight)))


def dot_anywhere(builder: ir.IRBuilder, sums: ir.Value, weights: ir.Value, activations: ir.Value) -> ir.Value:
    """`dot_512` by products of 16-bit numbers, bytes 0 and 2 and then 1 and 3; LLVM knows the pattern (``pmaddwd``)."""
    for number in range(2):
        w = builder.bitcast(_every_second_byte(builder, weights, number, builder.lshr), _SHORTS_IR)
        x = builder.bitcast(_every_second_byte(builder, activations, number, builder.ashr), _SHORTS_IR)
        wide = ir.VectorType(_I32, 2 * v.LANES)
        products = builder.mul(builder.sext(w, wide), builder.sext(x, wide))
        even, odd = (
            builder.shuffle_vector(products, products, ir.Constant(SUMS_IR, list(range(first, 2 * v.LANES, 2))))
            for first in range(2)
        )
        sums = builder.add(sums, builder.add(even, odd))
    return sums


def dot_mixed(builder: ir.IRBuilder, sums: ir.Value, weights: ir.Value, activations: ir.Value) -> ir.Value:
    """`dot_512` in four quarters on Arm with products of unsigned with signed bytes (``usdot``)."""
    return _in_quarters(builder, "usdot", sums, weights, activations)


def dot_signed(builder: ir.IRBuilder, sums: ir.Value, weights: ir.Value, activations: ir.Value) -> ir.Value:
    """`dot_512` for weights up to 127, which are signed bytes as well (``sdot``)."""
    return _in_quarters(builder, "sdot", sums, weights, activations)


def dot_offset(builder: ir.IRBuilder, sums: ir.Value, weights: ir.Value, activations: ir.Value) -> ir.Value:
    """`dot_512` by signed products: of the weights less 128, and of 128 = 64 + 64 with the activations."""
    less = builder.xor(weights, ir.Constant(SUMS_IR, [0x80808080] * v.LANES))
    middle = ir.Constant(SUMS_IR, [0x40404040] * v.LANES)
    half = _in_quarters(builder, "sdot", ir.Constant(SUMS_IR, [0] * v.LANES), middle, activations)
    return builder.add(_in_quarters(builder, "sdot", sums, less, activations), builder.add(half, half))


def _in_quarters(builder: ir.IRBuilder, name: str, *operands: ir.Value) -> ir.Value:
    """An instruction of Arm's on registers of 16 bytes: sums, then two operands of bytes."""
    count = v.LANES // 4
    quarter, bytes_ir = ir.VectorType(_I32, count), ir.VectorType(ir.IntType(8), 4 * count)
    parts = []
    for first in range(0, v.LANES, count):
        lanes = ir.Constant(quarter, [first + i for i in range(count)])
        sums, *rest = (builder.shuffle_vector(x, x, lanes) for x in operands)
        args = [sums, *(builder.bitcast(x, bytes_ir) for x in rest)]
        parts.append(v.call(builder, f"llvm.aarch64.neon.{name}.v4i32.v16i8", quarter, args))
    eight = ir.Constant(ir.VectorType(_I32, 2 * count), list(range(2 * count)))
    halves = [builder.shuffle_vector(low, high, eight) for low, high in (parts[:2], parts[2:])]
    return builder.shuffle_vector(*halves, ir.Constant(SUMS_IR, list(range(v.LANES))))


def _every_second_byte(builder: ir.IRBuilder, lanes: ir.Value, number: int, shift_right) -> ir.Value:
    """Bytes 0 and 2 (`number` 0) or 1 and 3 of every lane, each widened to the 16 bits it lies in."""
    shorts = builder.bitcast(lanes, _SHORTS_IR)
    eight = ir.Constant(_SHORTS_IR, [8] * 2 * v.LANES)
    return shift_right(shorts if number else builder.shl(shorts, eight), eight)


def splat_ir(builder: ir.IRBuilder, pointer: ir.Value) -> ir.Value:
    """The four bytes (or the integer) at `pointer` in every lane."""
    value = builder.load(builder.bitcast(pointer, _I32.as_pointer()), align=1)
    nothing = ir.Constant(SUMS_IR, ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(SUMS_IR, [0] * v.LANES))


def load_ir(builder: ir.IRBuilder, pointer: ir.Value) -> ir.Value:
    """Sixteen lanes of four bytes each from any address."""
    return builder.load(builder.bitcast(pointer, SUMS_IR.as_pointer()), align=1)
