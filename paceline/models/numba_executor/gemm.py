"""Matrix products of few rows with packed weights: the kernel that decoding spends its time in.

Weights [N, K] are packed into panels of 32 output rows, each panel [K, 32], in float32, bfloat16 (as uint16) or int8
with one scale per output row. A tile multiplies up to 12 rows of activations with one panel: for k = 0, 1, .. K-1 it
widens 32 weights in registers and does one fused multiply-add per row, so every output is summed in the same order
whatever the number of rows: **a row's result does not depend, bit for bit, on which rows share the pass**. At few rows
the cost is the reading of the weights, which is why verifying five tokens costs little more than decoding one.

Not the place for threads (`team.py`) or for what is multiplied (`forward.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from paceline.models.numba_executor import vector as v

PANEL = 32
"""Output rows per panel of packed weights."""
TILE_ROWS = 12
"""Most rows of activations in one tile: 24 of the 32 vector registers of AVX-512."""
WIDEN_FROM = 4
"""Tiles per panel from which on widening it first is worth the detour through the cache."""
PREFETCH_BYTES = 8192
"""How far ahead weights are asked for from memory; the processor's own prefetching stops at every 4 KiB page."""
CACHE_BYTES = 1 << 20
"""Activations a block of rows may occupy, so that it stays in the second-level cache."""

_I64 = ir.IntType(64)


def pack(weights: np.ndarray) -> np.ndarray:
    """Weights [N, K] as flat panels [ceil(N / 32), K, 32], zero rows behind the end."""
    n, k = weights.shape
    padded = np.zeros((padded_rows(n), k), weights.dtype)
    padded[:n] = weights
    return np.ascontiguousarray(padded.reshape(-1, PANEL, k).transpose(0, 2, 1)).reshape(-1)


