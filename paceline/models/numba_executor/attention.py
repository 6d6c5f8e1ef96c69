"""Attention of one row and a few heads over paged keys and values, branches of a token tree included.

A key page is [head_dim, 16 tokens] and a value page [16 tokens, head_dim] per layer and key-value head. Scores of a
page are sixteen lanes computed at once, each by the same chain of multiply-adds over the head dimension, and everything
behind them runs in order of the *logical* position: so a row gets bit for bit the same result whether its ancestors lie
in one run, in pages far apart or on a branch of a tree. Query heads that share keys and values go together, up to three
at a time, because reading a long context costs more than multiplying it; how many go together changes no bit.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from paceline.models.base import PAGE_SIZE
from paceline.models.numba_executor import vector as v

MOST_HEADS = 3
"""Most query heads in one block: with four pages or columns each they fill 24 of the 32 vector registers of AVX-512."""

_NOTHING = np.float32(-np.inf)
_I64 = ir.IntType(64)


@intrinsic(prefer_literal=True)
def _score_pages(typingctx, heads, pages, q, q_start, head_dim, keys, page_starts, first, scale, scores, stride, at):
    """scores[h * stride + at + j] = q_h . key_j * scale for the keys j of `pages` (a literal) pages from `first` on.

    `heads` is a literal too; query h begins at q[q_start + h * head_dim].
    """
    if not (isinstance(heads, types.IntegerLiteral) and isinstance(pages, types.IntegerLiteral)):
        return None
    num_heads, num_pages = heads.literal_value, pages.literal_value

    def emit(context, builder, sig, args):
        _, _, q_array, q_first, dim, k_array, starts, page, factor, s_array, s_stride, s_at = args

        def start(i):
            pointer = v.element_pointer(context, builder, page_starts, starts, builder.add(page, _I64(i)))
            return v.element_pointer(context, builder, keys, k_array, builder.load(pointer))

        def query(h):
            at = builder.add(q_first, builder.mul(dim, _I64(h)))
            return v.element_pointer(context, builder, q, q_array, at)

        key_pages, queries = [start(i) for i in range(num_pages)], [query(h) for h in range(num_heads)]

        def step(i, sums):
            offset = builder.mul(i, _I64(PAGE_SIZE))
            columns = [v.load_widened(builder, keys.dtype, builder.gep(k, [offset])) for k in key_pages]
            values = [v.splat_ir(builder, builder.load(builder.gep(one, [i]))) for one in queries]
            pairs = [(value, column) for value in values for column in columns]
            return [v.fma_ir(builder, *pair, old) for pair, old in zip(pairs, sums, strict=True)]

        sums = v.accumulate_ir(builder, dim, [v.ZERO] * (num_heads * num_pages), step)
        factors = v.splat_ir(builder, factor)
        for i, value in enumerate(sums):
            head, page_number = divmod(i, num_pages)
            place = builder.add(s_at, builder.add(builder.mul(s_stride, _I64(head)), _I64(page_number * PAGE_SIZE)))
            pointer = v.element_pointer(context, builder, scores, s_array, place)
            v.store_ir(builder, builder.fmul(value, factors), pointer)
        return context.get_dummy_value()

    index = types.intp
    return types.void(
        heads, pages, q, index, index, keys, page_starts, index, types.float32, scores, index, index
    ), emit  # fmt: skip


@intrinsic(prefer_literal=True)
def _mix_columns(
    typingctx, heads, vectors, scores, stride, values, value_starts, pairs, column, out, out_start, head_dim
):
    """out_h[16 `vectors` columns from `column`] = sum_j scores[h * stride + j] value_j over 2 `pairs` positions.

    Even and odd positions are summed apart and added at the end. `heads` and `vectors` are literals.
    """
    if not (isinstance(heads, types.IntegerLiteral) and isinstance(vectors, types.IntegerLiteral)):
        return None
    num_heads, num_vectors = heads.literal_value, vectors.literal_value

    def emit(context, builder, sig, args):
        _, _, s_array, s_stride, v_array, starts, end, first_column, o_array, o_start, dim = args

        def step(i, sums):
            new, old = [], iter(sums)
            for odd in range(2):
                j = builder.add(builder.shl(i, _I64(1)), _I64(odd))
                start = builder.load(v.element_pointer(context, builder, value_starts, starts, j))
                at = v.element_pointer(context, builder, values, v_array, builder.add(start, first_column))
                row = [
                    v.load_widened(builder, values.dtype, builder.gep(at, [_I64(c * v.LANES)]))
                    for c in range(num_vectors)
                ]
                for h in range(num_heads):
                    place = builder.add(builder.mul(s_stride, _I64(h)), j)
                    weight = builder.load(v.element_pointer(context, builder, scores, s_array, place))
                    weight = v.splat_ir(builder, weight)
                    new += [v.fma_ir(builder, weight, lanes, next(old)) for lanes in row]
            return new

        half = num_heads * num_vectors
        sums = v.accumulate_ir(builder, end, [v.ZERO] * (2 * half), step)
        for i, (even, odd) in enumerate(zip(sums[:half], sums[half:], strict=True)):
            head, vector_number = divmod(i, num_vectors)
            place = builder.add(builder.mul(dim, _I64(head)), _I64(vector_number * v.LANES))
            place = builder.add(builder.add(o_start, first_column), place)
            pointer = v.element_pointer(context, builder, out, o_array, place)
            v.store_ir(builder, builder.fadd(even, odd), pointer)
        return context.get_dummy_value()

    index = types.intp
    return types.void(
        heads, vectors, scores, index, values, value_starts, index, index, out, index, index
    ), emit  # fmt: skip


@njit(nogil=True, error_model="numpy")
def _softmax(scores, first, length, padded):
    """Turn `length` scores from `first` on into probabilities in place; zeros up to `padded`, a multiple of 16."""
    for i in range(first + length, first + padded):
        scores[i] = _NOTHING
    highest = v.splat(_NOTHING)
    for i in range(first, first + padded, v.LANES):
        highest = v.maximum(highest, v.load(scores, i))
    top = v.splat(v.max_lanes(highest))
    total = v.splat(np.float32(0))
    for i in range(first, first + padded, v.LANES):
        e = v.exp(v.sub(v.load(scores, i), top))
        v.store(scores, i, e)
        total = v.add(total, e)
    factor = v.splat(np.float32(1) / v.sum_lanes(total))
    for i in range(first, first + padded, v.LANES):
        v.store(scores, i, v.mul(v.load(scores, i), factor))


def _make_block(heads: int):
    """The kernel for `heads` query heads that share a key-value head."""

    @njit(nogil=True, error_model="numpy")
    def score(q, q_start, keys, page_starts, natural, length, places, head_dim, scale, scores, stride):
        num_pages = (natural + PAGE_SIZE - 1) // PAGE_SIZE
        page = 0
        while page + 4 <= num_pages:
            _score_pages(
                heads, 4, q, q_start, head_dim, keys, page_starts, page, scale, scores, stride, page * PAGE_SIZE
            )
            page += 4
        while page < num_pages:
            _score_pages(
                heads, 1, q, q_start, head_dim, keys, page_starts, page, scale, scores, stride, page * PAGE_SIZE
            )
            page += 1
        spare = stride - PAGE_SIZE  # the score of a branch's key is one lane of its page's, computed aside
        for j in range(natural, length):
            _score_pages(
                heads, 1, q, q_start, head_dim, keys, page_starts, num_pages + j - natural, scale, scores, stride, spare
            )
            for head in range(heads):
                scores[head * stride + j] = scores[head * stride + spare + places[j - natural] % PAGE_SIZE]

    @njit(nogil=True, error_model="numpy")
    def block(
        q, q_start, keys, values, page_starts, value_starts, natural, branch_slots, length, head_dim, scale,
        scores, stride, out, out_start,
    ):  # fmt: skip
        score(q, q_start, keys, page_starts, natural, length, branch_slots, head_dim, scale, scores, stride)
        padded = (length + v.LANES - 1) // v.LANES * v.LANES
        for head in range(heads):
            _softmax(scores, head * stride, length, padded)
        pairs = (length + 1) // 2
        column = 0
        while column + 64 <= head_dim:
            _mix_columns(heads, 4, scores, stride, values, value_starts, pairs, column, out, out_start, head_dim)
            column += 64
        while column < head_dim:
            _mix_columns(heads, 1, scores, stride, values, value_starts, pairs, column, out, out_start, head_dim)
            column += 16

    return block


_one_head, _two_heads, _three_heads = (_make_block(heads) for heads in range(1, MOST_HEADS + 1))


@njit(nogil=True, error_model="numpy")
def _locate(page_table, natural, branch_slots, length, page_stride, head_offset, head_dim, page_starts, value_starts):
    """Where the row's key pages and value rows begin: its pages in order, then the page of each branch slot."""
    num_pages = (natural + PAGE_SIZE - 1) // PAGE_SIZE
    for page in range(num_pages):
        start = page_table[page] * page_stride + head_offset
        page_starts[page] = start
        for j in range(PAGE_SIZE):
            value_starts[page * PAGE_SIZE + j] = start + j * head_dim
    for j in range(natural, length):
        slot = branch_slots[j - natural]
        start = slot // PAGE_SIZE * page_stride + head_offset
        page_starts[num_pages + j - natural] = start
        value_starts[j] = start + slot % PAGE_SIZE * head_dim
    value_starts[length] = value_starts[length - 1]  # an odd position more, of weight 0, completes the last pair


