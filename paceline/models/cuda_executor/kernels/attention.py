"""Paged attention with a tree mask as one Triton kernel: chunks of prompts, decodes and trees in the same launch.

A program takes one tile of rows (`paged_rows.py`), one key head with all query heads that share it, and one split of
`SPLIT_KEYS` consecutive keys; a second kernel adds the splits of each row in ascending order (flash-decoding, Dao et
al. 2023, over the pages of Kwon et al. 2023). Softmax is computed online (Milakov and Gimelshein 2018).

A sink (a key without a value) is added to the sums last.

Row invariance: key number j of a row is in block j / BLOCK_N, of split j / SPLIT_KEYS, whatever else is in the batch.
Tiles have the same shape in every launch, and blocks that are masked for a row do not change its sums (a factor of
exactly 1, a summand of exactly 0). So a row's result is bitwise the same alone, in a chunk, and in a tree.

The reference is `attention.attend_by_position`.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# Triton's types know neither numbers for `tl.constexpr` nor options of a launch, such as `num_stages`.

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.models.base import PAGE_SIZE
from paceline.models.cuda_executor.kernels.dependent import dependent, let_next_begin, wait_for_inputs
from paceline.models.cuda_executor.paged_rows import SPLIT_KEYS, PagedRows
from paceline.models.torch_executor.attention import AttentionForm

_PLACES = ("first_page", "natural_lengths", "lengths", "first_branch", "tile_rows", "tile_sizes", "flat")
"""Arguments whose address depends on the number of rows; the kernel is not recompiled for their alignments."""
_LEAST_QUERIES = 16
"""Fewest rows of a product on tensor cores."""
KEY_BYTES = 32_768
"""Bytes of a block's keys; with its values and scores it fits into 99 KiB of shared memory."""
OLD_KEY_BYTES = 16_384
"""The same for GPUs before compute capability 8.0, where a block of threads shares at most 64 KiB."""


def queries_of_tile(group: int) -> int:
    """Queries per program, rows times the `group` query heads of a key head; the same for every batch."""
    return max(_LEAST_QUERIES, triton.next_power_of_2(group))


