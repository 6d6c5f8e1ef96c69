"""Matrix products of few rows with packed weights, which take most of the time of decoding.

Weights [N, K] are packed into panels of 32 output rows with one scale per output row. In float32, float16 and int8 a
panel is [K, 32]: for k = 0, 1, .. K-1 a tile of up to 12 rows of activations widens 32 weights in registers and does
one fused multiply-add per row. So it is in bfloat16 (uint16), but on processors that multiply pairs of such numbers
(`dot16.py`): there a panel is [K / 2, 32, 2] and activations are bfloat16 too. In 8-bit products (uint8) it is
[K / 4, 32, 4]: activations are 8-bit codes (`operand.py`), products of a group of 32 are summed as integers, and the
sums of groups in order as floats. In all of them every output is summed in the same order whatever the number of rows:
**a row's result does not depend, bit for bit, on which rows share the pass**. With few rows the cost is reading the
weights, so verifying five tokens costs little more than decoding one.

Not for threads (`team.py`) or for the layers of a model (`forward.py`). Long, because the tiles of all formats are made
by the same functions.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

from paceline.models.compiled.kernel import OPTIONS, kernel
from paceline.models.numba_executor import dot8, dot16, isa
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.blocks.formats import PANEL
from paceline.models.numba_executor.operand import GROUP
from paceline.models.numba_executor.tile import add_stored, scale_tile, shift_tile, store_tile

TILE_ROWS = 12
"""Most rows of activations in one tile: 24 of the 32 vector registers of AVX-512. Where registers are fewer, a tile is
worked through in parts, but its weights are read from memory once."""
IN_TURN_FROM = 5
"""Number of rows from which on, with few registers, rows are processed one after the other (t(4), t(8) of the default
model with AVX2, two threads: 7.9 and 16.2 ms all at once, 8.4 and 13.4 in turn)."""
WIDEN_FROM = 4
"""Number of tiles per panel from which on it is faster to convert the panel to float32 once, in the cache."""
PREFETCH_BYTES = 8192
"""Prefetch distance of weights; the processor's own prefetching stops at every 4 KiB page."""
CACHE_BYTES = 1 << 20
"""Most bytes of activations of a block of rows, so that it stays in the L2 cache."""
ZERO_BYTE = 128
"""The byte of a weight of 0 where weights are unsigned bytes."""

_I64 = ir.IntType(64)


def _side_by_side(item_bits: int, unsigned: bool) -> int:
    """How many weights of an output row lie side by side in a panel of this element type."""
    if not unsigned:
        return 1
    return dot8.BYTES if item_bits == 8 else dot16.PAIR if dot16.multiplies_pairs() else 1