def padded_rows(n: int) -> int:
    """Output rows after padding to whole panels."""
    return -(-n // PANEL) * PANEL


@intrinsic(prefer_literal=True)
def _accumulate(typingctx, rows, x, x_start, x_stride, w, w_start, depth):
    """Sums over k of w[k, 0:32] * x[row, k] for `rows` (a literal) rows: a tuple of 2 * rows vectors."""
    if not isinstance(rows, types.IntegerLiteral):
        return None
    count = rows.literal_value
    result = types.UniTuple(v.vector, 2 * count)

    def emit(context, builder, sig, args):
        _, x_array, x_first, stride, w_array, w_first, end = args
        x_pointer = v.element_pointer(context, builder, x, x_array, x_first)
        w_pointer = v.element_pointer(context, builder, w, w_array, w_first)
        x_rows = [builder.gep(x_pointer, [builder.mul(stride, _I64(r))]) for r in range(count)]

        def step(k, sums):
            panel = builder.gep(w_pointer, [builder.mul(k, _I64(PANEL))])
            v.prefetch_ir(builder, builder.gep(panel, [_I64(PREFETCH_BYTES // w.dtype.bitwidth * 8)]))
            halves = [v.load_widened(builder, w.dtype, builder.gep(panel, [_I64(h * v.LANES)])) for h in range(2)]
            new = []
            for r in range(count):
                activation = v.splat_ir(builder, builder.load(builder.gep(x_rows[r], [k])))
                new += [v.fma_ir(builder, half, activation, sums[2 * r + h]) for h, half in enumerate(halves)]
            return new

        return context.make_tuple(builder, result, v.accumulate_ir(builder, end, 2 * count, step))

    return result(rows, x, types.intp, types.intp, w, types.intp, types.intp), emit


def _on_tile(emit_each):
    """An intrinsic (tile, low, high) -> tile applying `emit_each` to each half-row with the half's own vector."""

    def emit(context, builder, sig, args):
        count = sig.args[0].count
        values = [builder.extract_value(args[0], i) for i in range(count)]
        return context.make_tuple(
            builder, sig.return_type, [emit_each(builder, x, args[1 + i % 2]) for i, x in enumerate(values)]
        )

    return intrinsic(lambda typingctx, tile, low, high: (tile(tile, v.vector, v.vector), emit))


_scale_tile = _on_tile(lambda builder, x, y: builder.fmul(x, y))
_shift_tile = _on_tile(lambda builder, x, y: builder.fadd(x, y))


def _tile_pointers(context, builder, array_type, array, start, stride, count):
    for i in range(count):
        row, half = divmod(i, 2)
        at = builder.add(builder.add(start, builder.mul(stride, _I64(row))), _I64(half * v.LANES))
        yield builder.bitcast(v.element_pointer(context, builder, array_type, array, at), v.VECTOR_IR.as_pointer())


@intrinsic
def _store_tile(typingctx, tile, out, start, stride):
    """Write a tile's rows at out[start + row * stride]."""

    def emit(context, builder, sig, args):
        pointers = _tile_pointers(context, builder, out, *args[1:], tile.count)
        for i, pointer in enumerate(pointers):
            builder.store(builder.extract_value(args[0], i), pointer, align=4)
        return context.get_dummy_value()

    return types.void(tile, out, types.intp, types.intp), emit


@intrinsic
def _add_stored(typingctx, tile, out, start, stride):
    """A tile plus what stands at out[start + row * stride]."""

    def emit(context, builder, sig, args):
        pointers = _tile_pointers(context, builder, out, *args[1:], tile.count)
        sums = [
            builder.fadd(builder.extract_value(args[0], i), builder.load(p, align=4)) for i, p in enumerate(pointers)
        ]
        return context.make_tuple(builder, tile, sums)

    return tile(tile, out, types.intp, types.intp), emit


def _make_tile(rows: int):
    """The kernel for `rows` rows of activations and one panel."""

    @njit(nogil=True, error_model="numpy")
    def tile(x, x_start, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add):
        sums = _accumulate(rows, x, x_start, depth, w, w_start, depth)
        sums = _scale_tile(sums, v.load(scales, column), v.load(scales, column + v.LANES))
        if len(bias) > 0:
            sums = _shift_tile(sums, v.load(bias, column), v.load(bias, column + v.LANES))
        if add:
            sums = _add_stored(sums, out, out_start, out_stride)
        _store_tile(sums, out, out_start, out_stride)

    return tile


_t1, _t2, _t3, _t4, _t5, _t6, _t7, _t8, _t9, _t10, _t11, _t12 = (_make_tile(rows) for rows in range(1, TILE_ROWS + 1))


@njit(nogil=True, error_model="numpy")
def _any_tile(rows, x, x_start, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add):
    """The tile kernel for `rows` in 1..12, by a switch: each has its own register allocation."""
    if rows == 1:
        _t1(x, x_start, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 2:
        _t2(x, x_start, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 3:
        _t3(x, x_start, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 4:
        _t4(x, x_start, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 5:
        _t5(x, x_start, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 6:
        _t6(x, x_start, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 7:
        _t7(x, x_start, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 8:
        _t8(x, x_start, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 9:
        _t9(x, x_start, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 10:
        _t10(x, x_start, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 11:
        _t11(x, x_start, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    else:
        _t12(x, x_start, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)


@intrinsic
def _is_narrow(typingctx, w):
    """Whether weights are stored in fewer bits than they are multiplied in: a constant for the compiler."""
    narrow = w.dtype != types.float32
    return types.boolean(w), lambda context, builder, sig, args: ir.Constant(ir.IntType(1), narrow)


@njit(nogil=True, error_model="numpy")
def _widen(w, start, size, wide):
    """wide[0:size] = `size` weights from w[start] on, as float32."""
    for i in range(0, size, v.LANES):
        v.store(wide, i, v.load(w, start + i))


@njit(nogil=True, error_model="numpy")
def multiply(
    x, num_rows, depth, w, w_first, scales, bias, vector_first, out, out_first, out_stride, first_panel, last_panel,
    add, wide,
):  # fmt: skip
    """out[row, column] (+)= sum_k x[row, k] w[column, k] * scales[column] + bias[column] for panels first..last.

    Args:
        x: flat [num_rows, depth] float32.
        w, w_first: packed panels and the element where this matrix begins in them.
        scales, bias, vector_first: flat float32 vectors per output column and where this matrix's begin; an empty
            `bias` adds nothing.
        out, out_first, out_stride: flat float32; output (row, column) is out[out_first + row * out_stride + column], so
            that a negative `out_first` shifts the first panel to the front of a small buffer.
        add: add to what `out` holds (a residual connection).
        wide: scratch for a panel, at least 32 * depth float32. With many rows a panel is widened once for all of them
            and not once per tile; the numbers are the same.
    """
    block_rows = max(TILE_ROWS, CACHE_BYTES // (4 * depth) // TILE_ROWS * TILE_ROWS)
    for block in range(0, num_rows, block_rows):
        block_end = min(block + block_rows, num_rows)
        for panel in range(first_panel, last_panel):
            column = panel * PANEL
            start, row = w_first + column * depth, block
            if _is_narrow(w) and block_end - block >= WIDEN_FROM * TILE_ROWS:
                _widen(w, start, PANEL * depth, wide)
                while row + TILE_ROWS <= block_end:
                    _t12(
                        x, row * depth, depth, wide, 0, scales, bias, vector_first + column, out,
                        out_first + row * out_stride + column, out_stride, add,
                    )  # fmt: skip
                    row += TILE_ROWS
            while row < block_end:
                _any_tile(
                    min(TILE_ROWS, block_end - row), x, row * depth, depth, w, start, scales, bias,
                    vector_first + column, out, out_first + row * out_stride + column, out_stride, add,
                )  # fmt: skip
                row += TILE_ROWS
