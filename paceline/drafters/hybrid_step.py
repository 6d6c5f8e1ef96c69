"""What a hybrid knows of the step it drafts for: its prices, and noise of their own for its children.

Not the place for deciding who drafts (`hybrid.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
class BestLength:
    """A child's best offer to one request.

    Attributes:
        length: levels.
        tokens: expected besides the target's own.
        worth: tokens per second with it over tokens per second without.
    """

    length: int
    tokens: float
    worth: float


class StepPrices:
    """Prices of one step, relative to the step without drafts.

    Attributes:
        size: requests that decode.
        plain_seconds: of the step without drafts.
        of: by the place of each child with a model, the prices [levels + 1] of steps in which all draft with it.
    """

    def __init__(self, children: Sequence[Child], contexts: Sequence[DraftContext]) -> None:
        self._batch, self._prices = contexts[0].batch, children[0]
        longest = min(LONGEST, max(context.longest for context in contexts))
        self.size = max(1, self._batch.num_decodes)
        self.plain_seconds = self._seconds(0)
        self.of = {
            at: child.step_prices(self._batch, longest) / self.plain_seconds
            for at, child in enumerate(children)
            if not child.is_free
        }

    def with_rows(self, num_rows: int) -> float:
        """A step in which every request verifies `num_rows` rows that cost nothing to draft."""
        return self._seconds(num_rows) / self.plain_seconds

    def best(self, child: int, rates: DraftRates, longest: int) -> BestLength:
        """The length with the most tokens per second, the shortest on ties (Leviathan et al. 2023, theorem 3.8)."""
        prices = self.of[child][: longest + 1]
        tokens = np.concatenate(([0.0], np.cumsum(rates.survival(len(prices) - 1))))
        worth = (1 + tokens) / prices
        length = int(np.argmax(worth >= worth.max() * (1 - _TIE)))
        return BestLength(length, float(tokens[length]), float(worth[length]))

    def _seconds(self, num_rows: int) -> float:
        rows = self._batch.num_prefill_rows + self.size * (1 + num_rows)
        return self._prices.target(rows, self._batch.mean_context)


@dataclass(frozen=True, eq=False, slots=True)
class Apart:
    """A request's randomness with a child's node numbers moved away from its siblings'."""

    outer: Randomness
    first_node: int

    def coin(self, probability: Any, position: int, node: int) -> bool:
        return self.outer.coin(probability, position, node if node == ROOT else node + self.first_node)

    def draw(self, law: Law, position: int, purpose: Purpose, node: int = ROOT) -> int:
        return self.outer.draw(law, position, purpose, node if node == ROOT else node + self.first_node)

    def exponentials(self, tokens: np.ndarray, position: int, purpose: Purpose, node: int = ROOT) -> np.ndarray:
        return self.outer.exponentials(tokens, position, purpose, node if node == ROOT else node + self.first_node)