def pack(weights: np.ndarray) -> np.ndarray:
    """Weights [N, K] as flat panels [ceil(N / 32), K / s, 32, s], with s weights side by side; zeros after the end."""
    n, k = weights.shape
    side = _side_by_side(8 * weights.itemsize, weights.dtype.kind == "u")
    padded = np.full((padded_rows(n), k), ZERO_BYTE if weights.dtype == np.uint8 else 0, weights.dtype)
    padded[:n] = weights
    return np.ascontiguousarray(padded.reshape(-1, PANEL, k // side, side).transpose(0, 2, 1, 3)).reshape(-1)


def padded_rows(n: int) -> int:
    """Output rows after padding to whole panels."""
    return -(-n // PANEL) * PANEL


def stored_weight(w, start, k, column):
    """Weight `k` of output `column` (0 to 31) of the panel at `start`, as a float; compiled code only."""
    raise NotImplementedError


@overload(stored_weight, jit_options=OPTIONS)
def _stored_weight(w, start, k, column):
    side = _side_by_side(w.dtype.bitwidth, isinstance(w.dtype, types.Integer) and not w.dtype.signed)

    def of_bytes(w, start, k, column):
        return np.float32(np.int32(w[start + k // side * (PANEL * side) + column * side + k % side]) - ZERO_BYTE)

    def of_lanes(w, start, k, column):
        at = k // side * (PANEL * side) + column * side + k % side
        return v.lane(v.load(w, start + at // v.LANES * v.LANES), at % v.LANES)

    return of_bytes if w.dtype == types.uint8 else of_lanes


@intrinsic(prefer_literal=True)
def _accumulate(typingctx, rows, x, first_row, depth, w, w_start):
    """Sums over k of w[k, 0:32] * x[row, k] for `rows` (a literal) rows: a tuple of 2 * rows vectors."""
    if not isinstance(rows, types.IntegerLiteral):
        return None
    count = rows.literal_value
    result = types.UniTuple(v.vector, 2 * count)
    in_pairs = w.dtype == types.uint16 and dot16.multiplies_pairs()
    if in_pairs != (x[0].dtype == types.uint16):
        return None
    sums_of = _sums_of_pairs if in_pairs else _sums_of_bytes if w.dtype == types.uint8 else _sums_of_floats

    def emit(context, builder, sig, args):
        _, operand, row, end, w_array, w_first = args
        w_pointer = v.element_pointer(context, builder, w, w_array, w_first)

        def row_of(field: int, per_row: ir.Value, number: ir.Value) -> ir.Value:
            array = builder.extract_value(operand, field)
            start = builder.mul(per_row, builder.add(row, number))
            return v.element_pointer(context, builder, x[field], array, start)

        return context.make_tuple(builder, result, sums_of(context, builder, w, w_pointer, end, count, row_of))

    return result(rows, x, types.intp, types.intp, w, types.intp), emit


def _prefetch_lines(builder, step, step_bytes, halves, count) -> None:
    """Ask for the lines that begin in the given halves of the step of a panel `PREFETCH_BYTES` further on.

    In a tile of fewer than `TILE_ROWS` rows, no other rows need them.
    """
    half_bytes = step_bytes // 2
    step = builder.bitcast(step, ir.IntType(8).as_pointer())
    for at in range(0, step_bytes, v.CACHE_LINE):
        if at // half_bytes in halves:
            v.prefetch_ir(builder, builder.gep(step, [_I64(at + PREFETCH_BYTES)]), once=count < TILE_ROWS)


def _sums_of_pairs(context, builder, w, w_pointer, depth, count, row_of) -> list[ir.Value]:
    """One instruction for two weights of each of sixteen outputs, all bfloat16."""
    x_rows = [row_of(0, depth, _I64(number)) for number in range(count)]

    def step(k, sums):
        at = builder.mul(k, _I64(dot16.PAIR))
        panel = builder.gep(w_pointer, [builder.mul(at, _I64(PANEL))])
        _prefetch_lines(builder, panel, dot16.PAIR * PANEL * w.dtype.bitwidth // 8, range(2), count)
        halves = [dot8.load_ir(builder, builder.gep(panel, [_I64(h * v.LANES * dot16.PAIR)])) for h in range(2)]
        pairs = (dot8.splat_ir(builder, builder.gep(row, [at])) for row in x_rows)
        return _pairwise(lambda half, pair, total: dot16.dot_pairs(builder, total, half, pair), halves, pairs, sums)

    return v.accumulate_ir(builder, builder.sdiv(depth, _I64(dot16.PAIR)), [v.ZERO] * (2 * count), step)


def _sums_of_floats(context, builder, w, w_pointer, depth, count, row_of) -> list[ir.Value]:
    """One fused multiply-add per weight and row, in the order of the weights."""
    x_rows = [row_of(0, depth, _I64(number)) for number in range(count)]

    def more(first, size, halves, rows, sums):
        """The sums of some rows with one half of the panel or both, after `size` weights more from `first` on."""

        def step(k, sums):
            k = builder.add(first, k)
            panel = builder.gep(w_pointer, [builder.mul(k, _I64(PANEL))])
            _prefetch_lines(builder, panel, PANEL * w.dtype.bitwidth // 8, halves, count)
            weights = [
                v.load_widened(context, builder, w.dtype, builder.gep(panel, [_I64(h * v.LANES)])) for h in halves
            ]
            activations = (v.splat_ir(builder, builder.load(builder.gep(x_rows[row], [k]))) for row in rows)
            return _pairwise(lambda *triple: v.fma_ir(builder, *triple), weights, activations, sums)

        return v.accumulate_ir(builder, size, sums, step)

    most = isa.sums_in_registers(context)
    if 2 * count <= most:
        return more(_I64(0), depth, range(2), range(count), [v.ZERO] * (2 * count))
    tiles = [(half, rows.tolist()) for rows in np.array_split(range(count), -(-count // most)) for half in range(2)]

    def piece(number, sums):
        first, out = builder.mul(number, _I64(GROUP)), dict(zip(keys, sums, strict=True))
        for half, rows in tiles:
            places = [(row, half) for row in rows]
            found = more(first, _I64(GROUP), [half], rows, [out[place] for place in places])
            out |= zip(places, found, strict=True)
        return [out[key] for key in keys]

    keys = [(row, half) for row in range(count) for half in range(2)]
    return v.accumulate_ir(builder, builder.sdiv(depth, _I64(GROUP)), [v.ZERO] * len(keys), piece)


def _sums_of_bytes(context, builder, w, w_pointer, depth, count, row_of) -> list[ir.Value]:
    """Integer sums of four products at a time over a group, then one fused multiply-add with the group's scale."""
    groups = builder.sdiv(depth, _I64(GROUP))
    if count >= IN_TURN_FROM and dot8.adds_shorts(context):
        return _sums_in_turn(builder, w_pointer, depth, groups, count, row_of)
    dot, steps = dot8.choose_dot(context), GROUP // dot8.BYTES
    length = v.unknown_ir(builder, steps) if count > 1 else _I64(steps)  # unrolled, more rows want too many registers
    x_rows, scales, offsets = (
        [row_of(field, per_row, _I64(number)) for number in range(count)]
        for field, per_row in enumerate((depth, builder.mul(groups, _I64(2)), groups))
    )

    def group(number, sums):
        def step(k, totals):
            k = builder.add(builder.mul(number, _I64(steps)), k)
            halves = _codes_of_step(builder, w_pointer, k, range(2), count)
            at = builder.mul(k, _I64(dot8.BYTES))
            codes = (dot8.splat_ir(builder, builder.gep(x_row, [at])) for x_row in x_rows)
            return _pairwise(lambda half, code, total: dot(builder, total, half, code), halves, codes, totals)

        starts = [dot8.splat_ir(builder, builder.gep(row, [number])) for row in offsets for _ in range(2)]
        totals = v.accumulate_ir(builder, length, starts, step)
        totals = [builder.sitofp(total, v.VECTOR_IR) for total in totals]
        pair = builder.mul(number, _I64(2))  # both halves of a group have the same scale here
        factors = [v.splat_ir(builder, builder.load(builder.gep(row, [pair]))) for row in scales]
        return [v.fma_ir(builder, total, factors[i // 2], sums[i]) for i, total in enumerate(totals)]

    return v.accumulate_ir(builder, groups, [v.ZERO] * (2 * count), group)


def _codes_of_step(builder, w_pointer, k, halves, count) -> list[ir.Value]:
    """Four weights of each row of the panel, or of half of them; those of later steps are asked for."""
    panel = builder.gep(w_pointer, [builder.mul(k, _I64(PANEL * dot8.BYTES))])
    _prefetch_lines(builder, panel, PANEL * dot8.BYTES, halves, count)
    return [dot8.load_ir(builder, builder.gep(panel, [_I64(half * v.LANES * dot8.BYTES)])) for half in halves]


def _sums_in_turn(builder, w_pointer, depth, groups, count, row_of) -> list[ir.Value]:
    """`_sums_of_bytes` where registers are few: they hold some steps of half a panel, for one row after the other."""
    steps, at_once = GROUP // dot8.BYTES, 4
    totals, sums = (v.Vectors(builder, kind, 2 * count) for kind in (dot8.SUMS_IR, v.VECTOR_IR))
    for place in range(2 * count):
        sums.put(_I64(place), v.ZERO)

    def part(number, half, first):
        ends, base = first + at_once == steps, builder.mul(number, _I64(steps))
        places = [builder.add(base, _I64(first + i)) for i in range(at_once)]
        weights = [dot8.less_128(builder, _codes_of_step(builder, w_pointer, k, [half], count)[0]) for k in places]

        def one(row):
            x_row, place = row_of(0, depth, row), builder.add(builder.mul(row, _I64(2)), _I64(half))
            codes = [dot8.splat_ir(builder, builder.gep(x_row, [builder.mul(k, _I64(dot8.BYTES))])) for k in places]
            total = dot8.row_sums(builder, None, weights, codes, ZERO_BYTE)
            total = builder.add(totals.get(place), total) if first else total
            if not ends:
                totals.put(place, total)
                return
            scales = row_of(1, builder.mul(groups, _I64(2)), row)
            factor = v.splat_ir(builder, builder.load(builder.gep(scales, [builder.mul(number, _I64(2))])))
            sums.put(place, v.fma_ir(builder, builder.sitofp(total, v.VECTOR_IR), factor, sums.get(place)))

        v.each_ir(builder, count, one)

    def group(number, nothing):
        for half in range(2):
            for first in range(0, steps, at_once):
                part(number, half, first)
        return nothing

    v.accumulate_ir(builder, groups, [], group)
    return [sums.get(_I64(place)) for place in range(2 * count)]


def _pairwise(combine, halves, activations, sums) -> list[ir.Value]:
    """combine(half, activation, sum) of every row's activation with both halves of the panel.

    `activations` are made one by one where they are needed: all twelve of a tile, made first, need more registers than
    there are.
    """
    old = iter(sums)
    return [combine(half, activation, next(old)) for activation in activations for half in halves]


def _make_tile(rows: int):
    """The kernel for `rows` rows of activations and one panel."""

    @kernel
    def tile(x, row, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add):
        sums = _accumulate(rows, x, row, depth, w, w_start)
        sums = scale_tile(sums, v.load(scales, column), v.load(scales, column + v.LANES))
        if len(bias) > 0:
            sums = shift_tile(sums, v.load(bias, column), v.load(bias, column + v.LANES))
        if add:
            sums = add_stored(sums, out, out_start, out_stride)
        store_tile(sums, out, out_start, out_stride)

    return tile


_t1, _t2, _t3, _t4, _t5, _t6, _t7, _t8, _t9, _t10, _t11, _t12 = (_make_tile(rows) for rows in range(1, TILE_ROWS + 1))


@kernel
def _any_tile(rows, x, row, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add):
    """The tile kernel for `rows` in 1..12, by a switch: each has its own register allocation."""
    if rows == 1:
        _t1(x, row, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 2:
        _t2(x, row, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 3:
        _t3(x, row, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 4:
        _t4(x, row, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 5:
        _t5(x, row, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 6:
        _t6(x, row, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 7:
        _t7(x, row, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 8:
        _t8(x, row, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 9:
        _t9(x, row, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 10:
        _t10(x, row, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    elif rows == 11:
        _t11(x, row, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)
    else:
        _t12(x, row, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add)


@kernel
def _widen(w, start, size, wide):
    """wide[0:size] = `size` weights from w[start] on, as float32."""
    for i in range(0, size, v.LANES):
        v.store(wide, i, v.load(w, start + i))


def _widened_tiles(
    x, first_row, num_rows, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add, wide
):  # fmt: skip
    """With many rows, whole tiles times a panel that is widened once for all of them; how many rows that did."""
    raise NotImplementedError


@overload(_widened_tiles, jit_options=OPTIONS)
def _choose_widened_tiles(
    x, first_row, num_rows, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add, wide
):  # fmt: skip
    def not_at_all(
        x, first_row, num_rows, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add, wide
    ):  # fmt: skip
        return 0

    def once(
        x, first_row, num_rows, depth, w, w_start, scales, bias, column, out, out_start, out_stride, add, wide
    ):  # fmt: skip
        if num_rows < WIDEN_FROM * TILE_ROWS:
            return 0
        _widen(w, w_start, PANEL * depth, wide)
        whole = num_rows // TILE_ROWS * TILE_ROWS
        for row in range(0, whole, TILE_ROWS):
            _t12(
                x, first_row + row, depth, wide, 0, scales, bias, column, out, out_start + row * out_stride,
                out_stride, add,
            )  # fmt: skip
        return whole

    floats = x[0].dtype == types.float32
    return once if floats and w.dtype in (types.uint16, types.int16, types.int8) else not_at_all


@kernel
def multiply(
    x, first_row, num_rows, depth, w, w_first, scales, bias, vector_first, out, out_first, out_stride, first_panel,
    last_panel, add, wide,
):  # fmt: skip
    """out[row, column] (+)= sum_k x[row, k] w[column, k] * scales[column] + bias[column] for panels first..last.

    Args:
        x, first_row, num_rows: an `Operand` of rows of `depth`, and which of them: row `first_row` becomes row 0.
        w, w_first: packed panels and the element where this matrix begins in them.
        scales, bias, vector_first: flat float32 vectors per output column and where this matrix's begin; an empty
            `bias` adds nothing.
        out, out_first, out_stride: flat float32; output (row, column) is out[out_first + row * out_stride + column], so
            that a negative `out_first` shifts the first panel to the front of a small buffer.
        add: add to what `out` holds (a residual connection).
        wide: scratch for a panel, at least 32 * depth float32. With many rows a panel is widened once for all of them
            and not once per tile; the numbers are the same.
    """
    block_rows = max(TILE_ROWS, CACHE_BYTES // (x.values.itemsize * depth) // TILE_ROWS * TILE_ROWS)
    for block in range(0, num_rows, block_rows):
        block_end = min(block + block_rows, num_rows)
        for panel in range(first_panel, last_panel):
            column = panel * PANEL
            start, out_start = w_first + column * depth, out_first + column
            row = block + _widened_tiles(
                x, first_row + block, block_end - block, depth, w, start, scales, bias, vector_first + column, out,
                out_start + block * out_stride, out_stride, add, wide,
            )  # fmt: skip
            while row < block_end:
                _any_tile(
                    min(TILE_ROWS, block_end - row), x, first_row + row, depth, w, start, scales, bias,
                    vector_first + column, out, out_start + row * out_stride, out_stride, add,
                )  # fmt: skip
                row += TILE_ROWS
