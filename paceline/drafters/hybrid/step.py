"""Prices of the step that a hybrid drafts for, and separate noise for its children.

Not the place for choosing the drafter (`choice.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.hybrid.child import Child
from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT, Purpose, Randomness
from paceline.speculation.full_step import prices_in
from paceline.speculation.records import DraftRates

LONGEST = 32
"""Longest draft considered for a child with a model."""
_TIE = 1e-12  # a longer draft must win by more than float noise


@dataclass(frozen=True, eq=False, slots=True)
class Best:
    """The best length of a draft, or the best part of a proposal.

    Attributes:
        size: levels of a future draft, or leading nodes of an existing proposal.
        tokens: expected accepted tokens.
        worth: tokens per second with it over tokens per second without.
    """

    size: int
    tokens: float
    worth: float


class StepPrices:
    """Prices of one step, relative to the step without drafts and prefill rows.

    Attributes:
        size: requests that decode.
        plain_seconds: of the step without drafts and prefill rows.
        rows: [levels + 1] prices of steps in which every request verifies 0, 1, ... rows that cost nothing to draft.
        of: by index of each child with a model, prices [levels + 1] of steps in which all requests draft with it.

    Lists are used, because operations on small arrays take ten microseconds between passes.
    """

    def __init__(self, children: Sequence[Child], contexts: Sequence[DraftContext]) -> None:
        batch, most = contexts[0].batch, max(context.budget for context in contexts)
        longest = min(LONGEST, max(context.longest for context in contexts))
        self.size = max(1, batch.num_decodes)
        prices, context = prices_in(batch, children[0]), batch.mean_context
        first = batch.num_prefill_rows + self.size
        seconds = [prices.target(first + self.size * level, context) for level in range(most + 1)]
        if batch.num_prefill_rows:  # which take their time whatever is drafted, see `best_draft.py`
            alone, whole = prices.target(self.size, context), seconds[0]
            seconds = [alone + one - whole for one in seconds]
        self.plain_seconds = plain = seconds[0]
        self.rows = [one / plain for one in seconds]
        self.of = {
            at: [rows + one / plain for rows, one in zip(self.rows, child.draft_seconds(batch, longest), strict=False)]
            for at, child in enumerate(children)
            if not child.is_free
        }

    def best_nodes(self, chances: Sequence[float], spent: float = 0.0) -> Best:
        """The nodes with the most tokens per second, the fewest on ties.

        Args:
            chances: acceptance probability of each node, descending.
            spent: cost of drafting, relative to the step without drafts.
        """
        tokens = list(accumulate(accumulate(chances, min), initial=0.0))[: len(self.rows)]
        worth = [(1 + all_tokens) / (price + spent) for all_tokens, price in zip(tokens, self.rows, strict=False)]
        number = _first_best(worth)
        return Best(number, tokens[number], worth[number])

    def best(self, child: int, rates: DraftRates, longest: int, beside: Best | None = None) -> Best:
        """The length with the most tokens per second, the shortest on ties (Leviathan et al. 2023, theorem 3.8).

        Args:
            beside: part of a free proposal that is verified too, and counts where the draft's first token is rejected.
        """
        prices = self.of[child][: longest + 1]
        survival = list(accumulate(rates.rates(len(prices) - 1), mul))
        tokens = list(accumulate(survival, initial=0.0))
        if beside is not None and survival:
            last, added = len(self.rows) - 1, beside.tokens * (1 - survival[0])
            rows = [self.rows[min(level + beside.size, last)] - self.rows[level] for level in range(len(prices))]
            prices = [price + more for price, more in zip(prices, rows, strict=True)]
            tokens = [number + added for number in tokens]
        worth = [(1 + number) / price for number, price in zip(tokens, prices, strict=True)]
        length = _first_best(worth)
        return Best(length, tokens[length], worth[length])


def _first_best(worth: Sequence[float]) -> int:
    """The index of the largest value, the first among those equal up to rounding."""
    enough = max(worth) * (1 - _TIE)
    return next(place for place, one in enumerate(worth) if one >= enough)


@dataclass(frozen=True, eq=False, slots=True)
class Apart:
    """A request's randomness with node numbers shifted, so that children of a hybrid use different noise."""

    outer: Randomness
    first_node: int

    def coin(self, probability: Any, position: int, node: int) -> bool:
        """See `Randomness`."""
        return self.outer.coin(probability, position, node if node == ROOT else node + self.first_node)

    def draw(self, law: Law, position: int, purpose: Purpose, node: int = ROOT) -> int:
        """See `Randomness`."""
        return self.outer.draw(law, position, purpose, node if node == ROOT else node + self.first_node)

    def exponentials(self, tokens: np.ndarray, position: int, purpose: Purpose, node: int = ROOT) -> np.ndarray:
        """See `Randomness`."""
        return self.outer.exponentials(tokens, position, purpose, node if node == ROOT else node + self.first_node)
