"""What a hybrid knows of the step it drafts for: its prices, and noise of their own for its children.

Not the place for deciding who drafts (`hybrid.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.drafters.hybrid_child import Child
from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT, Purpose, Randomness
from paceline.speculation.records import DraftRates

LONGEST = 32
"""Longest draft considered for a child with a model."""
_TIE = 1e-12  # a longer draft must win by more than float noise


@dataclass(frozen=True, eq=False, slots=True)
class Best:
    """The best part of what a child offers to a request.

    Attributes:
        size: levels of a draft that is still to be made, or nodes of a proposal, the first that many.
        tokens: expected besides the target's own.
        worth: tokens per second with it over tokens per second without.
    """

    size: int
    tokens: float
    worth: float


class StepPrices:
    """Prices of one step, relative to the step without drafts.

    Attributes:
        size: requests that decode.
        plain_seconds: of the step without drafts.
        rows: [levels + 1] prices of steps in which every request verifies 0, 1, ... rows that cost nothing to draft.
        of: by the place of each child with a model, the prices [levels + 1] of steps in which all draft with it.
    """

    def __init__(self, children: Sequence[Child], contexts: Sequence[DraftContext]) -> None:
        batch, most = contexts[0].batch, max(context.budget for context in contexts)
        longest = min(LONGEST, max(context.longest for context in contexts))
        self.size = max(1, batch.num_decodes)
        rows = batch.num_prefill_rows + self.size * np.arange(1, most + 2)
        seconds = np.array([children[0].target(num_rows, batch.mean_context) for num_rows in rows.tolist()])
        self.plain_seconds = float(seconds[0])
        self.rows = seconds / self.plain_seconds
        self.of = {
            at: self.rows[: longest + 1] + child.draft_seconds(batch, longest) / self.plain_seconds
            for at, child in enumerate(children)
            if not child.is_free
        }

    def best_nodes(self, chances: Sequence[float], spent: float = 0.0) -> Best:
        """The nodes with the most tokens per second, the fewest on ties.

        Args:
            chances: to be accepted, descending.
            spent: what drafting has cost, over the step without drafts.
        """
        tokens = list(accumulate(accumulate(chances, min), initial=0.0))[: len(self.rows)]
        worth = [
            (1 + all_tokens) / (price + spent) for all_tokens, price in zip(tokens, self.rows.tolist(), strict=False)
        ]
        number = _first_best(worth)
        return Best(number, tokens[number], worth[number])

    def best(self, child: int, rates: DraftRates, longest: int, beside: Best | None = None) -> Best:
        """The length with the most tokens per second, the shortest on ties (Leviathan et al. 2023, theorem 3.8).

        Args:
            beside: nodes of a free proposal that are verified too, and count where the draft's first token fails.
        """
        prices = self.of[child][: longest + 1]
        survival = rates.survival(len(prices) - 1)
        tokens = np.concatenate(([0.0], np.cumsum(survival)))
        if beside is not None and len(survival):
            rows = np.minimum(np.arange(len(prices)) + beside.size, len(self.rows) - 1)
            prices = prices + self.rows[rows] - self.rows[: len(prices)]
            tokens = tokens + beside.tokens * (1 - survival[0])
        worth = (1 + tokens) / prices
        length = _first_best(worth.tolist())
        return Best(length, float(tokens[length]), float(worth[length]))


def _first_best(worth: Sequence[float]) -> int:
    """The place of the largest, the first of those that differ by float noise alone."""
    enough = max(worth) * (1 - _TIE)
    return next(place for place, one in enumerate(worth) if one >= enough)


@dataclass(frozen=True, eq=False, slots=True)
class Apart:
    """A request's randomness with a child's node numbers moved away from its siblings'."""

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
