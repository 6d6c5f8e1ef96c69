"""`DraftsAhead`: a head's next draft, launched before the engine asks for it, and before the host knows the verdict.

Between two passes the engine fetches a verdict, commits tokens, plans a step, collects hidden states and packs rows,
for as long as a draft takes, while the device waits. What a head with keys of its own is given next is on the device
when a pass ends: the picks of its rows and their states. How many of these count is decided there, too (`verdicts.py`).
So the draft is launched right after the pass, and the pass that verifies it (`Foreseen.verify_after`), before the
answers of the first one are fetched. If the engine asks for another draft, both were wasted; they wrote only to slots
after the last token, which are rewritten before they are read. Not for what a draft computes
(`autoregressive.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from weakref import ref

import numpy as np

from paceline.models.base import PAGE_SIZE, Rows
from paceline.models.chains import ChainDraft, Draws
from paceline.models.cuda_executor.backoff import Backoff
from paceline.models.cuda_executor.begun import are_rows, found_in, have_same_pages
from paceline.models.cuda_executor.fetch import Fetched
from paceline.models.cuda_executor.following_rows import draws_after
from paceline.models.cuda_executor.foreseen import Decided, Told
from paceline.models.cuda_executor.laws.chains import read_draft
from paceline.models.cuda_executor.passes import CudaKVCache
from paceline.models.cuda_executor.verdicts import Pending, chain_template
from paceline.models.states import States, concatenate

Launch = Callable[[Pending, Rows, States, CudaKVCache, int, Draws | None], tuple[Fetched, Told | None]]
"""Launches a draft and its verification, given a `chain_template`; see `CudaAutoregressiveNet.launch_after`."""


class _Asked(NamedTuple):
    """The latest draft that was asked for: its rows, whose logit rows are at positions `ends` [S], and how."""

    rows: Rows
    ends: np.ndarray
    cache: ref[CudaKVCache]
    num_tokens: int
    draws: Draws | None


@dataclass(eq=False, slots=True)
class _Begun:
    """A draft that was launched ahead; `changes` are those of its cache then. `rows` and `draws` are None until the
    host knows the verdict."""

    cache: ref[CudaKVCache]
    changes: int
    num_tokens: int
    fetched: Fetched
    told: Told | None
    rows: Rows | None = None
    draws: Draws | None = None


class DraftsAhead:
    """The drafts of one net.

    Args:
        taps: those that the net reads.
        launch: launches a draft for rows whose states are given as `taps` side by side.

    Attributes:
        num_begun, num_taken: drafts launched ahead, and those of them that were then asked for.
    """

    def __init__(self, taps: tuple[int, ...], launch: Launch) -> None:
        self._taps, self._launch = taps, launch
        self._asked: _Asked | None = None
        self._begun: _Begun | None = None
        self._backoff = Backoff()
        self.num_begun = self.num_taken = 0

    def take(self, rows: Rows, cache: CudaKVCache, num_tokens: int, draws: Draws | None) -> ChainDraft | None:
        """The draft for `rows` if it was launched ahead, else None; arguments as of `launch_chains`."""
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

    def follow(self, pending: Pending | None) -> Decided | None:
        """Launch the draft that follows from a pass of the target which verifies the latest draft; see `Follow`."""
        asked, self._asked = self._asked, None
        cache = None if asked is None else asked.cache()
        if asked is None or cache is None or pending is None or pending.states is None or pending.taps != self._taps:
            return None
        roots = pending.rows.positions[pending.starts]
        if len(roots) != len(asked.ends) or (asked.ends + 1 != roots).any():
            return None
        if asked.draws is not None and pending.sizes.max() + asked.num_tokens + 1 > asked.draws.keys.shape[1]:
            return None
        template = chain_template(pending, asked.rows.page_tables, asked.num_tokens - 1)
        if template is None or self._backoff.passes_over():
            return None
        try:
            fetched, told = self._launch(
                pending, template, _states_of(pending, pending.states), cache, asked.num_tokens, asked.draws
            )
        except Exception:  # it will be raised when the engine asks for that draft; the target's pass has not failed
            return None
        self.num_begun += 1
        begun = self._begun = _Begun(asked.cache, cache.changes, asked.num_tokens, fetched, told)

        def decided(counts: np.ndarray, picks: np.ndarray) -> None:
            begun.rows = _committed(pending, template, counts, picks, asked.num_tokens)
            begun.draws = None if asked.draws is None else draws_after(asked.draws, counts)

        return decided


def _states_of(pending: Pending, states: States) -> States:
    """The states of a pending pass, in order of its rows."""
    places = pending.places
    if (np.diff(places) == 1).all():
        return states[int(places[0]) : int(places[0]) + len(places)]
    firsts = places[pending.starts].tolist()
    return concatenate(
        [states[first : first + size] for first, size in zip(firsts, pending.sizes.tolist(), strict=True)]
    )


def _committed(
    pending: Pending, template: Rows, counts: np.ndarray, picks: np.ndarray, num_tokens: int
) -> Rows | None:  # fmt: skip
    """The rows of a template whose picks were committed; None if the chains of `num_tokens` after them had too few
    pages."""
    tables, ends = template.page_tables, np.cumsum(counts)
    pages = (template.positions[pending.starts] + counts + num_tokens - 2) // PAGE_SIZE + 1
    if pages.max() > tables.shape[1] or ((tables < 0) & (np.arange(tables.shape[1]) < pages[:, None])).any():
        return None
    numbers = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    own = pending.starts[numbers] + np.arange(len(numbers)) - (ends - counts)[numbers]
    return Rows(
        token_ids=picks[own],
        positions=template.positions[own],
        slots=template.slots[own],
        segments=numbers,
        page_tables=tables,
        natural_lengths=template.positions[own] + 1,
        branch_slots=np.empty((len(own), 0), np.int32),
        logit_rows=(ends - 1).astype(np.int32),
    )


def _places(begun: _Begun, rows: Rows, cache: CudaKVCache, num_tokens: int, draws: Draws | None) -> np.ndarray | None:
    """Places of the requests of `rows` in a draft launched ahead; None if it is not the one that is asked for."""
    known = begun.rows
    if known is None or begun.cache() is not cache or begun.changes != cache.changes or num_tokens > begun.num_tokens:
        return None
    if (begun.draws is None) != (draws is None) or len(rows.logit_rows) != len(rows.page_tables):
        return None
    places = found_in(rows.slots[rows.logit_rows], known.slots[known.logit_rows])
    if places is None:
        return None
    own = np.concatenate([np.flatnonzero(known.segments == place) for place in places.tolist()])
    ends = rows.positions[rows.logit_rows]
    # pages before those may have been exchanged for equal ones of other requests
    pages = ends // PAGE_SIZE, (ends + num_tokens - 1) // PAGE_SIZE + 1
    if not are_rows(rows, known, own) or not have_same_pages(rows.page_tables, known.page_tables[places], *pages):
        return None
    if draws is None or begun.draws is None:
        return places
    *options, keys = draws
    *known_options, known_keys = (values[places] for values in begun.draws)
    is_same = all(np.array_equal(*both) for both in zip(options, known_options, strict=True))
    return places if is_same and np.array_equal(keys[:, :num_tokens], known_keys[:, :num_tokens]) else None
