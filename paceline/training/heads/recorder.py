"""`TapRecorder`: keeps the hidden states of the passes that generate a text, so no further pass computes them."""

from collections.abc import Sequence

import numpy as np

from paceline.drafters.base import BaseDrafter, DraftContext
from paceline.models.files.bfloat16 import to_bfloat16
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.traits import DrafterTraits


class TapRecorder(BaseDrafter):
    """A drafter that drafts nothing and records hidden states.

    Args:
        taps: states to record, in this order.
    """

    name = "tap_recorder"

    def __init__(self, taps: Sequence[int]) -> None:
        self.traits = DrafterTraits(taps=tuple(taps))
        self._pieces: dict[str, list[np.ndarray]] = {}
        self._ends: dict[str, int] = {}

    def watch(self, request_id: str) -> None:
        """Record the states of this request from its first token on."""
        self._pieces[request_id], self._ends[request_id] = [], 0

    def take(self, request_id: str) -> np.ndarray | None:
        """Remove and return the states of a request: [tokens, taps, hidden] uint16 (bfloat16), None with a gap."""
        pieces, end = self._pieces.pop(request_id, []), self._ends.pop(request_id, -1)
        return np.concatenate(pieces) if pieces and end >= 0 else None

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """Empty trees."""
        return [TokenTree()] * len(contexts)

    def observe(self, outcome: RequestOutcome) -> None:
        """Record the states of a step; those that a preempted request computes again replace the earlier ones.

        After a gap in the positions the request has no states.
        """
        end = self._ends.get(outcome.request_id, -1)
        if not outcome.taps or end < 0:
            return
        states = np.stack([outcome.taps[tap] for tap in self.traits.taps], axis=1)
        first, pieces = outcome.first_tapped, self._pieces[outcome.request_id]
        if first < end:
            pieces[:] = [np.concatenate(pieces)[:first]]
        self._ends[outcome.request_id] = first + len(states) if first <= end else -1
        pieces.append(to_bfloat16(states))
