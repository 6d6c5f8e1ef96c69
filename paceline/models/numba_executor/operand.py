"""Activations as a product reads them: floats as they are, rounded to bfloat16, or to 8 bits in groups of 32 or 16.

In the dtype ``bfloat16`` activations are rounded as the weights are, which is what PyTorch does, on processors that
multiply such numbers twice as fast; on others they stay float32.

In the dtype ``w8a8`` each 32 activations of a row share a scale, largest magnitude / 127, so that an outlier affects
the precision of its own group only (the same groups as llama.cpp's Q8_0); in ``gguf`` each 16 do, which halves the
rounding error. Rounding depends only on one row's group, and integer products are exact, so a row's result does not
depend on which rows share its pass. Not for the products (`gemm.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from paceline.models.compiled.kernel import OPTIONS, kernel
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.blocks.formats import GROUP
from paceline.models.numba_executor.dot8 import SUMS_IR
from paceline.models.numba_executor.dot16 import multiplies_pairs

ROUNDS = ("w8a8", "gguf")
"""Dtypes that round activations to 8 bits."""
HIGHEST = np.float32(127)
_FROM_OFFSET = np.float32(-1 / 128)
SMALLEST = np.float32(1e-30)
"""A group whose largest magnitude is below this is rounded to zeros, as 127 over it could overflow."""


class Operand(NamedTuple):
    """Rows of activations.

    Attributes:
        values: flat [rows, depth], float32, bfloat16 (as uint16), or int8 codes.
        scales: flat [rows, depth / 16] float32, scale of each 16 codes; empty for floats.
        offsets: flat [rows, depth / 32] int32, -128 times the sum of 32 codes, which corrects for weights that are
            stored as unsigned bytes with 128 added. Empty for floats.
        halves: flat [rows, depth / 16] int32, the same for 16 codes. Empty for floats.
        totals: flat [rows, depth / 32] float32, the sum of 32 rounded activations. Empty for floats.
        fine: 1 where 16 activations share a scale, 0 where 32 do (both halves then have the same).
    """

    values: np.ndarray
    scales: np.ndarray
    offsets: np.ndarray
    halves: np.ndarray
    totals: np.ndarray
    fine: int


def activations_of(dtype: str) -> type:
    """Element type of the activations that are multiplied with weights of a dtype (`weights.STORED`, ``gguf``)."""
    if dtype in ROUNDS:
        return np.int8
    return np.uint16 if dtype == "bfloat16" and multiplies_pairs() else np.float32


def new_operand(size: int, kind: type, fine: bool = False) -> Operand:
    """An uninitialised operand of `size` (rows times depth) activations of `activations_of`; see `Operand.fine`."""
    groups = size // GROUP if kind is np.int8 else 0
    values = np.empty(size, kind)
    scales, halves = np.empty(2 * groups, np.float32), np.empty(2 * groups, np.int32)
    offsets, totals = np.empty(groups, np.int32), np.empty(groups, np.float32)
    return Operand(values, scales, offsets, halves, totals, int(fine))


@kernel(forceinline=True)
def operand_from(x, start):
    """The operand without the first `start` (a multiple of 32) values."""
    group = start // GROUP
    return Operand(
        x.values[start:], x.scales[2 * group :], x.offsets[group:], x.halves[2 * group :], x.totals[group:], x.fine
    )


@intrinsic
def _store_codes(typingctx, values, index, lanes, factor):
    """values[index : index + 16] = the vector times `factor`, rounded to even; returns their sum."""

    def emit(context, builder, sig, args):
        array, at, vector, scalar = args
        pointer = v.element_pointer(context, builder, values, array, at)
        bytes_ir = ir.VectorType(ir.IntType(8), v.LANES)
        scaled = builder.fmul(vector, v.splat_ir(builder, scalar))
        codes = builder.fptosi(v.call(builder, "llvm.rint.v16f32", v.VECTOR_IR, [scaled]), SUMS_IR)
        builder.store(builder.trunc(codes, bytes_ir), builder.bitcast(pointer, bytes_ir.as_pointer()), align=1)
        return v.call(builder, "llvm.vector.reduce.add.v16i32", ir.IntType(32), [codes])

    return types.int32(values, types.intp, v.vector, types.float32), emit


@kernel
def _magnitude(x):
    return v.maximum(x, v.sub(v.splat(np.float32(0)), x))


def _put_floats(operand, row, depth, column, source, start, size):
    for i in range(0, size, v.LANES):
        v.store(operand.values, row * depth + column + i, v.load(source, start + i))


@kernel
def _put_half(operand, at, lanes, largest):
    """Sixteen activations, the largest of magnitude `largest`, from index `at` on; returns -128 times their sum."""
    factor = HIGHEST / largest if largest > SMALLEST else np.float32(0)
    total = -128 * _store_codes(operand.values, at, lanes, factor)
    operand.scales[at // v.LANES] = largest / HIGHEST
    operand.halves[at // v.LANES] = total
    return total


@kernel
def _total(operand, half):
    """The sum of sixteen rounded activations."""
    return np.float32(operand.halves[half]) * operand.scales[half] * _FROM_OFFSET


def _put_codes(operand, row, depth, column, source, start, size):
    for i in range(0, size, GROUP):
        low, high = v.load(source, start + i), v.load(source, start + i + v.LANES)
        first, second = v.max_lanes(_magnitude(low)), v.max_lanes(_magnitude(high))
        if operand.fine == 0:
            first = second = max(first, second)
        at = row * depth + column + i
        total = _put_half(operand, at, low, first) + _put_half(operand, at + v.LANES, high, second)
        operand.offsets[at // GROUP] = total
        operand.totals[at // GROUP] = _total(operand, at // v.LANES) + _total(operand, at // v.LANES + 1)


def put(operand, row, depth, column, source, start, size):
    """Columns column .. column + size - 1 of a row, from the floats at source[start]; compiled code only.

    `size` is a multiple of 16, and of 32 as `column` is where values are rounded.
    """
    raise NotImplementedError


@overload(put, jit_options=OPTIONS)
def _put(operand, row, depth, column, source, start, size):
    return _put_codes if operand[0].dtype == types.int8 else _put_floats


@kernel
def copy_row(source, row, target, place, depth):
    """Row `place` of `target` = row `row` of `source`, both of the same kind."""
    for i in range(depth):
        target.values[place * depth + i] = source.values[row * depth + i]
    groups = depth // GROUP if len(source.scales) > 0 else 0
    for i in range(groups):
        target.offsets[place * groups + i] = source.offsets[row * groups + i]
        target.totals[place * groups + i] = source.totals[row * groups + i]
        for half in range(2):
            to, at = 2 * (place * groups + i) + half, 2 * (row * groups + i) + half
            target.scales[to], target.halves[to] = source.scales[at], source.halves[at]


@kernel
def read_row(source, row, depth, out):
    """out[0:depth] = a row as floats."""
    groups = depth // v.LANES if len(source.scales) > 0 else 0
    for i in range(0, depth, v.LANES):
        lanes = v.load(source.values, row * depth + i)
        if groups > 0:
            lanes = v.mul(lanes, v.splat(source.scales[row * groups + i // v.LANES]))
        v.store(out, i, lanes)