@njit(nogil=True, error_model="numpy")
def attend(
    q, q_start, heads, keys, values, page_table, natural, branch_slots, length, page_stride, head_offset, head_dim,
    scale, scores, page_starts, value_starts, out, out_start,
):  # fmt: skip
    """out[heads, head_dim] = softmax(q K) V over the `length` logical positions of one row.

    Args:
        q, q_start: flat queries and where those of the `heads` (1 to `MOST_HEADS`) begin.
        keys, values: flat pages of one layer's cache (see the module); `page_stride` elements per page,
            `head_offset` elements before the heads' key-value head inside a page.
        page_table: page ids of the row's segment; the first `natural` positions lie there in order.
        branch_slots: slots of the positions natural .. length - 1.
        scores, page_starts, value_starts: scratch of at least `MOST_HEADS` times `length` + 96, pages plus branch
            slots, and `length` + 16 entries.
    """
    _locate(page_table, natural, branch_slots, length, page_stride, head_offset, head_dim, page_starts, value_starts)
    stride = len(scores) // MOST_HEADS
    if heads == 1:
        _one_head(
            q, q_start, keys, values, page_starts, value_starts, natural, branch_slots, length, head_dim, scale,
            scores, stride, out, out_start,
        )  # fmt: skip
    elif heads == 2:
        _two_heads(
            q, q_start, keys, values, page_starts, value_starts, natural, branch_slots, length, head_dim, scale,
            scores, stride, out, out_start,
        )  # fmt: skip
    else:
        _three_heads(
            q, q_start, keys, values, page_starts, value_starts, natural, branch_slots, length, head_dim, scale,
            scores, stride, out, out_start,
        )  # fmt: skip


@njit(nogil=True, error_model="numpy")
def weigh_pages(scores, heads, natural, out, out_start, num_pages):
    """out[h * num_pages + page] += what head h of the row just attended gave to each page of its table.

    To be called right behind `attend` with the same `scores`, `heads` and `natural`.
    """
    stride = len(scores) // MOST_HEADS
    for head in range(heads):
        for j in range(natural):
            out[out_start + head * num_pages + j // PAGE_SIZE] += scores[head * stride + j]
