"""`HiddenStates`: stores the target's hidden states of committed tokens until the head uses them.

States arrive with every step, and stay where they were computed unless there are many. Missing ones (a prompt's prefix
came from the prefix cache, or too many were stored) are recomputed by the target over the request's own pages, which
rewrites identical keys and values. A target with recurrent layers no longer has its states of old places: there the
head reads zeros, which makes its drafts worse but changes no text. Not for running heads (the runners of this folder).
"""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.models.base import CausalLM, KVCache
from paceline.models.rows import Part, build_rows
from paceline.models.states import States, concatenate
from paceline.speculation.outcome import RequestOutcome

Piece = tuple[States, ...]

_MOST = 2048
"""Largest number of tokens with stored states per request; older ones are recomputed if needed."""
_MOST_ROWS_ON_DEVICE = 16_384
"""Rows of passes that states on a device may keep in memory, before all of all requests are fetched: a token keeps the
whole pass that it was computed in, prompts of other requests included. 300 MB with EAGLE-3 beside such a model."""


@dataclass(slots=True)
class _Held:
    """Stored states of positions `first` to `end` - 1, in pieces of [n, hidden] for each tap.

    They are concatenated when a head takes them, not at every step.
    """

    first: int
    end: int
    pieces: deque[Piece] = field(default_factory=deque)

    def add(self, piece: Piece) -> None:
        """Append the states of the tokens from `end` on."""
        self.pieces.append(piece)
        self.end += len(piece[0])

    def fetch(self) -> None:
        """Fetch all states to the host, each stretch on a device at once."""
        stretches = groupby(self.pieces, key=lambda piece: isinstance(piece[0], np.ndarray))
        self.pieces = deque(
            [tuple([np.asarray(states) for states in _by_tap(list(pieces))]) for _, pieces in stretches]
        )

    def drop_before(self, position: int) -> None:
        """Drop the states of tokens before `position`."""
        while self.pieces and self.first < position:
            piece = self.pieces[0]
            gone = min(position - self.first, len(piece[0]))
            self.first += gone
            if gone == len(piece[0]):
                self.pieces.popleft()
            else:
                self.pieces[0] = tuple([states[gone:] for states in piece])


class HiddenStates:
    """States by request.

    Args:
        taps: the target's layers, in the order of concatenation.
        target, cache: for recomputing missing states.
        max_rows: most rows of a recomputing pass.

    Attributes:
        max_positions: of the target.
    """

    def __init__(self, taps: Sequence[int], target: CausalLM, cache: KVCache, max_rows: int = 512) -> None:
        self.taps, self.max_positions = tuple(taps), target.config.max_position_embeddings
        self._target, self._cache, self._max_rows = target, cache, max_rows
        self._zeros = np.zeros((max_rows, target.config.hidden_size), np.float32) if target.config.recurrence else None
        self._held: dict[str, _Held] = {}
        self._tables: WeakValueDictionary[int, Any] = WeakValueDictionary()
        """Tables on a device that stored states are part of, by identity."""

    def observe(self, outcome: RequestOutcome) -> None:
        """Store the states of the tokens that a step computed and committed."""
        if outcome.finished:
            self.release(outcome.request_id)
        elif outcome.taps:
            held = self._held.get(outcome.request_id)
            if held is None or held.end != outcome.first_tapped:
                held = self._held[outcome.request_id] = _Held(outcome.first_tapped, outcome.first_tapped)
            piece = self._piece(outcome.taps)
            held.add(piece)
            held.drop_before(held.end - _MOST)
            if not isinstance(piece[0], np.ndarray):
                self._bound(piece[0].table)

    def _bound(self, table: Any) -> None:
        """Count the table of a new piece; fetch everything when the tables are too large together."""
        if id(table) in self._tables:
            return
        self._tables[id(table)] = table
        if sum([len(each) for each in self._tables.values()]) > _MOST_ROWS_ON_DEVICE:
            for held in self._held.values():
                held.fetch()

    def take(self, context: DraftContext, first: int, last: int) -> States:
        """[last - first, taps * hidden] states of the tokens at positions `first` to `last` - 1.

        All of them must be in the target's cache. Stored states before the last one are dropped.
        """
        held = self._held.get(context.request_id) or _Held(last, last)
        held.drop_before(first)
        before = self._computed(context, first, min(held.first, last))
        after = self._computed(context, max(first, held.end), last)
        states = concatenate(_by_tap([*before, *held.pieces, *after]), axis=1)[: last - first]
        held.drop_before(last - 1)
        return states

    def last(self, request_id: str, position: int) -> States | None:
        """[1, taps * hidden] the state at `position` if it is the latest stored one, else None; earlier ones are
        dropped."""
        held = self._held.get(request_id)
        if held is None or held.end != position + 1:
            return None
        held.drop_before(position)
        return concatenate([states[-1:] for states in held.pieces[-1]], axis=1)

    def release(self, request_id: str) -> None:
        """Forget a request."""
        self._held.pop(request_id, None)

    def _computed(self, context: DraftContext, first: int, last: int) -> list[Piece]:
        """Recompute the states at positions `first` to `last` - 1 by passes of the target; zeros if it cannot."""
        found, tokens = [], context.token_ids
        for start in range(first, last, self._max_rows):
            end = min(start + self._max_rows, last)
            if self._zeros is not None:
                found.append(tuple([self._zeros[: end - start]] * len(self.taps)))
                continue
            part = Part(context.page_table, start, tokens[start:end], logits="none")
            found.append(self._piece(self._target.forward(build_rows([part]), self._cache, self.taps).taps))
        return found

    def _piece(self, taps: Mapping[int, States]) -> Piece:
        return tuple([taps[tap] for tap in self.taps])


def _by_tap(pieces: Collection[Piece]) -> Piece:
    """The states of each tap in consecutive pieces."""
    if len(pieces) == 1:
        return next(iter(pieces))
    return tuple([concatenate(states) for states in zip(*pieces, strict=True)])
