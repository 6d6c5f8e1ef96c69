"""`Law`: a probability distribution over token ids, stored as its support and probabilities.

A warped distribution is zero almost everywhere, a greedy one everywhere but at one token, so only the support is
stored. The arithmetic works on float64 and equally on `fractions.Fraction` objects, so the exact tests run this code
over rationals. Not the place for logits (`warp.py`) or for randomness (`randomness.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

_CERTAIN = np.ones(1, np.int64)
_CERTAIN.flags.writeable = False


@dataclass(frozen=True, eq=False, slots=True)
class Law:
    """A probability law over token ids.

    Attributes:
        tokens: [k] int64, ascending, unique.
        probs: [k] float64 (or object dtype holding Fractions, or the integer 1 of a one-hot law), positive, summing
            to 1.
    """

    tokens: np.ndarray
    probs: np.ndarray

    @classmethod
    def one_hot(cls, token: int) -> "Law":
        """The law with probability 1 at `token`: greedy targets and deterministic proposals.

        Its probability is the integer 1, which combines with floats and Fractions without changing their type.
        """
        return cls(np.array([token], np.int64), _CERTAIN)

    @classmethod
    def from_dense(cls, probs: np.ndarray) -> "Law":
        """The law of a dense row [vocab]; zeros leave the support."""
        tokens = np.flatnonzero(probs)
        return cls(tokens, probs[tokens])

    @property
    def is_one_hot(self) -> bool:
        """True when a single token has probability 1."""
        return len(self.tokens) == 1

    @property
    def mode(self) -> int:
        """The most probable token, the lowest id on ties."""
        return int(self.tokens[np.argmax(self.probs)])

    def prob(self, token: int) -> Any:
        """Probability of `token`, 0 outside the support."""
        i = int(np.searchsorted(self.tokens, token))
        return self.probs[i] if i < len(self.tokens) and self.tokens[i] == token else 0

    def top(self, num_tokens: int) -> tuple[list[int], list[Any]]:
        """The `num_tokens` most probable tokens (fewer when the support is smaller), lower ids first on ties.

        Returns:
            (tokens, their probabilities), both in descending order of probability.
        """
        probs, size = self.probs, len(self.probs)
        inside = np.arange(size) if num_tokens >= size else probs >= np.partition(probs, size - num_tokens)[-num_tokens]
        tokens, probs = self.tokens[inside], probs[inside]
        order = np.argsort(-probs, kind="stable")[:num_tokens]
        return tokens[order].tolist(), list(probs[order])

    def on(self, tokens: np.ndarray) -> np.ndarray:
        """Probabilities at `tokens` [n] in any order, 0 outside the support."""
        at = np.minimum(np.searchsorted(self.tokens, tokens), len(self.tokens) - 1)
        return np.where(self.tokens[at] == tokens, self.probs[at], 0)

    def overlap(self, other: "Law") -> Any:
        """sum_x min(p(x), q(x)) = 1 - TV(p, q): the probability that one drafted token is accepted.

        Leviathan et al. 2023, theorem 3.5.
        """
        return np.minimum(self.probs, other._spread_over(self.tokens)).sum()

    def rejection_acceptance(self, draft: "Law") -> Any:
        """1 / M with M = max_x p(x) / q(x): the probability that rejection sampling accepts a draw from `draft`.

        0 where `draft` lacks a token of this law. von Neumann 1951; Leviathan et al. 2023, appendix A.2.
        """
        if self.is_one_hot:
            return draft.prob(self.mode)
        return (draft._spread_over(self.tokens) / self.probs).min()

    def excess(self, draft: "Law", scale: Any = 1, draft_scale: Any = 1) -> np.ndarray:
        """max(0, scale * p - draft_scale * q) on this law's support [k], not normalised."""
        return np.maximum(scale * self.probs - draft_scale * draft._spread_over(self.tokens), 0)

    def residual(self, draft: "Law", scale: Any = 1, draft_scale: Any = 1) -> "Law":
        """norm(max(0, scale * p - draft_scale * q)): the residual law after the rejection of a draw from `draft`.

        Leviathan et al. 2023, algorithm 1; the scales are for block verification and lenience. The maximum is zero
        everywhere only where rejection has probability 0; rounding can still lead there, and the result is then this
        law itself.
        """
        return self._keep(self.excess(draft, scale, draft_scale))

    def renamed(self, ids: np.ndarray) -> "Law":
        """This law with token i replaced by `ids[i]`; `ids` [n] int64, ascending."""
        return Law(ids[self.tokens], self.probs)

    def without(self, *tokens: int) -> "Law":
        """This law with `tokens` removed and the rest renormalised; unchanged when nothing would be left."""
        keep = np.ones(len(self.tokens), dtype=bool)
        for token in tokens:
            keep &= self.tokens != token
        return self if keep.all() else self._keep(np.where(keep, self.probs, 0))

    def _keep(self, weights: np.ndarray) -> "Law":
        """The law proportional to `weights` [k] on this support, this law itself when all of them are zero."""
        positive = weights > 0
        if not positive.any():
            return self
        kept = weights[positive]
        return Law(self.tokens[positive], kept / kept.sum())

    def _spread_over(self, support: np.ndarray) -> np.ndarray:
        """`on` for an ascending `support`; looks up the smaller of the two in the larger."""
        if len(support) == len(self.tokens) and np.array_equal(support, self.tokens):
            return self.probs
        if len(support) <= len(self.tokens):
            return self.on(support)
        at = np.minimum(np.searchsorted(support, self.tokens), len(support) - 1)
        hit = support[at] == self.tokens
        spread = np.zeros(len(support), dtype=self.probs.dtype)
        spread[at[hit]] = self.probs[hit]
        return spread


@dataclass(frozen=True, eq=False, slots=True)
class GreedyLaw(Law):
    """The one-hot law of temperature 0 that also gives access to the law at temperature 1.

    Lossy rules and log-probabilities need the latter.

    Attributes:
        smooth: returns the law at temperature 1 after bias, penalties and forbidden tokens, without truncation. Call it
            before the model's next pass.
    """

    smooth: Callable[[], Law]

    def renamed(self, ids: np.ndarray) -> "GreedyLaw":
        """See `Law.renamed`."""
        return GreedyLaw.of(int(ids[self.mode]), lambda: self.smooth().renamed(ids))

    @classmethod
    def of(cls, token: int, smooth: Callable[[], Law]) -> "GreedyLaw":
        """The greedy law at `token`, the mode of `smooth`."""
        return cls(np.array([token], np.int64), _CERTAIN, smooth)
