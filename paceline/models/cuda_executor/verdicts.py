"""`Verdicts`: rows whose places depend on a verdict that only the device knows yet.

How many drafts a pass accepts decides where the next draft begins, and where the pass begins that verifies it. So that
both can be launched before the host knows, their rows are packed as templates, and a kernel completes them on the
device: positions, slots and lengths move on by the number of accepted drafts. Not for when to do so (`foreseen.py`,
`heads/ahead.py`), nor for rows of prompt lookup (`lookups.py`).
"""

from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from paceline.models.base import PAGE_SIZE, Rows
from paceline.models.cuda_executor.paged_rows import FIELDS, pack, pack_levels, packed_size
from paceline.models.cuda_executor.passes import Advance, AdvanceChain, CudaKVCache
from paceline.models.cuda_executor.staging import LARGEST
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor.device_states import DeviceStates

MOST_ROWS = 32
"""Most rows of a request's chain, and most levels after it."""
_TOKENS, _POSITIONS, _SLOTS, _NATURAL, _LENGTHS = range(5)
_FIRST_PAGE, _LOGIT_ROWS = FIELDS.index("first_page"), FIELDS.index("logit_rows")


class Pending(NamedTuple):
    """A pass over chains of rows, one for each of S requests, whose picks the host does not know yet.

    Attributes:
        rows: its rows.
        starts: [S] the first row of each chain.
        cache: of the pass.
        places: [M] of the picks of the rows, on the device, and of their states.
        picks: by place, on the device.
        taps, states: of the pass, side by side; None without taps.
        verdicts: for what follows.
    """

    rows: Rows
    starts: np.ndarray
    cache: CudaKVCache
    places: np.ndarray
    picks: Tensor
    taps: tuple[int, ...]
    states: DeviceStates | None
    verdicts: "Verdicts"

    @property
    def sizes(self) -> np.ndarray:
        """[S] rows of each chain."""
        return np.diff(self.starts, append=len(self.rows.slots))


class Draft(NamedTuple):
    """Chains that were launched, for each of S requests.

    Attributes:
        tokens: [levels, S] on the device, of any number format.
        keys: [S, levels + 1 or more] int64 on the device, the noise of each token, and of one more; None for the most
            probable tokens.
    """

    tokens: Tensor
    keys: Tensor | None


