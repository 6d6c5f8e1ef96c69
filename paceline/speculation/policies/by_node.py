"""`GoodputByNode`: goodput for drafters that say how likely each node of a proposal is to be accepted.

Such a drafter is asked first, and then those nodes are verified that pay. What is left to decide beforehand is whether
asking is worth its own time. For drafters that say nothing of their nodes see `goodput.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from paceline.speculation.best_draft import worth_verifying
from paceline.speculation.policies.goodput import Goodput
from paceline.speculation.records import BatchStats, DraftStats

_USUAL_MEMORY, _FIRST_SAVING = 0.98, 2.0
"""What proposals for anybody save is remembered for about 50 of them; before the first they are taken to save twice
their price, so that 6 in vain are made for a request that is alone, and 2 for each of 16."""


_SMALL_SHARE = 0.05
"""Part of a step up to which everybody is asked: a few proposals in vain say little of a text, and to find out by looks
alone that it has begun to repeat itself takes long."""


@dataclass(slots=True, eq=False)
class GoodputByNode(Goodput):
    """The nodes with the most expected tokens per second of all requests together (`worth_verifying`), none when none
    pay.

    Where asking takes a noticeable part of the step, a request whose proposals save less than it takes to make them is
    not asked, and from time to time looked at, or asked where proposals may be drawn. What is drawn says nothing of its
    nodes and is verified whole.
    """

    _usual: float | None = field(default=None, init=False, repr=False)

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """All nodes for a request whose proposals are worth making, none for others."""
        price, usual = self.prices.draft_level(0, 1), self._usual_saving()
        step = self.prices.target(batch.num_prefill_rows + max(1, batch.num_decodes), batch.mean_context)
        self._credit += self.explore * step
        if price * len(requests) <= _SMALL_SHARE * step:
            return [self.max_length] * len(requests)
        saved = [request.estimates.expected_saving(usual) for request in requests]
        budgets = [self.max_length if saving >= price else 0 for saving in saved]
        return budgets if self.can_look else self._with_tries(budgets, requests, price)

    def trim(
        self, chances: Sequence[Sequence[float]], requests: Sequence[DraftStats], batch: BatchStats
    ) -> Sequence[int]:
        """`worth_verifying`, chances corrected by how those of the same request turned out."""
        corrected = [
            [chance * request.estimates.correction for chance in accumulate(one, min)]
            for one, request in zip(chances, requests, strict=True)
        ]
        choice = worth_verifying(corrected, self.prices, batch)
        counts = choice.levels.tolist()
        self._weigh(choice.seconds, counts, corrected, requests, batch)
        return counts

    def _with_tries(self, budgets: list[int], requests: Sequence[DraftStats], price: float) -> list[int]:
        """The budgets, with one for as many of those without as the credit pays for, who has waited longest first."""
        idle = [place for place, budget in enumerate(budgets) if not budget]
        idle.sort(key=lambda place: -requests[place].steps_since_draft)
        self._credit = min(self._credit, len(idle) * price)
        tried = idle[: int(self._credit / price)] if price else []
        for place in tried:
            budgets[place] = self.max_length
        self._credit -= len(tried) * price
        return budgets

    def _weigh(
        self, seconds: float, counts: list[int], chances: list[list[float]], requests: Sequence[DraftStats],
        batch: BatchStats,
    ) -> None:  # fmt: skip
        """Tell every request what its proposal should save: its tokens at the plain rate, less its rows."""
        size = max(1, batch.num_decodes)
        plain = self.prices.target(batch.num_prefill_rows + size, batch.mean_context)
        row = (seconds - plain) / max(1, sum(counts))
        usual = self._usual_saving()
        for one, count, request in zip(chances, counts, requests, strict=True):
            saving = sum(one[:count]) * plain / size - count * row
            request.estimates.weigh(saving)
            usual = _USUAL_MEMORY * usual + (1 - _USUAL_MEMORY) * saving
        self._usual = usual

    def _usual_saving(self) -> float:
        """What a proposal saves on average; before the first one a guess."""
        return _FIRST_SAVING * self.prices.draft_level(0, 1) if self._usual is None else self._usual