def block_keys(width: int, bytes_each: int, queries: int, key_bytes: int = KEY_BYTES) -> tuple[int, int]:
    """(keys per block, warps), by the size of a key and the number of queries."""
    keys = max(16, min(128, key_bytes // (max(width, queries) * bytes_each)))
    return keys, 8 if keys == 128 else 4


@cache
def _key_bytes(device: torch.device) -> int:
    is_old = device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0)
    return OLD_KEY_BYTES if is_old else KEY_BYTES


def rows_of_tile(group: int) -> int:
    """Most rows of a tile."""
    return queries_of_tile(group) // group


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=_PLACES)
def _attend_split(
    query, keys, values, mixed, peaks, totals, out,
    first_page, natural_lengths, lengths, first_branch, tile_rows, tile_sizes, flat, sinks,
    scale, num_rows,
    CAP: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr, KEY_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    QUERIES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT: tl.constexpr, PAGE: tl.constexpr,
    IS_ONLY: tl.constexpr, HAS_SINKS: tl.constexpr, WAITS: tl.constexpr,
):  # fmt: skip
    """One tile, key head and split: unnormalised sums of values, highest scores, sums of weights.

    IS_ONLY: the only split, whose result goes to `out`; rows without keys, which are padding, get zeros.
    """
    tile, key_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    let_next_begin(WAITS)
    size, first_row = tl.load(tile_sizes + tile), tl.load(tile_rows + tile)
    number = tl.arange(0, QUERIES)
    dim = tl.arange(0, BLOCK_D)
    in_head = dim < HEAD_DIM
    if size == 0:
        wait_for_inputs(WAITS)
        if IS_ONLY:  # noqa: SIM102 - decided when the kernel is compiled
            if tl.load(lengths + tile) == 0:
                place = (tile.to(tl.int64) * KEY_HEADS + key_head) * GROUP * HEAD_DIM
                places = place + number[:, None] * HEAD_DIM + dim[None, :]
                tl.store(
                    out + places, tl.zeros([QUERIES, BLOCK_D], out.dtype.element_ty),
                    mask=(number < GROUP)[:, None] & in_head[None, :],
                )  # fmt: skip
        return
    row = first_row + number // GROUP
    alive = number // GROUP < size
    head = key_head * GROUP + number % GROUP
    length = tl.load(lengths + row, mask=alive, other=0)
    longest = tl.max(length, axis=0)
    start = split * SPLIT
    stop = tl.minimum(start + SPLIT, longest)
    lowest = tl.zeros_like(length)
    if WINDOW > 0:
        lowest = tl.maximum(length - WINDOW, 0)
        seen_from = tl.min(tl.where(alive, lowest, longest), axis=0)
        start = start + tl.maximum(seen_from - start, 0) // BLOCK_N * BLOCK_N
    natural = tl.max(tl.load(natural_lengths + row, mask=alive, other=0), axis=0)
    pages = flat + tl.load(first_page + first_row)
    branch = flat + tl.load(first_branch + first_row)
    wait_for_inputs(WAITS)
    if start >= stop:
        return
    place = (row.to(tl.int64) * KEY_HEADS * GROUP + head)[:, None] * HEAD_DIM + dim[None, :]
    q = tl.load(query + place, mask=alive[:, None] & in_head[None, :], other=0.0)
    peak = tl.full([QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    summed = tl.zeros([QUERIES, BLOCK_D], tl.float32)
    for block in range(start, stop, BLOCK_N):
        j = block + tl.arange(0, BLOCK_N)
        exists = j < stop
        in_pages = exists & (j < natural)
        page = tl.load(pages + j // PAGE, mask=in_pages, other=0)
        aside = tl.load(branch + (j - natural), mask=exists & (j >= natural), other=0)
        slot = tl.where(in_pages, page * PAGE + j % PAGE, aside).to(tl.int64)
        at = (slot * KEY_HEADS + key_head) * HEAD_DIM
        k = tl.load(keys + at[None, :] + dim[:, None], mask=exists[None, :] & in_head[:, None], other=0.0)
        v = tl.load(values + at[:, None] + dim[None, :], mask=exists[:, None] & in_head[None, :], other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        if CAP > 0:
            scores = CAP * (2.0 * tl.sigmoid(2.0 * scores / CAP) - 1.0)
        visible = (j[None, :] < length[:, None]) & (j[None, :] >= lowest[:, None]) & exists[None, :]
        scores = tl.where(visible, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, axis=1))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        shrink = tl.exp(peak - base)
        weights = tl.exp(scores - base[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        summed = summed * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        peak = new_peak
    shown = alive[:, None] & in_head[None, :]
    if IS_ONLY:
        if HAS_SINKS:
            sink = tl.load(sinks + head).to(tl.float32)
            top = tl.maximum(peak, sink)
            total = total * tl.exp(peak - top) + tl.exp(sink - top)
            summed = summed * tl.exp(peak - top)[:, None]
        result = summed / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out + place, result.to(out.dtype.element_ty), mask=shown)
    else:
        to = (split * num_rows + row).to(tl.int64) * KEY_HEADS * GROUP + head
        tl.store(peaks + to, peak, mask=alive)
        tl.store(totals + to, total, mask=alive)
        tl.store(mixed + to[:, None] * HEAD_DIM + dim[None, :], summed, mask=shown)


@triton.jit(do_not_specialize=["num_rows"], do_not_specialize_on_alignment=["lengths"])
def _add_splits(
    mixed, peaks, totals, lengths, out, sinks, num_rows,
    WINDOW: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, SPLIT: tl.constexpr,
    HAS_SINKS: tl.constexpr, WAITS: tl.constexpr,
):  # fmt: skip
    """Sum of the splits of a row and query head in ascending order, normalised; 0 for a row without keys."""
    row, head = tl.program_id(0), tl.program_id(1)
    let_next_begin(WAITS)
    length = tl.load(lengths + row)
    wait_for_inputs(WAITS)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(length - WINDOW, 0) // SPLIT
    dim = tl.arange(0, BLOCK_D)
    in_head = dim < HEAD_DIM
    peak = float("-inf")
    total = 0.0
    summed = tl.zeros([BLOCK_D], tl.float32)
    for split in range(first, tl.cdiv(length, SPLIT)):
        at = (split * num_rows + row).to(tl.int64) * HEADS + head
        its_peak = tl.load(peaks + at)
        new_peak = tl.maximum(peak, its_peak)
        shrink, share = tl.exp(peak - new_peak), tl.exp(its_peak - new_peak)
        total = total * shrink + tl.load(totals + at) * share
        summed = summed * shrink + tl.load(mixed + at * HEAD_DIM + dim, mask=in_head, other=0.0) * share
        peak = new_peak
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        top = tl.maximum(peak, sink)
        total = total * tl.exp(peak - top) + tl.exp(sink - top)
        summed = summed * tl.exp(peak - top)
    place = (row.to(tl.int64) * HEADS + head) * HEAD_DIM + dim
    result = summed / tl.where(total == 0.0, 1.0, total)
    tl.store(out + place, result.to(out.dtype.element_ty), mask=in_head)


def paged_attention(query: Tensor, keys: Tensor, values: Tensor, rows: PagedRows, form: AttentionForm) -> Tensor:
    """See `Attends`; padding rows get zeros. All arguments are contiguous and on one device."""
    num_rows, heads, head_dim = query.shape
    key_heads, splits = keys.shape[1], rows.num_splits
    group, block_d = heads // key_heads, max(16, triton.next_power_of_2(head_dim))
    query, out = query.contiguous(), torch.empty_like(query, memory_format=torch.contiguous_format)
    is_only, waits, has_sinks = splits == 1, dependent(query.device), form.sinks is not None
    sinks = out if form.sinks is None else form.sinks
    mixed = peaks = totals = out
    if not is_only:
        mixed = torch.empty(splits, num_rows, heads, head_dim, device=query.device, dtype=torch.float32)
        peaks, totals = torch.empty(2, splits, num_rows, heads, device=query.device, dtype=torch.float32)
    queries = queries_of_tile(group)
    block_n, warps = block_keys(block_d, keys.itemsize, queries, _key_bytes(query.device))
    _attend_split[(num_rows, key_heads, splits)](
        query, keys, values, mixed, peaks, totals, out,
        rows.first_page, rows.natural, rows.lengths, rows.first_branch, rows.tile_rows, rows.tile_sizes, rows.flat,
        sinks, form.scale, num_rows,
        CAP=form.cap, WINDOW=form.window, GROUP=group, KEY_HEADS=key_heads, HEAD_DIM=head_dim,
        QUERIES=queries, BLOCK_N=block_n, BLOCK_D=block_d, SPLIT=SPLIT_KEYS, PAGE=PAGE_SIZE,
        IS_ONLY=is_only, HAS_SINKS=has_sinks, num_stages=1, num_warps=warps, **waits,
    )  # fmt: skip
    if not is_only:
        _add_splits[(num_rows, heads)](
            mixed, peaks, totals, rows.lengths, out, sinks, num_rows,
            WINDOW=form.window, HEADS=heads, HEAD_DIM=head_dim, BLOCK_D=block_d, SPLIT=SPLIT_KEYS,
            HAS_SINKS=has_sinks, **waits,
        )  # fmt: skip
    return out
