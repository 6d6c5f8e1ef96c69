"""From requests' tokens to the flat batch a model takes: positions, cache slots and tree ancestry of every row.

Used by the engine for the target and by drafters that own a model. Knows pages and parents, not requests or schedulers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np

from paceline.models.base import PAGE_SIZE, Rows, slot_of

Logits = Literal["all", "last", "none"]


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one segment.

    Attributes:
        pages: page table; must cover start + len(tokens) slots.
        start: tokens already in the cache, and the position of the first row.
        tokens: token id per row.
        parents: row (within the part) of each row's parent, -1 for the context's end; None means a chain.
        logits: rows whose logits are wanted.
        num_computed: leading rows that an earlier pass has run at these places: ancestors of the others, not run again.
    """

    pages: Sequence[int]
    start: int
    tokens: Sequence[int]
    parents: Sequence[int] | None = None
    logits: Logits = "all"
    num_computed: int = 0


def build_rows(parts: Sequence[Part]) -> Rows:
    """One flat batch; the rows of part i form segment i, and row j of a part goes to slot start + j of its pages."""
    rows = _all_rows(parts)
    if not any(part.num_computed for part in parts):
        return rows
    return _without(rows, np.concatenate([np.arange(len(part.tokens)) < part.num_computed for part in parts]))


def _without(rows: Rows, gone: np.ndarray) -> Rows:
    """`rows` less those marked in `gone` [M]; those left keep their slots and ancestors."""
    numbers = np.cumsum(~gone) - 1
    asked = rows.logit_rows[~gone[rows.logit_rows]]
    return Rows(
        token_ids=rows.token_ids[~gone],
        positions=rows.positions[~gone],
        slots=rows.slots[~gone],
        segments=rows.segments[~gone],
        page_tables=rows.page_tables,
        natural_lengths=rows.natural_lengths[~gone],
        branch_slots=rows.branch_slots[~gone],
        logit_rows=numbers[asked].astype(np.int32),
    )


def _all_rows(parts: Sequence[Part]) -> Rows:
    """The batch with every row of every part, computed or not."""
    sizes = [len(part.tokens) for part in parts]
    tables = np.full((len(parts), max(len(part.pages) for part in parts)), -1, np.int32)
    for table, part in zip(tables, parts, strict=True):
        table[: len(part.pages)] = part.pages
    first_rows = np.concatenate([[0], np.cumsum(sizes)])
    offsets = np.arange(first_rows[-1]) + np.repeat([part.start for part in parts] - first_rows[:-1], sizes)
    segments = np.repeat(np.arange(len(parts), dtype=np.int32), sizes)
    slots = tables[segments, offsets // PAGE_SIZE] * PAGE_SIZE + offsets % PAGE_SIZE
    positions, natural, branches = offsets.copy(), offsets + 1, {}
    for part, first in zip(parts, first_rows, strict=False):
        if part.parents is not None:
            _place_branches(part, int(first), slots, positions, natural, branches)
    return Rows(
        token_ids=np.fromiter(chain.from_iterable(part.tokens for part in parts), np.int32, len(offsets)),
        positions=positions.astype(np.int32),
        slots=slots.astype(np.int32),
        segments=segments,
        page_tables=tables,
        natural_lengths=natural.astype(np.int32),
        branch_slots=_branch_table(branches, len(offsets)),
        logit_rows=_asked(parts, first_rows),
    )


def _place_branches(part: Part, first: int, slots, positions, natural, branches: dict[int, list[int]]) -> None:
    """Correct what a chain would have got for the rows of a tree that leave its first branch."""
    parents = part.parents or ()
    for j, parent in enumerate(parents):
        row = first + j
        if parent < 0:
            depth, before, tail = 0, part.start, []
        else:
            above = first + parent
            depth = int(positions[above]) - part.start + 1
            before, tail = int(natural[above]), branches.get(above, [])
        positions[row] = part.start + depth
        if depth == j and not tail:
            natural[row] = before + 1
        else:
            natural[row], branches[row] = before, [*tail, int(slots[row])]


def _branch_table(branches: dict[int, list[int]], num_rows: int) -> np.ndarray:
    width = max(map(len, branches.values()), default=0)
    table = np.full((num_rows, width), -1, np.int32)
    for row, slots in branches.items():
        table[row, : len(slots)] = slots
    return table


def _asked(parts: Sequence[Part], first_rows: np.ndarray) -> np.ndarray:
    asked = np.ones(first_rows[-1], bool)
    for part, first, end in zip(parts, first_rows.tolist(), first_rows[1:].tolist(), strict=False):
        if part.logits != "all":
            asked[first : end - (part.logits == "last")] = False
    return np.flatnonzero(asked).astype(np.int32)


def compaction(pages: Sequence[int], start: int, rows: Sequence[int]) -> tuple[list[int], list[int]]:
    """(source slots, destination slots) that bring an accepted path to its natural place after `start`.

    Args:
        pages, start: as in the `Part` the rows ran in.
        rows: accepted rows of the part in order of depth, the root's row 0 first.
    """
    moved = [
        (slot_of(pages, start + row), slot_of(pages, start + depth)) for depth, row in enumerate(rows) if row != depth
    ]
    return [source for source, _ in moved], [destination for _, destination in moved]
