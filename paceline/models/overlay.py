"""Rows that attend to a shared context without writing to its pages, for a model that drafts on its own cache.

The context is in pages of another owner (all of them or, for sparse attention, some); keys and values of drafted tokens
go to slots of the caller. Not for ordinary batches, where rows and context share a page table (`rows.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.models.base import Rows


@dataclass(frozen=True, eq=False, slots=True)
class Overlay:
    """One row.

    Attributes:
        pages: [n] page ids of the context to attend to, in order of position.
        num_keys: keys in those pages; only the last page may be filled in part.
        position: absolute position of the row's token.
        slots: cache slots of the tokens between context and row, in order of position, the row's own slot last.
    """

    token: int
    pages: np.ndarray
    num_keys: int
    position: int
    slots: Sequence[int]


def overlay_rows(rows: Sequence[Overlay]) -> Rows:
    """One flat batch in which each row is a segment of its own and has its logits requested."""
    tables = np.full((len(rows), max(len(row.pages) for row in rows)), -1, np.int32)
    branches = np.full((len(rows), max(len(row.slots) for row in rows)), -1, np.int32)
    for i, row in enumerate(rows):
        tables[i, : len(row.pages)] = row.pages
        branches[i, : len(row.slots)] = row.slots
    numbers = np.arange(len(rows), dtype=np.int32)
    return Rows(
        token_ids=np.array([row.token for row in rows], np.int32),
        positions=np.array([row.position for row in rows], np.int32),
        slots=np.array([row.slots[-1] for row in rows], np.int32),
        segments=numbers,
        page_tables=tables,
        natural_lengths=np.array([row.num_keys for row in rows], np.int32),
        branch_slots=branches,
        logit_rows=numbers,
        num_keys=np.array([row.num_keys + len(row.slots) for row in rows], np.int32),
    )
