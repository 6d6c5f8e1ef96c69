"""Kernels that complete rows with a verdict that only the device knows: of a chain, and of the pass that verifies it.

The reference of both is in `cuda_executor/verdicts.py`.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Triton's types know neither numbers for `tl.constexpr`, nor options of a launch, nor that a sum is one number.

import triton
import triton.language as tl
from torch import Tensor

from paceline.models.base import PAGE_SIZE
from paceline.models.cuda_executor.paged_rows import FIELDS

_ROWS = 32
_FIRST_PAGE, _LOGIT_ROWS = tl.constexpr(FIELDS.index("first_page")), tl.constexpr(FIELDS.index("logit_rows"))


@triton.jit
def _place(lines, num_rows, row, inside, position, pages, width, spare_slot, longest, PAGE: tl.constexpr):
    """See `verdicts._place`, for a block of rows."""
    known = inside & (position < longest) & (position // PAGE < width)
    page = tl.load(pages + position // PAGE, mask=known, other=-1)
    known = known & (page >= 0)
    position = tl.where(known, position, 0)
    own = lines + row + num_rows
    tl.store(own, position, mask=inside)
    tl.store(own + num_rows, tl.where(known, page * PAGE + position % PAGE, spare_slot), mask=inside)
    tl.store(own + 2 * num_rows, position + 1, mask=inside)
    tl.store(own + 3 * num_rows, position + 1, mask=inside)


@triton.jit(do_not_specialize=["num_rows", "num_below", "num_tokens", "num_levels", "width", "spare_slot"])
def _continue_chain(
    packed, picks, accepted, roots, num_rows, num_below, num_tokens, num_levels, width, spare_slot,
    FLAT: tl.constexpr, ROWS: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """See `verdicts._continue_chain`: one program per request. Rows of other requests may be read while these are
    written; what is read there is not used."""
    request, row = tl.program_id(0), tl.arange(0, ROWS)
    lines = packed + num_levels * FLAT * num_below
    start = tl.load(lines + _LOGIT_ROWS * num_rows + request)
    at = start + row
    inside = at < num_tokens
    drafted = tl.load(lines + at, mask=inside, other=-1)
    size = tl.min(tl.where(drafted < 0, row, ROWS), axis=0) + 1
    own = row < size
    pick = tl.load(picks + tl.load(lines + 3 * num_rows + at, mask=own, other=0), mask=own, other=-2)
    count = tl.min(tl.where(pick != drafted, row, ROWS), axis=0)
    root = tl.sum(tl.where(row == count, pick, 0), axis=0)
    position = tl.load(lines + num_rows + at, mask=own, other=0)
    first = tl.load(lines + num_rows + start)
    pages = lines + FLAT * num_rows + tl.load(lines + _FIRST_PAGE * num_rows + start)
    tl.debug_barrier()  # all has been read that is written now
    tl.store(lines + at, pick, mask=own)
    tl.store(lines + 3 * num_rows + at, position + 1, mask=own)
    tl.store(lines + _LOGIT_ROWS * num_rows + request, start + count)
    tl.store(accepted + request, count)
    tl.store(roots + request, root)
    below, at = packed + row * FLAT * num_below, first + count + 1 + row
    _place(below, num_below, request, row < num_levels, at, pages, width, spare_slot, width * PAGE, PAGE)


@triton.jit(do_not_specialize=["num_rows", "size", "level_stride", "request_stride", "width", "spare_slot", "longest"])
def _continue_pass(
    packed, accepted, roots, drafts, num_rows, size, level_stride, request_stride, width, spare_slot, longest,
    FLAT: tl.constexpr, ROWS: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """See `verdicts._continue_pass`: one program per request."""
    request, row = tl.program_id(0), tl.arange(0, ROWS)
    inside, at = row < size, request * size + row
    draft = tl.load(drafts + (row - 1) * level_stride + request * request_stride, mask=inside & (row > 0), other=0)
    token = tl.where(row == 0, tl.load(roots + request), draft.to(tl.int32))
    position = tl.load(packed + num_rows + at, mask=inside, other=0) + tl.load(accepted + request)
    tl.store(packed + at, token, mask=inside)
    pages = packed + FLAT * num_rows + request * width
    _place(packed, num_rows, at, inside, position, pages, width, spare_slot, longest, PAGE)


def continue_chain(
    packed: Tensor, picks: Tensor, accepted: Tensor, roots: Tensor, *, num_rows: int, num_below: int, num_tokens: int,
    num_requests: int, num_levels: int, width: int, spare_slot: int,
) -> None:  # fmt: skip
    """See `verdicts._continue_chain`."""
    _continue_chain[(num_requests,)](
        packed, picks, accepted, roots, num_rows, num_below, num_tokens, num_levels, width, spare_slot,
        FLAT=len(FIELDS), ROWS=_ROWS, PAGE=PAGE_SIZE, num_warps=1,
    )  # fmt: skip


def continue_pass(
    packed: Tensor, accepted: Tensor, roots: Tensor, drafts: Tensor, *, num_rows: int, num_requests: int, width: int,
    spare_slot: int, longest: int,
) -> None:  # fmt: skip
    """See `verdicts._continue_pass`."""
    _continue_pass[(num_requests,)](
        packed, accepted, roots, drafts, num_rows, len(drafts) + 1, *drafts.stride(), width, spare_slot, longest,
        FLAT=len(FIELDS), ROWS=_ROWS, PAGE=PAGE_SIZE, num_warps=1,
    )  # fmt: skip