@dataclass(frozen=True, eq=False, slots=True)
class Verdicts:
    """What is known on the device of the latest verdict, and completes templates with it.

    Attributes:
        accepted, roots: [LARGEST] int32 by request, accepted drafts and the pick after them; written by `chain_after`.
        kernels: whether Triton's kernels are used, in place of their reference.
    """

    accepted: Tensor
    roots: Tensor
    kernels: bool

    @classmethod
    def on(cls, device: torch.device, kernels: bool) -> "Verdicts":
        """Of a device."""
        accepted, roots = torch.zeros(2, LARGEST, dtype=torch.int32, device=device)
        return cls(accepted, roots, kernels)

    def chain_after(self, template: Rows, picks: Tensor, num_levels: int, spare_slot: int) -> AdvanceChain:
        """Completes a packed `chain_template` and the `num_levels` levels after it, and keeps the verdict.

        Args:
            picks: by place.
            spare_slot: receives the keys of rows that have no page.
        """
        how = {"num_tokens": len(template.slots), "num_requests": len(template.logit_rows), "num_levels": num_levels}
        how |= {"width": template.page_tables.shape[1], "spare_slot": spare_slot}
        if self.kernels:
            from paceline.models.cuda_executor.kernels.verdicts import continue_chain
        else:
            continue_chain = _continue_chain

        def run(packed: Tensor, num_rows: int, num_below: int) -> None:
            continue_chain(packed, picks, self.accepted, self.roots, num_rows=num_rows, num_below=num_below, **how)

        return run

    def pass_after(self, template: Rows, draft: Draft, spare_slot: int, longest: int) -> Advance:
        """Completes a packed `pass_template` with a draft that `chain_after` began.

        Args:
            spare_slot: as there.
            longest: positions must be below it; rows beyond are as those without a page.
        """
        how = {"num_requests": len(template.page_tables), "width": template.page_tables.shape[1]}
        how |= {"spare_slot": spare_slot, "longest": longest}
        if self.kernels:
            from paceline.models.cuda_executor.kernels.verdicts import continue_pass
        else:
            continue_pass = _continue_pass

        def run(packed: Tensor, num_rows: int) -> None:
            continue_pass(packed, self.accepted, self.roots, draft.tokens, num_rows=num_rows, **how)

        return run

    def warm_up(self, picks: Tensor) -> None:
        """Compile the kernels now, not during a request; `picks` as of `Pending`, of which one is read."""
        rows, first, device = build_rows([Part((0,), 0, [0])]), np.zeros(1, np.int64), picks.device
        pending = Pending(rows, first, cast(CudaKVCache, None), first, picks, (), None, self)  # no cache is read
        chain, following = chain_template(pending, rows.page_tables, 1), pass_template(pending, 1)
        assert chain is not None and following is not None
        packed = np.zeros(packed_size(chain, 1) + len(FIELDS), np.int32)
        pack_levels(chain, 0, packed[: len(FIELDS)].reshape(1, len(FIELDS), 1))
        pack(chain, 1, 0, 1, packed[len(FIELDS) :])
        self.chain_after(chain, picks, 1, 0)(torch.from_numpy(packed).to(device), 1, 1)
        packed = np.zeros(packed_size(following, 2), np.int32)
        pack(following, 2, 0, 1, packed)
        draft = Draft(torch.zeros(1, 1, dtype=torch.float64, device=device), None)
        self.pass_after(following, draft, 0, PAGE_SIZE)(torch.from_numpy(packed).to(device), 2)

    def keys_after(self, keys: Tensor, count: int) -> Tensor:
        """[S, count] of keys [S, more], from the token after the new root on."""
        first = self.accepted[: len(keys), None].long() + 1
        return keys.gather(1, first + torch.arange(count, device=keys.device))


def chain_template(pending: Pending, page_tables: np.ndarray, num_levels: int) -> Rows | None:
    """Rows of a head with keys of its own, which reads each token with the state before it: those of a pass, with their
    picks as tokens. None if one of them has no page, or the levels after the first row have none; or if rows or levels
    are too many.

    Those after the accepted drafts are not of the text, but their keys are rewritten before they are read.

    Args:
        page_tables: [S, width] of the head's cache.
        num_levels: of the chain after these rows.

    Returns:
        `token_ids` are the drafts that the picks must equal to accept them, -1 at the end of each chain;
        `natural_lengths` the places of picks; `logit_rows` the first row of each chain.
    """
    rows, width = pending.rows, page_tables.shape[1]
    if len(page_tables) != len(pending.starts) or max(pending.sizes.max(), num_levels) > MOST_ROWS:
        return None
    index = rows.positions // PAGE_SIZE
    if index.max() >= width or (rows.positions[pending.starts].max() + num_levels) // PAGE_SIZE >= width:
        return None
    if (pages := page_tables[rows.segments, index]).min() < 0:
        return None
    tokens = np.append(rows.token_ids[1:], np.int32(-1))
    tokens[pending.starts[1:] - 1] = -1
    return Rows(
        token_ids=tokens,
        positions=rows.positions,
        slots=pages * PAGE_SIZE + rows.positions % PAGE_SIZE,
        segments=rows.segments,
        page_tables=page_tables,
        natural_lengths=pending.places.astype(np.int32),
        branch_slots=np.empty((len(tokens), 0), np.int32),
        logit_rows=pending.starts.astype(np.int32),
    )


