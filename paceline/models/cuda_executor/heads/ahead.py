"""`DraftsAhead`: a head's next draft, launched when the target's verdict is known and before the engine asks for it.

Between a verdict and the next draft the engine commits tokens, plans a step and collects hidden states, on a slow
processor for as long as a draft takes. What a head with keys of its own is given next follows from the verdict: the
committed tokens, the states of their rows, and pages that it had before. So the draft is launched at once, and the pass
that verifies it too (`Foreseen.verify`). If the engine asks for another draft, both were wasted; they wrote only to
slots after the last token, which are rewritten before they are read. Not for what a draft computes (`nets.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from weakref import ref

import numpy as np
from torch import Tensor

from paceline.models.base import PAGE_SIZE, Rows
from paceline.models.chains import ChainDraft, Draws
from paceline.models.cuda_executor.backoff import Backoff
from paceline.models.cuda_executor.fetch import Fetched
from paceline.models.cuda_executor.following_rows import Verdict
from paceline.models.cuda_executor.foreseen import Told
from paceline.models.cuda_executor.laws.chains import read_draft
from paceline.models.cuda_executor.passes import CudaKVCache
from paceline.models.states import States, concatenate

Launch = Callable[[Rows, States, CudaKVCache, int, Draws | None], Tensor]
"""Launches a draft; see `CudaAutoregressiveNet.launch_chains`."""
Begin = Callable[[Tensor, Draws | None], tuple[Fetched, Told | None]]
"""Begins to fetch the table of a draft, and to verify it."""


class _Asked(NamedTuple):
    """The latest draft that was asked for: its rows, whose logit rows are at positions `ends` [S], and how."""

    rows: Rows
    ends: np.ndarray
    cache: ref[CudaKVCache]
    num_tokens: int
    draws: Draws | None


@dataclass(frozen=True, eq=False, slots=True)
class _Begun:
    """A draft that was launched ahead; `changes` are those of its cache then."""

    rows: Rows
    cache: ref[CudaKVCache]
    changes: int
    num_tokens: int
    draws: Draws | None
    fetched: Fetched
    told: Told | None


class DraftsAhead:
    """The drafts of one net.

    Args:
        taps: those that the net reads.
        launch: launches a draft for rows whose states are given as `taps` side by side.
        begin: see `Begin`.

    Attributes:
        num_begun, num_taken: drafts launched ahead, and those of them that were then asked for.
    """

    def __init__(self, taps: tuple[int, ...], launch: Launch, begin: Begin) -> None:
        self._taps, self._launch, self._begin = taps, launch, begin
        self._asked: _Asked | None = None
        self._begun: _Begun | None = None
        self._backoff = Backoff()
        self.num_begun = self.num_taken = 0

    def take(self, rows: Rows, cache: CudaKVCache, num_tokens: int, draws: Draws | None) -> ChainDraft | None:
        """The draft for `rows` if it was launched ahead, else None; arguments as of `launch`."""
        begun, self._begun = self._begun, None
        self._asked = _Asked(rows, rows.positions[rows.logit_rows], ref(cache), num_tokens, draws)
        if begun is None:
            return None
        places = _places(begun, rows, cache, num_tokens, draws)
        self._backoff.note(places is not None)
        if places is None:
            return None
        self.num_taken += 1
        draft = read_draft(begun.fetched)
        if begun.told is not None:
            begun.told(draft.tokens)
        return ChainDraft(draft.tokens[places, :num_tokens], draft.top_probs[places, :num_tokens])

    def follow(self, verdict: Verdict | None) -> None:
        """Launch the draft that follows from a pass of the target, where it verified the latest draft; see `Follow`."""
        asked, self._asked = self._asked, None
        cache = None if asked is None else asked.cache()
        if asked is None or cache is None or verdict is None:
            return
        if verdict.states is None or verdict.taps != self._taps:
            return
        roots, counts = verdict.roots.positions, verdict.counts
        if len(roots) != len(asked.ends) or (asked.ends + 1 + counts != roots).any():
            return
        if self._backoff.passes_over():
            return
        rows, draws = _rows_after(asked, verdict), _draws_after(asked, counts)
        if rows is None or (asked.draws is not None and draws is None):
            return
        starts = verdict.starts.tolist()
        states = [verdict.states[start : start + count] for start, count in zip(starts, counts.tolist(), strict=True)]
        try:
            table = self._launch(rows, concatenate(states), cache, asked.num_tokens, draws)
            fetched, told = self._begin(table, draws)
        except Exception:  # it will be raised when the engine asks for that draft; the target's pass has not failed
            return
        self.num_begun += 1
        self._begun = _Begun(rows, asked.cache, cache.changes, asked.num_tokens, draws, fetched, told)


def _rows_after(asked: _Asked, verdict: Verdict) -> Rows | None:
    """The rows of the tokens that a verdict commits, after those of the latest draft; None if a page is unknown."""
    counts, tables = verdict.counts, asked.rows.page_tables
    numbers = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    ends = np.cumsum(counts)
    offsets = np.arange(len(numbers)) - (ends - counts)[numbers]
    positions = (asked.ends[numbers] + 1 + offsets).astype(np.int32)
    pages = (asked.ends + counts + asked.num_tokens - 1) // PAGE_SIZE + 1
    if pages.max() > tables.shape[1] or ((tables < 0) & (np.arange(tables.shape[1]) < pages[:, None])).any():
        return None
    return Rows(
        token_ids=verdict.picks[verdict.starts[numbers] + offsets],
        positions=positions,
        slots=tables[numbers, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE,
        segments=numbers,
        page_tables=tables,
        natural_lengths=positions + 1,
        branch_slots=np.empty((len(numbers), 0), np.int32),
        logit_rows=(ends - 1).astype(np.int32),
    )


def _draws_after(asked: _Asked, counts: np.ndarray) -> Draws | None:
    """The draws of the latest draft `counts` [S] tokens later; None if a noise key is unknown."""
    draws = asked.draws
    if draws is None or counts.max() + asked.num_tokens + 1 > draws.keys.shape[1]:
        return None
    last = draws.keys.shape[1] - 1
    return draws._replace(
        keys=np.take_along_axis(draws.keys, np.minimum(counts[:, None] + np.arange(last + 1), last), 1)
    )


def _places(begun: _Begun, rows: Rows, cache: CudaKVCache, num_tokens: int, draws: Draws | None) -> list[int] | None:
    """Places of the requests of `rows` in a draft launched ahead; None if it is not the one that is asked for."""
    if begun.cache() is not cache or begun.changes != cache.changes or num_tokens > begun.num_tokens:
        return None
    if (begun.draws is None) != (draws is None) or len(rows.logit_rows) != len(rows.page_tables):
        return None
    known = begun.rows
    place_of = {slot: place for place, slot in enumerate(known.slots[known.logit_rows].tolist())}
    places = [place_of.get(slot, -1) for slot in rows.slots[rows.logit_rows].tolist()]
    if -1 in places:
        return None
    own = np.concatenate([np.flatnonzero(known.segments == place) for place in places])
    for name in ("slots", "positions", "token_ids"):
        if not np.array_equal(getattr(rows, name), getattr(known, name)[own]):
            return None
    ends = rows.positions[rows.logit_rows]
    first, pages = (ends // PAGE_SIZE)[:, None], (ends + num_tokens - 1) // PAGE_SIZE + 1
    width = min(rows.page_tables.shape[1], known.page_tables.shape[1])
    if pages.max() > width:
        return None
    differs = rows.page_tables[:, :width] != known.page_tables[places, :width]
    is_written = (np.arange(width) >= first) & (np.arange(width) < pages[:, None])
    if (differs & is_written).any():  # earlier pages may have been exchanged for equal ones of other requests
        return None
    if draws is None or begun.draws is None:
        return places
    *options, keys = draws
    *known_options, known_keys = (values[places] for values in begun.draws)
    is_same = all(np.array_equal(*both) for both in zip(options, known_options, strict=True))
    return places if is_same and np.array_equal(keys[:, :num_tokens], known_keys[:, :num_tokens]) else None
