"""Arithmetic of attention: scores, softmax and weighted sums of one row and a few heads over paged keys and values.

A key page is [head_dim, 16 tokens] and a value page [16 tokens, head_dim] per layer and key-value head, in 8 bits with
scales (`kv_cache.py`). The sixteen scores of a page are the lanes of a vector, each the same chain of multiply-adds
over the head dimension. All later operations go in order of *logical* position. So a row's result is bitwise the same
whether its ancestors are in one run, in distant pages or on a branch of a tree. Up to three query heads that share keys
and values are processed together, because reading a long context costs more than multiplying it. Neither their number
nor splitting a context into pieces changes a bit. Not for the distribution of work (`attend.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from paceline.models.base import PAGE_SIZE
from paceline.models.compiled.kernel import kernel
from paceline.models.numba_executor import halves, isa
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.kv_cache import GROUP, SCALE_BYTES

MOST_HEADS = 3
"""Most query heads in one block: with four pages or columns each they fill 24 of the 32 vector registers of AVX-512."""
PAGES_AHEAD = 4
"""Pages scored at once; keys are prefetched as many ahead."""

VALUES_AHEAD = PAGE_SIZE
"""Number of positions by which values are prefetched ahead."""

NOTHING = np.float32(-np.inf)
"""The score of a masked key."""
_I64 = ir.IntType(64)


@intrinsic(prefer_literal=True)
def _score_pages(
    typingctx, heads, pages, ahead, q, q_start, head_dim, keys, values, page_starts, first, scale, scores, stride, at
):  # fmt: skip
    """scores[h * stride + at + j] = q_h . key_j * scale for the keys j of `pages` (a literal) pages from `first` on.

    `heads` and `ahead` are literals too; query h begins at q[q_start + h * head_dim]. The processor cannot predict
    where the small pages lie, so with `ahead` the values of these pages and the next keys are prefetched meanwhile.
    """
    if not _are_literal(heads, pages, ahead):
        return None
    num_heads, num_pages, prefetches = heads.literal_value, pages.literal_value, ahead.literal_value

    def emit(context, builder, sig, args):
        _, _, _, q_array, q_first, dim, k_array, v_array, starts, page, factor, s_array, s_stride, s_at = args

        def start(array, i):
            pointer = v.element_pointer(context, builder, page_starts, starts, builder.add(page, _I64(i)))
            return v.element_pointer(context, builder, keys, array, builder.load(pointer))

        def query(h):
            at = builder.add(q_first, builder.mul(dim, _I64(h)))
            return v.element_pointer(context, builder, q, q_array, at)

        def some(numbers):
            """Scores of the pages `numbers`, whose sums stay in registers."""
            key_pages, value_pages = ([start(array, number) for number in numbers] for array in (k_array, v_array))
            next_pages = [start(k_array, num_pages + number) for number in numbers]

            def step(i, sums):
                offset = builder.mul(i, _I64(PAGE_SIZE))
                for soon in value_pages + next_pages if prefetches else ():
                    v.prefetch_ir(builder, builder.gep(soon, [offset]))
                columns = [v.load_widened(context, builder, keys.dtype, builder.gep(k, [offset])) for k in key_pages]
                values = [v.splat_ir(builder, builder.load(builder.gep(one, [i]))) for one in queries]
                pairs = [(value, column) for value in values for column in columns]
                return [v.fma_ir(builder, *pair, old) for pair, old in zip(pairs, sums, strict=True)]

            def group(number, sums):
                """The products of 32 codes, then their scales (`kv_cache.py`)."""
                first = builder.mul(number, _I64(GROUP))
                new = v.accumulate_ir(builder, _I64(GROUP), zeros, lambda i, old: step(builder.add(first, i), old))
                row = builder.add(builder.mul(dim, _I64(PAGE_SIZE)), builder.mul(number, _I64(SCALE_BYTES * PAGE_SIZE)))
                scales = [
                    v.load_widened(context, builder, types.int16, builder.gep(k, [row])) for k in key_pages
                ] * num_heads
                return [v.fma_ir(builder, *pair, old) for *pair, old in zip(new, scales, sums, strict=True)]

            zeros = [v.ZERO] * (num_heads * len(numbers))
            if keys.dtype == types.int8:
                sums = v.accumulate_ir(builder, builder.sdiv(dim, _I64(GROUP)), zeros, group)
            else:
                sums = v.accumulate_ir(builder, dim, zeros, step)
            factors = v.splat_ir(builder, factor)
            for i, value in enumerate(sums):
                head, number = divmod(i, len(numbers))
                start_of_page = builder.add(builder.mul(s_stride, _I64(head)), _I64(numbers[number] * PAGE_SIZE))
                pointer = v.element_pointer(context, builder, scores, s_array, builder.add(s_at, start_of_page))
                v.store_ir(builder, builder.fmul(value, factors), pointer)

        queries = [query(h) for h in range(num_heads)]
        at_once = _that_fit(context, num_heads, num_pages)
        for first in range(0, num_pages, at_once):
            some(range(first, first + at_once))
        return context.get_dummy_value()

    index = types.intp
    return types.void(
        heads, pages, ahead, q, index, index, keys, values, page_starts, index, types.float32, scores, index, index
    ), emit  # fmt: skip


def _are_literal(*numbers: types.Type) -> bool:
    return all(isinstance(one, types.IntegerLiteral) for one in numbers)


def _that_fit(context, each: int, count: int) -> int:
    """How many of `count` (a power of two) parts of `each` sums fit in registers at a time."""
    while count > 1 and count * each > isa.sums_in_registers(context):
        count //= 2
    return count


def _value_lanes(context, builder, dtype, row, first_column, num_vectors, dim):
    """Vectors of a token's value from `first_column` on; of more than one, that is a multiple of 32."""
    out, scale = [], None
    for number in range(num_vectors):
        column = builder.add(first_column, _I64(number * v.LANES))
        lanes = v.load_widened(context, builder, dtype, builder.gep(row, [column]))
        if dtype == types.int8:
            if number % (GROUP // v.LANES) == 0:
                group = builder.sdiv(column, _I64(GROUP))
                at = builder.gep(row, [builder.add(dim, builder.mul(group, _I64(SCALE_BYTES)))])
                half = builder.load(builder.bitcast(at, ir.HalfType().as_pointer()), align=1)
                scale = v.splat_ir(builder, halves.widen_ir(context, builder, half))
            lanes = builder.fmul(lanes, scale)
        out.append(lanes)
    return out


@intrinsic(prefer_literal=True)
def _mix_columns(
    typingctx, heads, vectors, ahead, scores, at, stride, values, value_starts, first, pairs, column, sums,
    sums_start, head_dim,
):  # fmt: skip
    """sums_h[16 * `vectors` columns from `column`] += scores[at + h * stride + j] value_j, separately for even, odd j.

    j are the 2 * `pairs` positions from the even `first` on. `heads`, `vectors` and `ahead` (whether values of
    `VALUES_AHEAD` positions later are prefetched) are literals. `sums` are [heads, head_dim] over even positions, then
    over odd ones.
    """
    if not _are_literal(heads, vectors, ahead):
        return None
    num_heads, num_vectors, prefetches = heads.literal_value, vectors.literal_value, ahead.literal_value

    def emit(context, builder, sig, args):
        _, _, _, s_array, s_start, s_stride, v_array, starts, begin, end, first_of_all, o_array, o_start, dim = args

        def some(first_vector):
            """Sums of some columns, which stay in registers."""
            first_column = builder.add(first_of_all, _I64(first_vector * v.LANES))

            def step(i, sums):
                new, old = [], iter(sums)
                for odd in range(2):
                    j = builder.add(begin, builder.add(builder.shl(i, _I64(1)), _I64(odd)))
                    start = builder.load(v.element_pointer(context, builder, value_starts, starts, j))
                    at = v.element_pointer(context, builder, values, v_array, start)
                    if prefetches:
                        prefetch(j, first_column)
                    row = _value_lanes(context, builder, values.dtype, at, first_column, at_once, dim)
                    for h in range(num_heads):
                        place = builder.add(builder.add(s_start, builder.mul(s_stride, _I64(h))), j)
                        weight = builder.load(v.element_pointer(context, builder, scores, s_array, place))
                        weight = v.splat_ir(builder, weight)
                        new += [v.fma_ir(builder, weight, lanes, next(old)) for lanes in row]
                return new

            pointers = [sum_pointer(i, first_column) for i in range(2 * num_heads * at_once)]
            old = [v.load_widened(context, builder, sums.dtype, pointer) for pointer in pointers]
            for value, pointer in zip(v.accumulate_ir(builder, end, old, step), pointers, strict=True):
                v.store_ir(builder, value, pointer)

        def prefetch(j, first_column):
            soon = v.element_pointer(context, builder, value_starts, starts, builder.add(j, _I64(VALUES_AHEAD)))
            soon = v.element_pointer(context, builder, values, v_array, builder.load(soon))
            for number in range(0, at_once, v.CACHE_LINE * 8 // (v.LANES * values.dtype.bitwidth)):
                v.prefetch_ir(builder, builder.gep(soon, [builder.add(first_column, _I64(number * v.LANES))]))

        def sum_pointer(i, first_column):
            half_and_head, number = divmod(i, at_once)
            place = builder.add(builder.mul(dim, _I64(half_and_head)), _I64(number * v.LANES))
            place = builder.add(builder.add(o_start, first_column), place)
            return v.element_pointer(context, builder, sums, o_array, place)

        at_once = _that_fit(context, 2 * num_heads, num_vectors)
        for first_vector in range(0, num_vectors, at_once):
            some(first_vector)
        return context.get_dummy_value()

    index = types.intp
    return types.void(
        heads, vectors, ahead, scores, index, index, values, value_starts, index, index, index, sums, index, index
    ), emit  # fmt: skip


@kernel
def cap_scores(scores, first, length, cap):
    """Replace `length` scores from `first` on by c tanh(score / c) (Gemma 2), and up to 15 after them."""
    for i in range(first, first + length, v.LANES):
        v.store(scores, i, v.soft_cap(v.load(scores, i), cap))


@kernel
def softmax(scores, first, length, sink):
    """Turn `length` scores from `first` on into e^(score - highest) in place; zeros after them up to a multiple of 16.

    `sink` is one more score, of a key without a value (`NOTHING` for none). Returns 1 / the sum of all, the factor
    that normalises them.
    """
    padded = (length + v.LANES - 1) // v.LANES * v.LANES
    for i in range(first + length, first + padded):
        scores[i] = NOTHING
    highest = v.splat(sink)
    for i in range(first, first + padded, v.LANES):
        highest = v.maximum(highest, v.load(scores, i))
    top = v.splat(v.max_lanes(highest))
    total = v.splat(np.float32(0))
    for i in range(first, first + padded, v.LANES):
        e = v.exp(v.sub(v.load(scores, i), top))
        v.store(scores, i, e)
        total = v.add(total, e)
    summed = v.sum_lanes(total)
    if sink > NOTHING:
        summed += v.max_lanes(v.exp(v.sub(v.splat(sink), top)))
    return np.float32(1) / summed


def _make_kernels(heads: int):
    """The kernels for `heads` query heads that share a key-value head: scores of pages, and sums of values."""

    @kernel
    def score(near, q, q_start, head_dim, keys, values, page_starts, page, stop, scale, scores, stride, at):
        while page + PAGES_AHEAD <= stop:
            if near:
                _score_pages(
                    heads, PAGES_AHEAD, 0, q, q_start, head_dim, keys, values, page_starts, page, scale, scores, stride,
                    at,
                )  # fmt: skip
            else:
                _score_pages(
                    heads, PAGES_AHEAD, 1, q, q_start, head_dim, keys, values, page_starts, page, scale, scores, stride,
                    at,
                )  # fmt: skip
            page += PAGES_AHEAD
            at += PAGES_AHEAD * PAGE_SIZE
        while page < stop:
            _score_pages(heads, 1, 1, q, q_start, head_dim, keys, values, page_starts, page, scale, scores, stride, at)
            page += 1
            at += PAGE_SIZE

    @kernel
    def mix(near, scores, at, stride, values, value_starts, first, pairs, sums, sums_start, head_dim):
        column = 0
        while column + 64 <= head_dim:
            if near:
                _mix_columns(
                    heads, 4, 0, scores, at, stride, values, value_starts, first, pairs, column, sums, sums_start,
                    head_dim,
                )  # fmt: skip
            else:
                _mix_columns(
                    heads, 4, 1, scores, at, stride, values, value_starts, first, pairs, column, sums, sums_start,
                    head_dim,
                )  # fmt: skip
            column += 64
        while column < head_dim:
            _mix_columns(
                heads, 1, 1, scores, at, stride, values, value_starts, first, pairs, column, sums, sums_start, head_dim
            )
            column += 16

    return score, mix


_score_one, _mix_one = _make_kernels(1)
_score_two, _mix_two = _make_kernels(2)
_score_three, _mix_three = _make_kernels(3)


@kernel(forceinline=True)
def score(heads, near, q, q_start, head_dim, keys, values, page_starts, page, stop, scale, scores, stride, at):
    """scores[at + h * stride + j] = q_h . key_j * scale for the keys j of the pages `page` .. `stop` - 1.

    Args:
        heads: 1 to `MOST_HEADS` query heads; that of head h begins at q[q_start + h * head_dim].
        near: the keys were just read, so what comes next need not be prefetched again; no bit depends on it.
        keys, values, page_starts: flat pages, and where each page begins in both; `PAGES_AHEAD` entries after the last
            one are read, whatever they hold.
    """
    if heads == 1:
        _score_one(near, q, q_start, head_dim, keys, values, page_starts, page, stop, scale, scores, stride, at)
    elif heads == 2:
        _score_two(near, q, q_start, head_dim, keys, values, page_starts, page, stop, scale, scores, stride, at)
    else:
        _score_three(near, q, q_start, head_dim, keys, values, page_starts, page, stop, scale, scores, stride, at)


@kernel(forceinline=True)
def mix(heads, near, scores, at, stride, values, value_starts, first, stop, sums, sums_start, head_dim):
    """Add scores[at + h * stride + j] value_j to head h's sums, for the positions j = `first` .. `stop` - 1.

    `first` is even. Where `stop` is odd, position `stop` must be one of weight 0: it completes the last pair. `near` as
    in `score`.
    """
    pairs = (stop - first + 1) // 2
    if heads == 1:
        _mix_one(near, scores, at, stride, values, value_starts, first, pairs, sums, sums_start, head_dim)
    elif heads == 2:
        _mix_two(near, scores, at, stride, values, value_starts, first, pairs, sums, sums_start, head_dim)
    else:
        _mix_three(near, scores, at, stride, values, value_starts, first, pairs, sums, sums_start, head_dim)


@kernel
def add_halves(sums, start, odd, size, factor):
    """sums[start + i] = (sums[start + i] + sums[odd + i]) * `factor` for i < size: even plus odd positions."""
    factors = v.splat(factor)
    for i in range(size // v.LANES):
        at = i * v.LANES
        both = v.add(v.load(sums, start + at), v.load(sums, odd + at))
        v.store(sums, start + at, v.mul(both, factors))
