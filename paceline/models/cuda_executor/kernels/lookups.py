"""Kernels of prompt lookup on the device: keep the tokens of a pass by slot, and make the rows of the pass after it.

The reference of both is in `cuda_executor/lookups.py`.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Triton's types know neither numbers for `tl.constexpr`, nor options of a launch, nor that a sum is one number.

import triton
import triton.language as tl
from torch import Tensor

_BLOCK, _ROWS = 1024, 32
"""Positions of a text that are compared at a time, and most rows of a request."""
_BIG = tl.constexpr(1 << 31)


@triton.jit(do_not_specialize_on_alignment=["tokens", "slots"])
def _remember(tokens, picks, slots, texts):
    row = tl.program_id(0)
    token = tl.load(tokens + row)
    if token < 0:
        token = tl.load(picks - 1 - token)
    tl.store(texts + tl.load(slots + row), token)


@triton.jit
def _text(texts, pages, position, known, PAGE: tl.constexpr):
    """The token at a position that is `known`, else -1."""
    page = tl.load(pages + position // PAGE, mask=known, other=0)
    return tl.load(texts + page * PAGE + position % PAGE, mask=known, other=-1)


@triton.jit(do_not_specialize=["num_rows", "width", "spare_slot", "size"])
def _advance(
    packed, picks, texts, num_rows, width, spare_slot, size, FLAT: tl.constexpr, ROWS: tl.constexpr,
    LONGEST: tl.constexpr, SHORTEST: tl.constexpr, EARLIEST: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """See `lookups.advance`: one program per request, `size` rows each."""
    request, row = tl.program_id(0), tl.arange(0, ROWS)
    inside, pages = row < size, packed + FLAT * num_rows + request * width
    tokens = packed + request * size
    positions, sources = tokens + num_rows, tokens + 2 * num_rows
    limits, lengths = tokens + 3 * num_rows, tokens + 4 * num_rows
    source = tl.load(sources + row, mask=inside, other=-1)
    pick = tl.load(picks + source, mask=source >= 0, other=-1)
    has_next = row < size - 1
    drafted = tl.load(tokens + row + 1, mask=has_next, other=-1)
    is_draft = tl.load(sources + row + 1, mask=has_next, other=-1) >= 0
    accepted = tl.min(tl.where(is_draft & (pick == drafted), ROWS, row), axis=0)
    root = tl.sum(tl.where(row == accepted, pick, 0), axis=0)
    last = tl.load(positions) - size + accepted + 1
    limit = tl.load(limits)

    best = tl.zeros([BLOCK], tl.int64)
    for begin in range(0, last, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        going, matched = at < last, tl.zeros([BLOCK], tl.int32)
        for back in tl.static_range(LONGEST):  # pyright: ignore[reportGeneralTypeIssues]
            wanted = root
            if back > 0:
                before = tl.maximum(last - back, 0)
                page = tl.load(pages + before // PAGE)
                wanted = tl.where(last >= back, tl.load(texts + page * PAGE + before % PAGE), -2)
            going = going & (at >= back)
            going = going & (_text(texts, pages, at - back, going, PAGE) == wanted)
            matched += going.to(tl.int32)
        order = at
        if EARLIEST:
            order = 0x7FFFFFFF - at
        best = tl.maximum(best, tl.where(matched >= SHORTEST, matched.to(tl.int64) * _BIG + order, 0))
    key = tl.max(best, axis=0)
    found = (key % _BIG).to(tl.int32)
    if EARLIEST:
        found = 0x7FFFFFFF - found
    at = tl.where(key > 0, found + row, last + 1)
    repeated = _text(texts, pages, at, inside & (at < last), PAGE)
    token = tl.where((row == 0) | (at == last), root, tl.where(repeated < 0, 0, repeated))

    position = last + row
    is_beyond = position > limit
    position = tl.minimum(position, limit)
    page = tl.load(pages + position // PAGE, mask=inside, other=0)
    tl.debug_barrier()  # all has been read that is written now
    tl.store(tokens + row, token, mask=inside)
    tl.store(positions + row, position, mask=inside)
    tl.store(sources + row, tl.where(is_beyond, spare_slot, page * PAGE + position % PAGE), mask=inside)
    tl.store(limits + row, position + 1, mask=inside)
    tl.store(lengths + row, position + 1, mask=inside)


def remember(tokens: Tensor, picks: Tensor, slots: Tensor, texts: Tensor) -> None:
    """See `Lookups.remember`."""
    _remember[(len(tokens),)](tokens, picks, slots, texts, num_warps=1)


def advance(
    packed: Tensor, picks: Tensor, texts: Tensor, *, num_rows: int, num_requests: int, size: int, width: int, flat: int,
    spare_slot: int, longest: int, shortest: int, earliest: bool, page_size: int,
) -> None:  # fmt: skip
    """See `lookups.advance`."""
    _advance[(num_requests,)](
        packed, picks, texts, num_rows, width, spare_slot, size, FLAT=flat, ROWS=_ROWS, LONGEST=longest,
        SHORTEST=shortest, EARLIEST=earliest, PAGE=page_size, BLOCK=_BLOCK,
    )  # fmt: skip
