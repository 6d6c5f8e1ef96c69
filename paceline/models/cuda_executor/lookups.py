"""`Lookups`: prompt lookup on the device, so that a pass can be launched before the host knows the drafts in it.

The tokens of every pass are kept by slot, as keys and values are, so a request's text is found by its page table. After
a pass one kernel compares each request's drafts with the picks, takes the accepted ones and the pick after them as its
text, looks up what followed the text's end before, and writes the rows of the next pass. The drafts are those of the
drafter `ngram`; the engine makes them as well and asks for these rows. Not for when to do so (`foreseen.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.models.base import PAGE_SIZE, Rows, slot_of
from paceline.models.cuda_executor.paged_rows import FIELDS, pack, packed_size
from paceline.models.rows import Part, build_rows

TOKENS, POSITIONS, SLOTS, NATURAL, LENGTHS = range(5)
"""Lines of packed rows; see `FIELDS`."""
FEW_ROWS = 32
"""Most rows of a pass that is launched ahead with drafts, not all of which the engine may want. So few cost about as
much as one on a GPU (docs/gpu.md)."""
LONGEST_LOOKED_UP = 16
"""Longest end of a text that the kernel looks up; its size, and the time to compile it, grow with that."""
MADE = 3
"""The first lines, which the host must know to recognise rows that were made on the device."""


@dataclass(eq=False, slots=True)
class Lookups:
    """Prompt lookup over the texts of one cache.

    Attributes:
        longest, shortest, earliest: as `NGram`'s options.
        texts: [slots] int32 on the device, the token of each slot, the spare one included.
        kernels: whether Triton's kernels are used, in place of their reference.
    """

    longest: int
    shortest: int
    earliest: bool
    texts: Tensor
    kernels: bool

    def remember(self, tokens: Tensor, picks: Tensor, slots: Tensor) -> None:
        """Keep the tokens [M] of a pass; -1 - i stands for pick i of the pass before."""
        if self.kernels:
            from paceline.models.cuda_executor.kernels.lookups import remember

            return remember(tokens, picks, slots, self.texts)
        known = torch.where(tokens < 0, picks[(-1 - tokens).clamp_min(0)], tokens)
        self.texts[slots.long()] = known.to(torch.int32)

    def warm_up(self) -> None:
        """Compile the kernels now, not during a request."""
        device = self.texts.device
        none = torch.zeros(1, dtype=torch.int32, device=device)
        self.remember(none, none, none + len(self.texts) - 1)
        template = template_after(build_rows([Part((0,), 0, [0])]), np.zeros(1, np.int64), 1, PAGE_SIZE)
        assert template is not None
        packed = np.zeros(packed_size(template, 2), np.int32)
        pack(template, 2, len(self.texts) - 1, 1, packed)
        self.advancing(template, none, len(self.texts) - 1)(torch.from_numpy(packed).to(device), 2)

    def move(self, sources: Tensor, destinations: Tensor) -> None:
        """Copy the tokens of slots, all reads before any write."""
        self.texts[destinations] = self.texts[sources]

    def advancing(self, template: Rows, picks: Tensor, spare_slot: int) -> Callable[[Tensor, int], None]:
        """A function of packed rows on the device and their padded number, which advances those of a `template`."""
        num_requests, width = template.page_tables.shape
        size = len(template.token_ids) // num_requests
        by_kernel = self.kernels

        def run(packed: Tensor, num_rows: int) -> None:
            how = {
                "num_rows": num_rows, "num_requests": num_requests, "size": size, "width": width, "flat": len(FIELDS),
                "spare_slot": spare_slot, "longest": self.longest, "shortest": self.shortest,
                "earliest": self.earliest, "page_size": PAGE_SIZE,
            }  # fmt: skip
            if by_kernel:
                from paceline.models.cuda_executor.kernels.lookups import advance as advanced

                advanced(packed, picks, self.texts, **how)
            else:
                advance(packed, picks, self.texts, **how)

        return run


def template_after(rows: Rows, own: np.ndarray, num_drafts: int, max_positions: int) -> Rows | None:
    """What `advance` makes the rows of the next pass from; None if the next token of a request has no page yet.

    Args:
        rows: chains, each row a logit row.
        own: [M] places of their picks on the device.
        num_drafts: of each request in the next pass.

    Returns:
        num_drafts + 1 rows per request. `token_ids` are its root and drafts, `slots` the places of their picks, -1
        where it has fewer drafts, `natural_lengths` the last position that has a page, and `positions` those that the
        rows cannot exceed: its own plus num_drafts + 1.
    """
    size, num_requests = num_drafts + 1, len(rows.page_tables)
    starts = np.searchsorted(rows.segments, np.arange(num_requests))
    counts = np.diff([*starts.tolist(), len(rows.segments)])
    limits = (rows.page_tables >= 0).sum(axis=1) * PAGE_SIZE - 1
    if counts.max() > size or (rows.positions[starts] + counts > np.minimum(limits, max_positions - 1)).any():
        return None
    offsets = np.arange(size)
    places = np.where(offsets < counts[:, None], starts[:, None] + np.minimum(offsets, counts[:, None] - 1), -1)
    is_own = places >= 0
    numbers = np.repeat(np.arange(num_requests, dtype=np.int32), size)
    limits = np.minimum(limits, max_positions - 1)
    positions = np.minimum(rows.positions[starts][:, None] + size + offsets, limits[:, None] + size)

    def flat(values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(values, places.shape).reshape(-1).astype(np.int32)

    return Rows(
        token_ids=flat(np.where(is_own, rows.token_ids[places], 0)),
        positions=flat(positions),
        slots=flat(np.where(is_own, own[places], -1)),
        segments=numbers,
        page_tables=rows.page_tables,
        natural_lengths=flat(limits[:, None]),
        branch_slots=np.empty((len(numbers), 0), np.int32),
        logit_rows=np.arange(len(numbers), dtype=np.int32),
    )


def advance(
    packed: Tensor, picks: Tensor, texts: Tensor, *, num_rows: int, num_requests: int, size: int, width: int, flat: int,
    spare_slot: int, longest: int, shortest: int, earliest: bool, page_size: int,
) -> None:  # fmt: skip
    """Turn a template in packed rows into the rows of the next pass, in place: the reference of the kernel.

    A draft is accepted while it is the pick of the row before it. The new root is the pick after the accepted ones; its
    drafts are what followed the latest (or earliest) of the longest repetitions of the text's end, zeros where there
    are none. Rows after the last known page go to the spare slot.

    Args:
        packed: `num_rows` rows, see `paged_rows.pack`, of `num_requests` requests with `size` rows each.
        picks: by place.
        texts: tokens by slot.
        width: of the page tables, which begin after `flat` lines.
    """
    lines = packed[: flat * num_rows].view(flat, num_rows)
    tables = packed[flat * num_rows :][: num_requests * width].view(num_requests, width)
    for request in range(num_requests):
        own = slice(request * size, (request + 1) * size)
        tokens, sources = lines[TOKENS, own].tolist(), lines[SLOTS, own].tolist()
        said = [int(picks[source]) if source >= 0 else -1 for source in sources]
        accepted = 0
        while accepted < size - 1 and sources[accepted + 1] >= 0 and said[accepted] == tokens[accepted + 1]:
            accepted += 1
        last = int(lines[POSITIONS, request * size]) - size + accepted + 1
        limit, pages = int(lines[NATURAL, request * size]), tables[request].tolist()
        text = [int(texts[slot_of(pages, at)]) for at in range(last)] + [said[accepted]]
        drafts = _looked_up(text, longest, shortest, earliest)[: size - 1]
        positions = [min(last + row, limit) for row in range(size)]
        slots = [slot_of(pages, at) if last + row <= limit else spare_slot for row, at in enumerate(positions)]
        made = [[said[accepted], *drafts, *[0] * (size - 1 - len(drafts))], positions, slots]
        lengths = [at + 1 for at in positions]
        for line, values in zip((TOKENS, POSITIONS, SLOTS, NATURAL, LENGTHS), (*made, lengths, lengths), strict=True):
            lines[line, own] = torch.tensor(values, dtype=torch.int32).to(packed.device)


def _looked_up(text: list[int], longest: int, shortest: int, earliest: bool) -> list[int]:
    """The tokens after the place where the end of `text` stood before."""
    for size in range(min(longest, len(text) - 1), shortest - 1, -1):
        ends = [end for end in range(size, len(text)) if text[end - size : end] == text[-size:]]
        if ends:
            return text[ends[0] if earliest else ends[-1] :]
    return []