def pass_template(pending: Pending, num_drafts: int) -> Rows | None:
    """The pass after `pending`, with `num_drafts` drafts for each request; None if there are too many.

    Its positions are those after a verdict that accepts no draft.
    """
    size, num_requests = num_drafts + 1, len(pending.starts)
    if size > MOST_ROWS:
        return None
    offsets = np.arange(1, size + 1, dtype=np.int32)
    nothing = np.zeros(num_requests * size, np.int32)
    return Rows(
        token_ids=nothing,
        positions=(pending.rows.positions[pending.starts][:, None] + offsets).reshape(-1),
        slots=nothing,
        segments=np.repeat(np.arange(num_requests, dtype=np.int32), size),
        page_tables=pending.rows.page_tables,
        natural_lengths=nothing,
        branch_slots=np.empty((len(nothing), 0), np.int32),
        logit_rows=np.arange(len(nothing), dtype=np.int32),
        num_keys=nothing + int(pending.rows.positions.max()) + 1 + size,
    )


def _continue_chain(
    packed: Tensor, picks: Tensor, accepted: Tensor, roots: Tensor, *, num_rows: int, num_below: int, num_tokens: int,
    num_requests: int, num_levels: int, width: int, spare_slot: int,
) -> None:  # fmt: skip
    """Turn packed templates of a chain into rows, in place: the reference of the kernel.

    Args:
        packed: `num_levels` levels of `num_below` rows, then a `chain_template` of `num_tokens` rows, padded to
            `num_rows`, and page tables `width` wide; see `Staging.place_chain`.
        accepted, roots: where the verdict is kept.
        picks, spare_slot: as of `Verdicts.chain_after`.
    """
    size = num_levels * len(FIELDS) * num_below
    levels = packed[:size].view(num_levels, len(FIELDS), num_below)
    lines = packed[size:][: len(FIELDS) * num_rows].view(len(FIELDS), num_rows)
    tables = packed[size + lines.numel() :]
    starts = lines[_LOGIT_ROWS, :num_requests].tolist()
    for request, (start, end) in enumerate(zip(starts, [*starts[1:], num_tokens], strict=True)):
        own = slice(start, end)
        said = picks[lines[_NATURAL, own].long()].int()
        agrees = (said == lines[_TOKENS, own]).tolist()
        count = agrees.index(False)
        first, pages = int(lines[_POSITIONS, start]), tables[int(lines[_FIRST_PAGE, start]) :][:width]
        lines[_TOKENS, own], lines[_NATURAL, own] = said, lines[_POSITIONS, own] + 1
        lines[_LOGIT_ROWS, request] = start + count
        accepted[request], roots[request] = count, said[count]
        for level in range(num_levels):
            _place(levels[level], request, first + count + 1 + level, pages, spare_slot, width * PAGE_SIZE)


def _continue_pass(
    packed: Tensor, accepted: Tensor, roots: Tensor, drafts: Tensor, *, num_rows: int, num_requests: int, width: int,
    spare_slot: int, longest: int,
) -> None:  # fmt: skip
    """Turn a packed `pass_template` into rows, in place: the reference of the kernel; arguments as above, and `longest`
    as of `Verdicts.pass_after`."""
    size = len(drafts) + 1
    lines = packed[: len(FIELDS) * num_rows].view(len(FIELDS), num_rows)
    tables = packed[lines.numel() :]
    for request in range(num_requests):
        for row in range(size):
            at = request * size + row
            lines[_TOKENS, at] = drafts[row - 1, request].int() if row else roots[request]
            position = int(lines[_POSITIONS, at]) + int(accepted[request])
            _place(lines, at, position, tables[request * width :][:width], spare_slot, longest)


def _place(lines: Tensor, row: int, position: int, table: Tensor, spare_slot: int, longest: int) -> None:
    """Write the place of a row at `position` to its lines; without a page it writes to the spare slot and reads one
    key."""
    page = int(table[position // PAGE_SIZE]) if position // PAGE_SIZE < len(table) and position < longest else -1
    at, slot = (position, page * PAGE_SIZE + position % PAGE_SIZE) if page >= 0 else (0, spare_slot)
    lines[_POSITIONS, row], lines[_SLOTS, row], lines[_NATURAL, row], lines[_LENGTHS, row] = at, slot, at + 1, at + 1
