"""`Steady`: for each request by itself the drafts with the most expected tokens per unit of time, at constant prices.

What a request drafts depends on its own past alone, never on company or on the machine's mood. So a seed says the same
text wherever it runs, under rules whose text depends on where drafts end. Not the place for measured costs or for
batches (`goodput.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from paceline.errors import InvalidParameter
from paceline.scheduling.length.base import DraftLaw, check_least, one_more_pays
from paceline.scheduling.stats import BatchStats, DraftRates, DraftStats, PrefixStats

ROW_COST = 0.05
"""What a further row adds to a pass over one row: 0.03 to 0.08 where the project was measured."""
_SURE = 2
"""Drafters that say how sure they are may go on to so many times the best length, while that pays."""
_TIE = 1e-12  # a longer draft must win by more than float noise


@dataclass(frozen=True, slots=True)
class Steady:
    """The length k with the most expected tokens per price, (1 + a + ... + a^k) / (1 + k (row_cost + draft_cost)).

    Leviathan et al. 2023, theorem 3.8, with a request's own moving acceptance rate a, and rows that are not free. A
    drafter that costs has laws: its drafts may be twice as long, and end where it is unsure.

    Attributes:
        max_length: longest draft considered.
        draft_cost: one drafted token over a target pass of one row; 0 for lookups.
        row_cost: what a further row adds to a target pass, as a share of a pass over one row.
        explore: share of the time that may be lost on drafts which do not promise to pay.
        whole: drafts cannot be shortened without harm; each is taken, at the size it had on average, or left.
    """

    max_length: int = 8
    draft_cost: float = 0.0
    row_cost: float = ROW_COST
    explore: float = 0.02
    whole: bool = False
    asks_beliefs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_least("max_length", self.max_length, 0)
        for name in ("draft_cost", "row_cost"):
            if getattr(self, name) < 0:
                raise InvalidParameter(name, f"{getattr(self, name)} is negative", "give 0 or more")
        if not 0 <= self.explore < 1:
            raise InvalidParameter("explore", f"{self.explore} is not in [0, 1)", "give a share of the time, e.g. 0.02")

    @property
    def promise(self) -> int:
        """Nodes that a request must be able to count on."""
        return self.max_length

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """Each request's own best length; a draft now and then where none pays."""
        return [self._length(request) for request in requests]

    def keep_drafting(self, prefix: PrefixStats, draft_laws: Sequence[DraftLaw]) -> bool:
        """While one more token raises tokens per price; see `one_more_pays`."""
        if self.whole:
            return True
        drafted = len(draft_laws)
        return one_more_pays(draft_laws, prefix.request.rates.acceptance, self.price(drafted), self.price(drafted + 1))

    def price(self, num_draft_tokens: int) -> float:
        """What a step with such a draft costs, in target passes over one row."""
        return 1 + num_draft_tokens * (self.row_cost + self.draft_cost)

    def best_length(self, rates: DraftRates) -> int:
        """The shortest length with the most expected tokens per price, 0 where no draft pays."""
        return self._best(rates)[0]

    def _length(self, request: DraftStats) -> int:
        best, loss = self._best_whole(request) if self.whole else self._best(request.rates)
        if best or not self.max_length:
            return min(_SURE * best, self.max_length) if self.draft_cost else best
        is_due = self.explore * request.steps_since_draft > loss
        return (self.max_length if self.whole else 1) if is_due else 0

    def _best_whole(self, request: DraftStats) -> tuple[int, float]:
        """(everything or nothing, passes that a draft like the latest would lose)."""
        rates, price = request.rates, self.row_cost + self.draft_cost
        tokens, rows = rates.accepted / rates.drafts, rates.nodes / rates.drafts
        pays = tokens > rows * price + _TIE
        return (self.max_length if pays else 0), max(rows, request.last_draft_tokens) * price - tokens

    def _best(self, rates: DraftRates) -> tuple[int, float]:
        """(best length, passes that a draft of one token would lose)."""
        alpha, answer = rates.acceptance, rates.answer
        price = answer * self.row_cost + self.draft_cost
        best, best_rate, tokens, survival = 0, 1.0, 1.0, 1.0
        for length in range(1, self.max_length + 1):
            survival *= alpha
            tokens += answer * survival
            rate = tokens / (1 + length * price)
            if rate > best_rate + _TIE:
                best, best_rate = length, rate
        return best, price - answer * alpha
