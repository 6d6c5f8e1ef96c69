"""Which rows follow which: tells predictable passes from others, and makes the rows of the pass after one.

Not for when to launch a pass (`foreseen.py`), nor for rows that are made on the device (`lookups.py`, `verdicts.py`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.models.base import PAGE_SIZE, Rows
from paceline.models.chains import Draws
from paceline.models.cuda_executor.laws import picks_of
from paceline.sampling.answered import LARGEST, Question


class Roots(NamedTuple):
    """Where each request's next pass begins.

    Attributes:
        positions, tokens: [S] of its first row.
        page_tables: [S, width] as of `Rows`.
    """

    positions: np.ndarray
    tokens: np.ndarray
    page_tables: np.ndarray


def is_plain(rows: Rows, questions: Sequence[Question | None]) -> bool:
    """Whether each request has one row, without branches, and a pick of an unedited law is requested."""
    size = len(rows.slots)
    if not size == len(rows.logit_rows) == len(rows.page_tables) or rows.branch_slots.size:
        return False
    if rows.num_keys is not None or (rows.segments != np.arange(size)).any():
        return False
    return all([each is not None and each.edits is None and not each.trials for each in questions])


def are_chains(rows: Rows, questions: Sequence[Question | None]) -> bool:
    """Whether each request has a chain of rows, and picks of unedited laws are requested of all."""
    if len(rows.logit_rows) != len(rows.slots) or rows.branch_slots.size or rows.num_keys is not None:
        return False
    return all([each is not None and each.edits is None and not each.trials for each in questions])


def starts_of(rows: Rows) -> np.ndarray:
    """[S] the first row of each segment."""
    if len(rows.slots) == len(rows.page_tables):
        return np.arange(len(rows.slots))
    return np.searchsorted(rows.segments, np.arange(len(rows.page_tables)))


def depth_of(rows: Rows, starts: np.ndarray) -> int:
    """Most drafts of a request, in chains of rows that begin at `starts` [S]."""
    if len(rows.slots) == len(starts):
        return 0
    return int(np.diff(starts, append=len(rows.slots)).max()) - 1


def roots_after(rows: Rows, starts: np.ndarray, table: np.ndarray) -> Roots:
    """Where each segment's next pass begins, given the answers to chains of rows that begin at `starts` [S]."""
    picks = picks_of(table).astype(np.int32)
    if len(rows.slots) == len(starts):
        return Roots(rows.positions + 1, picks, rows.page_tables)
    said, tokens, begins, lasts = picks.tolist(), rows.token_ids.tolist(), starts.tolist(), []
    for start, end in zip(begins, [*begins[1:], len(tokens)], strict=True):
        last = start
        while last + 1 < end and said[last] == tokens[last + 1]:
            last += 1
        lasts.append(last)
    return Roots(rows.positions[lasts] + 1, picks[lasts], rows.page_tables)


def chains_after(roots: Roots, num_drafts: int, max_positions: int) -> Rows | None:
    """A chain from each root, whose draft l of request r is pick r * `num_drafts` + l on the device (see
    `CudaModel.launch`); None if a page is unknown."""
    size, num_requests = num_drafts + 1, len(roots.positions)
    numbers, offsets = np.repeat(np.arange(num_requests, dtype=np.int32), size), np.arange(size, dtype=np.int32)
    positions = (roots.positions[:, None] + offsets).reshape(-1).astype(np.int32)
    index = positions // PAGE_SIZE
    if positions.max() >= max_positions or index.max() >= roots.page_tables.shape[1]:
        return None
    pages = roots.page_tables[numbers, index]
    if pages.min() < 0:
        return None
    drafts = -1 - np.arange(num_requests * num_drafts, dtype=np.int32).reshape(num_requests, num_drafts)
    return Rows(
        token_ids=np.concatenate([roots.tokens[:, None], drafts], axis=1).reshape(-1),
        positions=positions,
        slots=pages * PAGE_SIZE + positions % PAGE_SIZE,
        segments=numbers,
        page_tables=roots.page_tables,
        natural_lengths=positions + 1,
        branch_slots=np.empty((len(numbers), 0), np.int32),
        logit_rows=np.arange(len(numbers), dtype=np.int32),
    )


def draws_after(draws: Draws, counts: np.ndarray) -> Draws:
    """The draws of chains `counts` [S] tokens later; at the end, where no more keys are known, the last one again."""
    last = draws.keys.shape[1] - 1
    index = np.minimum(counts[:, None] + np.arange(last + 1), last)
    return draws._replace(keys=np.take_along_axis(draws.keys, index, 1))


def questions_of(draws: Draws | None, num_requests: int, num_drafts: int) -> list[Question] | None:
    """What is asked of the rows of `chains_after`, for chains that were drawn so; None if a noise key is unknown."""
    if draws is None:
        return [LARGEST] * (num_requests * (num_drafts + 1))
    if draws.keys.shape[1] <= num_drafts:
        return None
    options = zip(*(values.tolist() for values in draws[:-1]), draws.keys.tolist(), strict=True)
    return [
        Question(temperature, min_p, int(top_k), top_p, None, key) if temperature else LARGEST
        for temperature, min_p, top_k, top_p, keys in options
        for key in keys[: num_drafts + 1]
    ]
