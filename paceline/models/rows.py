"""From requests' tokens to the flat batch a model takes: positions, cache slots and tree ancestry of every row.

Used by the engine for the target and by drafters that own a model. Knows pages and parents, not requests or schedulers.
"""

from array import array
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from paceline.models.base import PAGE_SIZE, Rows, slot_of

Logits = Literal["all", "last", "none"]
_AFTER_THE_END = array("i", [-1]).tobytes()


class Part(NamedTuple):
    """The rows of one segment.

    Attributes:
        pages: page table; must cover start + len(tokens) slots.
        start: tokens already in the cache, and the position of the first row.
        tokens: token id per row.
        parents: row (within the part) of each row's parent, -1 for the context's end; None means a chain.
        logits: rows whose logits are requested.
        num_computed: leading rows that an earlier pass has computed in the same slots; they are not run again, but the
            other rows attend to them.
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
    if not any([part.num_computed for part in parts]):
        return rows
    return _without(rows, np.concatenate([np.arange(len(part.tokens)) < part.num_computed for part in parts]))


def _without(rows: Rows, gone: np.ndarray) -> Rows:
    """`rows` without those marked in `gone` [M]; the others keep their slots and ancestors."""
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
    """The batch with every row of every part, computed or not.

    Built in lists and one array: between passes the CPU's caches are full of weights, and each NumPy operation on a
    small array takes ten microseconds.
    """
    tokens, positions, slots, segments, natural, asked = [], [], [], [], [], []
    branches: dict[int, list[int]] = {}
    for segment, part in enumerate(parts):
        first, pages, start = len(tokens), part.pages, part.start
        tokens.extend(part.tokens)  # may be an array, which += would add elementwise
        if len(tokens) == first + 1 and part.logits != "none" and part.parents is None:  # most are a single token
            positions.append(start)
            slots.append(pages[start // PAGE_SIZE] * PAGE_SIZE + start % PAGE_SIZE)
            segments.append(segment)
            natural.append(start + 1)
            asked.append(first)
            continue
        places = range(start, start + len(tokens) - first)
        slots += [pages[at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE for at in places]
        segments += [segment] * len(places)
        positions += places
        natural += range(start + 1, start + 1 + len(places))
        if part.parents is not None:
            _place_branches(part, first, slots, positions, natural, branches)
        if part.logits != "none":
            asked += range(first if part.logits == "all" else len(tokens) - 1, len(tokens))
    aside = np.empty((len(tokens), 0), np.int32)
    if branches:
        aside = _padded([branches.get(row, ()) for row in range(len(tokens))])
    numbers = np.array((tokens, positions, slots, segments, natural), np.int32)
    return Rows(
        token_ids=numbers[0],
        positions=numbers[1],
        slots=numbers[2],
        segments=numbers[3],
        page_tables=_tables([part.pages for part in parts]),
        natural_lengths=numbers[4],
        branch_slots=aside,
        logit_rows=np.array(asked, np.int32),
    )


def _place_branches(
    part: Part, first: int, slots: list[int], positions: list[int], natural: list[int], branches: dict[int, list[int]]
) -> None:
    """Correct positions, natural lengths and branch slots of the tree rows that leave the first branch."""
    for j, parent in enumerate(part.parents or ()):
        row = first + j
        if parent < 0:
            depth, before, tail = 0, part.start, []
        else:
            above = first + parent
            depth = positions[above] - part.start + 1
            before, tail = natural[above], branches.get(above, [])
        positions[row] = part.start + depth
        if depth == j and not tail:
            natural[row] = before + 1
        else:
            natural[row], branches[row] = before, [*tail, slots[row]]


def _tables(pages: Sequence[Sequence[int]]) -> np.ndarray:
    """[S, longest] int32, -1 after the end of each. Tables that are int32 arrays are copied without a look at pages."""
    tables = [one if type(one) is array else array("i", one) for one in pages]
    lengths = [len(one) for one in tables]
    width = max(lengths)
    if min(lengths) < width:
        ends = [_AFTER_THE_END * (width - length) for length in lengths]
        tables = [piece for each in zip(tables, ends, strict=True) for piece in each]
    return np.frombuffer(bytearray().join(tables), np.int32).reshape(len(lengths), width)


def _padded(lists: Sequence[Sequence[int]]) -> np.ndarray:
    """[lists, longest] int32, -1 after the end of each."""
    width = max([len(one) for one in lists])
    return np.array([[*one, *[-1] * (width - len(one))] for one in lists], np.int32)


def compaction(pages: Sequence[int], start: int, rows: Sequence[int]) -> tuple[list[int], list[int]]:
    """(source slots, destination slots) to move an accepted path to consecutive slots from `start` on.

    Args:
        pages, start: as in the `Part` the rows ran in.
        rows: accepted rows of the part in order of depth, the root's row 0 first.
    """
    moved = [
        (slot_of(pages, start + row), slot_of(pages, start + depth)) for depth, row in enumerate(rows) if row != depth
    ]
    return [source for source, _ in moved], [destination for _, destination in moved]
