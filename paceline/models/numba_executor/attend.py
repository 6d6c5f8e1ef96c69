"""Attention of rows over their contexts: groups rows and heads that read the same keys and values.

The unit is a block: one row and up to `MOST_HEADS` query heads that share a key-value head. Blocks of one segment and
key-value head are a run: they process its context together, a few pages at a time, so that a long context is read once
for all of them, which saves most of the cost of verifying drafted tokens or of a prompt chunk. With a window a row
reads only the pages of its last keys. Scores and sums of a block are kept in scratch buffers between pages, and the
arithmetic of each block (`attention.py`) is bitwise the same as if it were alone.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (Numba's functions have another signature in compiled code than in Python)

from typing import NamedTuple

import numpy as np

from paceline.models.base import PAGE_SIZE, pages_for
from paceline.models.compiled.kernel import kernel
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.attention import (
    MOST_HEADS,
    NOTHING,
    PAGES_AHEAD,
    add_halves,
    cap_scores,
    mix,
    score,
    softmax,
)
from paceline.models.numba_executor.kv_cache import first_element, page_elements, row_elements
from paceline.models.numba_executor.operand import put

MOST_BLOCKS = 24
"""Most blocks in a run."""

ELEMENTS_AT_ONCE = 4096
"""Elements of keys or values that each block processes before the next pages: 8 to 16 KiB, to stay in an L1 cache that
may be shared with another program."""

ELEMENTS_NEAR = 1 << 16
"""Most elements of keys with which values are prefetched while keys are read: 64 to 256 KiB of each."""

SLACK = 2 * PAGE_SIZE
"""Spare scores after a head's last position: the last page's rest, and a page for branches."""


class AttentionScratch(NamedTuple):
    """Buffers of attention, [threads, ...].

    Attributes:
        scores, sums: of the blocks of a run.
        page_starts, value_starts: where the pages and the values of a context begin.
    """

    scores: np.ndarray
    sums: np.ndarray
    page_starts: np.ndarray
    value_starts: np.ndarray


def new_attention_scratch(num_threads: int, context: int, head_dim: int) -> AttentionScratch:
    """Buffers for contexts of up to `context` tokens."""
    pages, query_heads = pages_for(context), MOST_BLOCKS * MOST_HEADS
    return AttentionScratch(
        scores=np.empty((num_threads, query_heads * (pages * PAGE_SIZE + SLACK)), np.float32),
        sums=np.empty((num_threads, query_heads * 2 * head_dim), np.float32),
        page_starts=np.empty((num_threads, pages + 1 + PAGES_AHEAD), np.int64),
        value_starts=np.empty((num_threads, (pages + 2) * PAGE_SIZE), np.int64),
    )


class Run(NamedTuple):
    """Blocks `first` .. `last` - 1 of [rows, blocks of a group], all of one segment and one key-value head.

    Attributes:
        all_heads: query heads of the model.
        kv_head, group, blocks: the key-value head, its query heads, and the blocks these fall into.
        head_dim, row_size: elements of a query, and of a row of queries, keys and values.
        value_dim: leading elements of a head's sum that are wanted.
        page_start, page_size: first element of the key-value head and this layer in page 0; elements of a page.
        value_size: elements of a token's value, scales included.
        shared, natural: positions that lie in the segment's pages for every row and for some row.
        pages_at_once: pages that each block processes before the next ones.
        stride: distance from the scores of one head to those of the next.
        scale, cap: of scores; a cap of 0 is none.
        window: last keys that a row sees; 0 for all. gate: see `attend_blocks`.
    """

    first: int
    last: int
    all_heads: int
    kv_head: int
    group: int
    blocks: int
    head_dim: int
    value_dim: int
    row_size: int
    page_start: int
    page_size: int
    value_size: int
    shared: int
    natural: int
    pages_at_once: int
    stride: int
    scale: np.float32
    cap: np.float32
    window: int
    gate: int


@kernel
def value_dim(shape):
    """Elements of a head's value; where attention is latent it is cached with zeros up to a key's size."""
    return shape.latent.value if shape.latent.rank > 0 else shape.head_dim


@kernel
def blocks_per_group(shape):
    """Number of blocks of at most `MOST_HEADS` heads for the query heads of one key-value head."""
    return (shape.heads // shape.kv_heads + MOST_HEADS - 1) // MOST_HEADS


@kernel
def blocks_at_once(num_rows, num_segments, num_threads, shape):
    """Blocks that a thread takes at a time: at most an average segment's, so that all threads get as many."""
    blocks = blocks_per_group(shape)
    most = min(MOST_BLOCKS, (num_rows + num_segments - 1) // num_segments * blocks)
    total = num_rows * shape.kv_heads * blocks
    shares = (total + most - 1) // most
    shares = (shares + num_threads - 1) // num_threads * num_threads
    return (total + shares - 1) // shares


@kernel(forceinline=True)
def attend_blocks(first, last, before, window, sinks, gate, thread, shape, batch, scratch, keys, values):
    """Process blocks `first` .. `last` - 1, at most `MOST_BLOCKS`, of a layer's [kv_heads, rows, blocks of a group].

    `shape` is the model's, or the layer's `Heads`; `before` as in `first_element`.
    `sinks` [heads] are scores of keys without values, or empty. `gate` is where a row's gates begin, counted from its
    queries; -1 for none.
    """
    per_head = len(batch.segments) * blocks_per_group(shape)
    while first < last:
        kv_head, start = divmod(first, per_head)
        end = min(start + last - first, per_head)
        run = _first_run(
            start,
            end,
            kv_head,
            first_element(keys, shape, 0, before, kv_head),
            page_elements(keys, shape),
            window,
            gate,
            shape,
            row_elements(keys, shape.head_dim),
            batch.segments,
            batch.natural_lengths,
            batch.num_keys,
        )
        _attend_run(run, sinks, thread, batch, scratch, keys, values)
        first += run.last - run.first


@kernel
def _first_run(
    first, end, kv_head, page_start, page_size, window, gate, shape, value_size, segments, natural_lengths, num_keys
):
    """The first run in blocks `first` .. `end` - 1."""
    blocks, dim = blocks_per_group(shape), shape.head_dim
    row = first // blocks
    segment, shared, natural, longest = segments[row], natural_lengths[row], 0, 0
    while row * blocks < end and segments[row] == segment:
        shared, natural = min(shared, natural_lengths[row]), max(natural, natural_lengths[row])
        longest = max(longest, num_keys[row])
        row += 1
    last, pages = min(row * blocks, end), (longest + PAGE_SIZE - 1) // PAGE_SIZE
    return Run(
        first, last, shape.heads, kv_head, shape.heads // shape.kv_heads, blocks, dim, value_dim(shape), shape.qkv,
        page_start, page_size, value_size, shared, natural,
        pages if last - first == 1 else max(4, ELEMENTS_AT_ONCE // (dim * PAGE_SIZE)), pages * PAGE_SIZE + SLACK,
        shape.attention_scale, shape.attention_cap, window, gate,
    )  # fmt: skip


@kernel(forceinline=True)
def _attend_run(run, sinks, thread, batch, scratch, keys, values):
    lent = scratch.attention
    page_starts, value_starts = lent.page_starts[thread], lent.value_starts[thread]
    scores, sums = lent.scores[thread], lent.sums[thread]
    natural_lengths, num_keys, branch_slots = batch.natural_lengths, batch.num_keys, batch.branch_slots
    _locate_pages(run, batch.page_tables[batch.segments[run.first // run.blocks]], page_starts, value_starts)
    _score_pages(run, scratch.qkv, keys, values, natural_lengths, num_keys, page_starts, scores)
    _finish_scores(run, sinks, scratch.qkv, keys, values, natural_lengths, num_keys, branch_slots, page_starts, scores)
    if len(batch.page_mass) > 0:
        _weigh_pages(run, scores, natural_lengths, num_keys, batch.page_mass, batch.page_tables.shape[1])
    _mix_values(run, values, natural_lengths, num_keys, branch_slots, page_starts, value_starts, scores, sums)
    _put_sums(run, scores, sums, scratch.qkv, scratch.mixed)


@kernel
def _place(block, run):
    """A block's row, first query head, number of heads, and where its scores begin.

    A group's heads are spread evenly over its blocks.
    """
    row, number = divmod(block, run.blocks)
    start, stop = number * run.group // run.blocks, (number + 1) * run.group // run.blocks
    return row, run.kv_head * run.group + start, stop - start, (block - run.first) * MOST_HEADS * run.stride


@kernel
def _is_near(block, run):
    """Whether a block reads what two others of its run have just read and prefetched."""
    return block - run.first >= 2


@kernel
def _factor_place(at, head, run):
    """Index of the factor that normalises the scores of a block's head: the last place of its slack."""
    return at + (head + 1) * run.stride - 1


@kernel
def _first_key(run, num_keys):
    """The first key that a row with `num_keys` of them sees."""
    return max(0, num_keys - run.window) if run.window > 0 else 0


@kernel
def _locate_pages(run, table, page_starts, value_starts):
    """Store where keys and values in the segment's pages begin."""
    for page in range((run.natural + PAGE_SIZE - 1) // PAGE_SIZE):
        start = run.page_start + table[page] * run.page_size
        page_starts[page] = start
        for place in range(PAGE_SIZE):
            value_starts[page * PAGE_SIZE + place] = start + place * run.value_size


@kernel
def _locate_own(run, natural, length, slots, page_starts, value_starts):
    """Store where one row's values begin, from the position on where rows may differ."""
    for j in range(run.shared, natural):
        value_starts[j] = page_starts[j // PAGE_SIZE] + j % PAGE_SIZE * run.value_size
    for j in range(max(run.shared, natural), length):
        page, place = divmod(slots[j - natural], PAGE_SIZE)
        value_starts[j] = run.page_start + page * run.page_size + place * run.value_size
    value_starts[length] = value_starts[length - 1]  # one more position, of weight 0, completes the last pair


@kernel
def _score_pages(run, qkv, keys, values, natural_lengths, num_keys, page_starts, scores):
    """Scores of the segment's pages, for every block from the first page that its row sees to its last."""
    if run.natural * run.head_dim > ELEMENTS_NEAR:
        values = keys  # values prefetched now would be evicted before they are needed
    for page in range(0, (run.natural + PAGE_SIZE - 1) // PAGE_SIZE, run.pages_at_once):
        for block in range(run.first, run.last):
            row, head, heads, at = _place(block, run)
            stop = min(page + run.pages_at_once, (natural_lengths[row] + PAGE_SIZE - 1) // PAGE_SIZE)
            begin = max(page, _first_key(run, num_keys[row]) // PAGE_SIZE)
            q = row * run.row_size + head * run.head_dim
            at += begin * PAGE_SIZE
            if begin < stop:
                score(
                    heads, _is_near(block, run), qkv, q, run.head_dim, keys, values, page_starts, begin, stop,
                    run.scale, scores, run.stride, at,
                )  # fmt: skip


@kernel
def _finish_scores(run, sinks, qkv, keys, values, natural_lengths, num_keys, branch_slots, page_starts, scores):
    """Scores of the rows' branches, then soft cap and `softmax` of all."""
    spare = len(page_starts) - PAGES_AHEAD - 1
    for block in range(run.first, run.last):
        row, head, heads, at = _place(block, run)
        first, aside = _first_key(run, num_keys[row]), at + run.stride - PAGE_SIZE
        natural = natural_lengths[row]
        for j in range(
            max(first, natural), num_keys[row]
        ):  # a branch's key is one lane of its page, which is scored aside
            page, place = divmod(branch_slots[row, j - natural], PAGE_SIZE)
            page_starts[spare] = run.page_start + page * run.page_size
            q = row * run.row_size + head * run.head_dim
            score(
                heads, False, qkv, q, run.head_dim, keys, values, page_starts, spare, spare + 1, run.scale, scores,
                run.stride, aside,
            )  # fmt: skip
            for one in range(heads):
                scores[at + one * run.stride + j] = scores[aside + one * run.stride + place]
        start = first // PAGE_SIZE * PAGE_SIZE
        for one in range(heads):
            head_at = at + one * run.stride + start
            if run.cap > 0:
                cap_scores(scores, head_at, num_keys[row] - start, run.cap)
            scores[head_at : head_at + first - start] = NOTHING
            sink = sinks[head + one] if len(sinks) > 0 else NOTHING
            factor = softmax(scores, head_at, num_keys[row] - start, sink)
            scores[_factor_place(at, one, run)] = factor


@kernel
def _weigh_pages(run, scores, natural_lengths, num_keys, page_mass, num_pages):
    """Add each head's attention to each page of its row's table to page_mass [rows, heads, pages]."""
    for block in range(run.first, run.last):
        row, head, heads, at = _place(block, run)
        for one in range(heads):
            start = (row * run.all_heads + head + one) * num_pages
            factor = scores[_factor_place(at, one, run)]
            for j in range(_first_key(run, num_keys[row]), natural_lengths[row]):
                page_mass[start + j // PAGE_SIZE] += scores[at + one * run.stride + j] * factor


@kernel
def _mix_values(run, values, natural_lengths, num_keys, branch_slots, page_starts, value_starts, scores, sums):
    """sums [blocks, even and odd, heads, head_dim] = the values that a row attends to, weighted and summed.

    First those of whole pages that all rows share, some pages at a time for every block, then each row's own.
    """
    dim, size, own = run.head_dim, 2 * MOST_HEADS * run.head_dim, -1
    shared = run.shared // PAGE_SIZE * PAGE_SIZE
    sums[: (run.last - run.first) * size] = 0
    for first in range(0, shared, run.pages_at_once * PAGE_SIZE):
        stop = min(first + run.pages_at_once * PAGE_SIZE, shared)
        for block in range(run.first, run.last):
            row, _, heads, at = _place(block, run)
            begin = max(first, _first_key(run, num_keys[row]) // PAGE_SIZE * PAGE_SIZE)
            if begin < stop:
                start = (block - run.first) * size
                near = _is_near(block, run)
                mix(heads, near, scores, at, run.stride, values, value_starts, begin, stop, sums, start, dim)
    for block in range(run.first, run.last):
        row, _, heads, at = _place(block, run)
        if row != own:
            _locate_own(run, natural_lengths[row], num_keys[row], branch_slots[row], page_starts, value_starts)
            own = row
        begin = max(shared, _first_key(run, num_keys[row]) // PAGE_SIZE * PAGE_SIZE)
        if begin < num_keys[row]:
            start = (block - run.first) * size
            near = _is_near(block, run)
            mix(heads, near, scores, at, run.stride, values, value_starts, begin, num_keys[row], sums, start, dim)


@kernel
def _gate_sums(sums, start, qkv, gates, size):
    """Multiply sums by the sigmoid of their gates."""
    one, zero = v.splat(np.float32(1)), v.splat(np.float32(0))
    for i in range(0, size, v.LANES):
        gate = v.add(one, v.exp(v.sub(zero, v.load(qkv, gates + i))))
        v.store(sums, start + i, v.div(v.load(sums, start + i), gate))


@kernel
def _put_sums(run, scores, sums, qkv, mixed):
    """Write the normalised and gated sums of the blocks to `mixed`, rows of [heads, value_dim] (`operand.py`)."""
    dim, kept = run.head_dim, run.value_dim
    for block in range(run.first, run.last):
        row, head, heads, at = _place(block, run)
        start = (block - run.first) * 2 * MOST_HEADS * dim
        for one in range(heads):
            even = start + one * dim
            add_halves(sums, even, even + heads * dim, dim, scores[_factor_place(at, one, run)])
            if kept < dim:
                put(mixed, row, run.all_heads * kept, (head + one) * kept, sums, even, kept)
        if run.gate >= 0:
            _gate_sums(sums, start, qkv, row * run.row_size + run.gate + head * dim, heads * dim)
        if kept == dim:
            put(mixed, row, run.all_heads * dim, head * dim, sums, start, heads * dim)
