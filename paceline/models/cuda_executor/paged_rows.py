"""`PagedRows`: a batch in the layout of the attention kernel, packed into one int32 array that one copy moves.

`flat` holds the locations of a row's keys: for key j below `natural` the page, at index `first_page + j / PAGE_SIZE`;
for later keys the slot itself, at index `first_branch + j - natural`. Rows of one segment without branch slots form a
*tile*, which reads each key once for all of them; a row of a tree branch is a tile of its own. Not for the copy itself
(`staging.py`).
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from paceline.models.base import PAGE_SIZE, Rows

FIELDS: tuple[str, ...] = (
    "token_ids", "positions", "slots", "natural", "lengths", "first_page", "first_branch", "logit_rows", "tile_rows",
    "tile_sizes",
)  # fmt: skip
"""The packed array begins with one line of B numbers per field, followed by `flat`."""
SPLIT_KEYS = 256
"""Keys that one program of the kernel reads; small enough that long contexts fill a device."""


@dataclass(frozen=True, eq=False, slots=True)
class PagedRows:
    """B rows on a device. The last ones may be padding, which writes to a spare slot, has no keys and no logits.

    Attributes:
        token_ids, positions, slots: [B] int32, as of `Rows`.
        first_page, first_branch: [B] int32, indices into `flat`.
        natural: [B] int32, number of leading keys that are found by page.
        lengths: [B] int32, number of keys that the row attends to.
        logit_rows: [B] int32, rows whose logits are requested, then zeros.
        tile_rows, tile_sizes: [B] int32, first row and number of rows of each tile; the number is 0 after the last.
        flat: [n] int32, page tables and slots of branches.
        num_splits: splits of `SPLIT_KEYS` keys that the longest row has, or more.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    first_page: Tensor
    natural: Tensor
    lengths: Tensor
    first_branch: Tensor
    logit_rows: Tensor
    tile_rows: Tensor
    tile_sizes: Tensor
    flat: Tensor
    num_splits: int

    @classmethod
    def of(cls, packed: Tensor, num_rows: int, num_splits: int) -> "PagedRows":
        """Views into `packed`, the array that `pack` wrote for `num_rows` rows, on whatever device it is now."""
        [only] = cls.levels(packed, num_rows, num_splits, 1, packed[len(FIELDS) * num_rows :])
        return only

    @classmethod
    def levels(cls, packed: Tensor, num_rows: int, num_splits: int, num_levels: int, flat: Tensor) -> "list[PagedRows]":
        """Several batches of `num_rows` rows over the same pages `flat`: lines of each in `packed`."""
        lines = packed[: num_levels * len(FIELDS) * num_rows].view(num_levels, len(FIELDS), num_rows)
        own = [dict(zip(FIELDS, each.unbind(), strict=True)) for each in lines.unbind()]
        return [cls(**each, flat=flat, num_splits=num_splits) for each in own]


def packed_size(rows: Rows, num_rows: int) -> int:
    """Numbers that `pack` writes for `rows` padded to `num_rows`."""
    return len(FIELDS) * num_rows + rows.page_tables.size + rows.branch_slots.size


def pack(rows: Rows, num_rows: int, spare_slot: int, tile_size: int, out: np.ndarray) -> None:
    """Write `rows`, padded to `num_rows`, to `out` [packed_size] int32.

    Args:
        spare_slot: receives the keys of padded rows.
        tile_size: most rows of a tile.
    """
    lines = out[: len(FIELDS) * num_rows].reshape(len(FIELDS), num_rows)
    pack_lines(rows, spare_slot, tile_size, lines)
    flat, tables = out[lines.size :], rows.page_tables
    flat[: tables.size] = tables.ravel()
    flat[tables.size :] = rows.branch_slots.ravel()


def pack_lines(rows: Rows, spare_slot: int, tile_size: int, lines: np.ndarray) -> None:
    """Write the numbers of `rows` to `lines` [fields, num_rows], zeros for padded ones; arguments as of `pack`."""
    size = len(rows.token_ids)
    moving = rows.token_ids, rows.positions, rows.slots, rows.natural_lengths, rows.lengths
    lines[: len(moving), size:] = 0
    lines[FIELDS.index("slots"), size:] = spare_slot
    for line, values in zip(lines, moving, strict=False):
        line[:size] = values
    is_aside = rows.natural_lengths != rows.lengths if rows.branch_slots.size else np.zeros(0, bool)
    lines[len(moving) :] = _layout(
        rows.segments.tobytes(), is_aside.tobytes(), rows.logit_rows.tobytes(), rows.page_tables.shape,
        rows.branch_slots.shape[1], tile_size, lines.shape[1],
    )  # fmt: skip


