"""`Calibration`: maps a drafter's estimated acceptance probabilities to observed acceptance rates.

A product of estimates is too high where their errors are correlated, in particular for nodes selected by that product.
One curve for all requests of a drafter; corrections per request are in `speculation/records.py`. Not for computing the
estimates.
"""

from collections.abc import Sequence

import numpy as np

from paceline.sampling.randomness import ROOT
from paceline.speculation.outcome import RequestOutcome

SAID = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97, 1.0)
FIRST_SEEN = (0.0, 0.035, 0.07, 0.13, 0.25, 0.33, 0.42, 0.55, 0.65, 0.8, 0.9)
"""The initial curve: estimated probabilities and observed acceptance rates of lookups, measured on 50,000 nodes in
chats and completions of the default model."""
_FIRST_WEIGHT, _MOST_WEIGHT = 100.0, 1000.0
"""Initial and largest weight of a point, in nodes."""
_AT_ONCE = 64
"""Batch size of updates, in nodes, which keeps numpy's overhead small."""


class Calibration:
    """A piecewise linear calibration curve, updated with every node whose acceptance is known."""

    def __init__(self) -> None:
        self._seen = np.array(FIRST_SEEN)
        self._weights = np.full(len(SAID), _FIRST_WEIGHT)
        self._said: list[float] = []
        self._accepted: list[bool] = []

    def __call__(self, said: np.ndarray) -> np.ndarray:
        """[nodes] calibrated probabilities of the estimates `said` [nodes]; both in descending order."""
        return np.minimum.accumulate(np.interp(said, SAID, self._seen))

    def judge(
        self, tokens: Sequence[int], parents: Sequence[int], said: Sequence[float], outcome: RequestOutcome
    ) -> None:
        """Learn from a proposal and the outcome of its step.

        Only children of the root or of a verified node are counted. Other nodes would be known only where an ancestor
        was rejected, which would make deep nodes look worse than they are.

        Args:
            tokens, parents, said: tokens, parents and estimates of the proposed tree's nodes, as in `TokenTree`.
        """
        new = outcome.new_tokens
        if not len(new):
            return
        size = outcome.num_draft_tokens
        verified = size if outcome.tokens[:size] == tuple(tokens[:size]) else 0
        depths = {ROOT: 0}  # of the root and the nodes on the text's path
        for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
            if parent >= verified:
                continue
            depth = depths.get(parent, len(new))
            accepted = depth < len(new) and new[depth] == token
            if accepted:
                depths[node] = depth + 1
            self._said.append(said[node])
            self._accepted.append(accepted)
        if len(self._said) >= _AT_ONCE:
            self._learn(np.array(self._said), np.array(self._accepted))
            self._said, self._accepted = [], []

    def _learn(self, said: np.ndarray, accepted: np.ndarray) -> None:
        """Move the two points around each estimate, weighted by proximity."""
        right = np.clip(np.searchsorted(SAID, said), 1, len(SAID) - 1)
        low, high = np.array(SAID)[right - 1], np.array(SAID)[right]
        share = (said - low) / (high - low)
        error = accepted - np.interp(said, SAID, self._seen)
        moved, weight = np.zeros(len(SAID)), np.zeros(len(SAID))
        for points, part in ((right - 1, 1 - share), (right, share)):
            np.add.at(moved, points, part * error)
            np.add.at(weight, points, part)
        self._weights = np.minimum(_MOST_WEIGHT, self._weights + weight)
        self._seen = np.clip(self._seen + moved / self._weights, 0.0, 1.0)
