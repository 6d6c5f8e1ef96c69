"""Attention of one row and one head over paged keys and values, branches of a token tree included.

A key page is [head_dim, 16 tokens] and a value page [16 tokens, head_dim] per layer and key-value head. Scores of a
page are sixteen lanes computed at once, each by the same chain of multiply-adds over the head dimension, and everything
behind them runs in order of the *logical* position: so a row gets bit for bit the same result whether its ancestors lie
in one run, in pages far apart or on a branch of a tree.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

import numpy as np
from numba import njit

from paceline.models.base import PAGE_SIZE
from paceline.models.numba_executor import vector as v

_NOTHING = np.float32(-np.inf)


@njit(nogil=True, error_model="numpy")
def _four_pages(q, q_start, keys, page_starts, at, head_dim, scale, scores, position):
    """Scores of 64 keys in four pages, four chains at a time to keep the multiply-add units busy."""
    a = b = c = d = v.splat(np.float32(0))
    k0, k1, k2, k3 = page_starts[at], page_starts[at + 1], page_starts[at + 2], page_starts[at + 3]
    for i in range(head_dim):
        value = v.splat(q[q_start + i])
        a = v.fma(value, v.load(keys, k0 + i * PAGE_SIZE), a)
        b = v.fma(value, v.load(keys, k1 + i * PAGE_SIZE), b)
        c = v.fma(value, v.load(keys, k2 + i * PAGE_SIZE), c)
        d = v.fma(value, v.load(keys, k3 + i * PAGE_SIZE), d)
    factor = v.splat(scale)
    v.store(scores, position, v.mul(a, factor))
    v.store(scores, position + PAGE_SIZE, v.mul(b, factor))
    v.store(scores, position + 2 * PAGE_SIZE, v.mul(c, factor))
    v.store(scores, position + 3 * PAGE_SIZE, v.mul(d, factor))


@njit(nogil=True, error_model="numpy")
def _one_page(q, q_start, keys, start, head_dim, scale):
    """Scores of the sixteen keys of one page."""
    a = v.splat(np.float32(0))
    for i in range(head_dim):
        a = v.fma(v.splat(q[q_start + i]), v.load(keys, start + i * PAGE_SIZE), a)
    return v.mul(a, v.splat(scale))


@njit(nogil=True, error_model="numpy")
def _softmax(scores, length, padded):
    """Turn scores[:length] into probabilities in place, sixteen lanes at a time; zeros up to `padded`."""
    for i in range(length, padded):
        scores[i] = _NOTHING
    highest = v.splat(_NOTHING)
    for i in range(0, padded, v.LANES):
        highest = v.maximum(highest, v.load(scores, i))
    top = v.splat(v.max_lanes(highest))
    total = v.splat(np.float32(0))
    for i in range(0, padded, v.LANES):
        e = v.exp(v.sub(v.load(scores, i), top))
        v.store(scores, i, e)
        total = v.add(total, e)
    factor = v.splat(np.float32(1) / v.sum_lanes(total))
    for i in range(0, padded, v.LANES):
        v.store(scores, i, v.mul(v.load(scores, i), factor))


@njit(nogil=True, error_model="numpy")
def _mix_64(scores, values, value_starts, length, column, out, out_start):
    """out[64 columns] = sum_j scores[j] * value_j, even and odd positions in two chains."""
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = v.splat(np.float32(0))
    for j in range(0, length - 1, 2):
        p, q = v.splat(scores[j]), v.splat(scores[j + 1])
        s, t = value_starts[j] + column, value_starts[j + 1] + column
        a0 = v.fma(p, v.load(values, s), a0)
        a1 = v.fma(p, v.load(values, s + 16), a1)
        a2 = v.fma(p, v.load(values, s + 32), a2)
        a3 = v.fma(p, v.load(values, s + 48), a3)
        b0 = v.fma(q, v.load(values, t), b0)
        b1 = v.fma(q, v.load(values, t + 16), b1)
        b2 = v.fma(q, v.load(values, t + 32), b2)
        b3 = v.fma(q, v.load(values, t + 48), b3)
    if length % 2 == 1:
        p, s = v.splat(scores[length - 1]), value_starts[length - 1] + column
        a0 = v.fma(p, v.load(values, s), a0)
        a1 = v.fma(p, v.load(values, s + 16), a1)
        a2 = v.fma(p, v.load(values, s + 32), a2)
        a3 = v.fma(p, v.load(values, s + 48), a3)
    v.store(out, out_start, v.add(a0, b0))
    v.store(out, out_start + 16, v.add(a1, b1))
    v.store(out, out_start + 32, v.add(a2, b2))
    v.store(out, out_start + 48, v.add(a3, b3))


@njit(nogil=True, error_model="numpy")
def _mix_16(scores, values, value_starts, length, column, out, out_start):
    """out[16 columns] = sum_j scores[j] * value_j."""
    a = v.splat(np.float32(0))
    for j in range(length):
        a = v.fma(v.splat(scores[j]), v.load(values, value_starts[j] + column), a)
    v.store(out, out_start, a)


@njit(nogil=True, error_model="numpy")
def _score(
    q, q_start, keys, page_starts, natural, branch_slots, page_stride, head_offset, length, head_dim, scale, scores
):
    """scores[j] = q . key_j * scale for logical positions j < length."""
    num_pages = (natural + PAGE_SIZE - 1) // PAGE_SIZE
    page = 0
    while page + 4 <= num_pages:
        _four_pages(q, q_start, keys, page_starts, page, head_dim, scale, scores, page * PAGE_SIZE)
        page += 4
    while page < num_pages:
        v.store(scores, page * PAGE_SIZE, _one_page(q, q_start, keys, page_starts[page], head_dim, scale))
        page += 1
    for j in range(natural, length):
        slot = branch_slots[j - natural]
        start = slot // PAGE_SIZE * page_stride + head_offset
        scores[j] = v.lane(_one_page(q, q_start, keys, start, head_dim, scale), slot % PAGE_SIZE)


@njit(nogil=True, error_model="numpy")
def attend(
    q, q_start, keys, values, page_table, natural, branch_slots, length, page_stride, head_offset, head_dim, scale,
    scores, page_starts, value_starts, out, out_start,
):  # fmt: skip
    """out[head_dim] = softmax(q . K) V over the `length` logical positions of one row, for one head.

    Args:
        q, q_start: flat queries and where this head's begin.
        keys, values: flat pages of one layer's cache (see the module); `page_stride` elements per page,
            `head_offset` elements before this key-value head inside a page.
        page_table: page ids of the row's segment; the first `natural` positions lie there in order.
        branch_slots: slots of the positions natural .. length - 1.
        scores, page_starts, value_starts: scratch of at least `length` + 80, pages, and `length` entries.
    """
    for page in range((natural + PAGE_SIZE - 1) // PAGE_SIZE):
        start = page_table[page] * page_stride + head_offset
        page_starts[page] = start
        for j in range(PAGE_SIZE):
            value_starts[page * PAGE_SIZE + j] = start + j * head_dim
    for j in range(natural, length):
        slot = branch_slots[j - natural]
        value_starts[j] = slot // PAGE_SIZE * page_stride + head_offset + slot % PAGE_SIZE * head_dim
    _score(
        q, q_start, keys, page_starts, natural, branch_slots, page_stride, head_offset, length, head_dim, scale, scores
    )
    _softmax(scores, length, (length + v.LANES - 1) // v.LANES * v.LANES)
    column = 0
    while column + 64 <= head_dim:
        _mix_64(scores, values, value_starts, length, column, out, out_start + column)
        column += 64
    while column < head_dim:
        _mix_16(scores, values, value_starts, length, column, out, out_start + column)
        column += 16