@lru_cache(maxsize=32)
def _layout(
    segments: bytes, is_aside: bytes, logit_rows: bytes, tables: tuple[int, int], width: int, tile_size: int,
    num_rows: int,
) -> np.ndarray:  # fmt: skip
    """[5, num_rows] the lines from `first_page` on, which mostly stay the same from one pass of a request to the next.

    Args:
        segments, logit_rows: as of `Rows`.
        is_aside: as of `tiles`.
        tables: shape of the page tables.
        width: number of branch slots of each row.
        tile_size, num_rows: as of `pack`.
    """
    numbers, asked = np.frombuffer(segments, np.int32), np.frombuffer(logit_rows, np.int32)
    first, sizes = tiles(numbers, np.frombuffer(is_aside, bool), tile_size)
    first_branch = tables[0] * tables[1] + np.arange(len(numbers)) * width
    lines = np.zeros((5, num_rows), np.int32)
    for line, values in zip(lines, (numbers * tables[1], first_branch, asked, first, sizes), strict=True):
        line[: len(values)] = values
    return lines


def pack_levels(rows: Rows, spare_slot: int, lines: np.ndarray) -> None:
    """Write the batches of `levels_below` to `lines` [levels, fields, num_rows], each row a tile of its own; as
    `pack_lines` writes them one after another."""
    num_levels, at, segments = len(lines), rows.positions[rows.logit_rows], rows.segments[rows.logit_rows]
    size, tables = len(at), rows.page_tables
    positions = at + np.arange(1, num_levels + 1, dtype=np.int32)[:, None]
    slots = tables[segments, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
    moving = np.zeros_like(positions), positions, slots, positions + 1, positions + 1
    lines[:, : len(moving), size:] = 0
    lines[:, FIELDS.index("slots"), size:] = spare_slot
    for number, values in enumerate(moving):
        lines[:, number, :size] = values
    numbers = np.arange(size, dtype=np.int32).tobytes()
    lines[:, len(moving) :] = _layout(segments.tobytes(), b"", numbers, tables.shape, 0, 1, lines.shape[2])


def levels_below(rows: Rows, num_levels: int) -> list[Rows]:
    """The rows of chains that continue the logit rows, one batch per level; their tokens are not known yet.

    Level l, from 1, has the rows l positions after the logit rows, in the slots of those positions in the same
    segments. All rows of a level are logit rows.
    """
    at, segments = rows.positions[rows.logit_rows], rows.segments[rows.logit_rows]
    numbers = np.arange(len(at), dtype=np.int32)
    levels = []
    for level in range(1, num_levels + 1):
        positions = at + level
        slots = rows.page_tables[segments, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
        levels.append(
            Rows(numbers * 0, positions, slots, segments, rows.page_tables, positions + 1,
                 np.empty((len(at), 0), np.int32), numbers)
        )  # fmt: skip
    return levels


def tiles(segments: np.ndarray, is_aside: np.ndarray, tile_size: int) -> tuple[np.ndarray, np.ndarray]:
    """(first row [t], number of rows [t]) of the tiles, at most `tile_size` rows each, all rows in one of them.

    Args:
        segments: [M] as of `Rows`.
        is_aside: [M] whether the row has branch slots; empty when none has.
    """
    size = len(segments)
    if tile_size == 1:
        return np.arange(size), np.ones(size, np.int32)
    begins = segments[1:] != segments[:-1]
    if len(is_aside):
        begins |= is_aside[1:] | is_aside[:-1]
    runs = [0, *(begins.nonzero()[0] + 1).tolist(), size]
    edges = [at for start, end in pairwise(runs) for at in range(start, end, tile_size)]
    edges = np.array([*edges, size], np.int32)
    return edges[:-1], edges[1:] - edges[:-1]


def num_splits(rows: Rows, more: int = 0) -> int:
    """Splits that the longest row has, with so many `more` keys, rounded up to a power of two so that few numbers
    occur."""
    splits = -(-(int(rows.lengths.max()) + more) // SPLIT_KEYS)
    return 1 << (splits - 1).bit_length()


def key_slots(paged: PagedRows, row: int) -> Tensor:
    """[lengths[row]] int64: the slots that `row` sees, in order of position; for the twin and for tests."""
    lines = torch.stack([paged.natural, paged.lengths, paged.first_page, paged.first_branch])
    natural, length, first_page, branch = lines[:, row].tolist()
    flat = paged.flat.cpu().numpy().astype(np.int64)
    pages = flat[first_page : first_page - (-natural // PAGE_SIZE), None] * PAGE_SIZE + np.arange(PAGE_SIZE)
    slots = np.concatenate([pages.ravel()[:natural], flat[branch : branch + length - natural]])
    return torch.from_numpy(slots).to(paged.flat.device)
