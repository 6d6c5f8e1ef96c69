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
their price, so that 10 in vain are made for a request that is alone, and 2 for each of 16."""

_ASKING = 1.5
"""What asking costs over what is measured as drafting: to choose whom to ask and to tell drafters of every step takes
70 microseconds besides 150 of drafting (`ngram`, one request in w8a8)."""

_TRUST = 0.9
"""A node must be worth its row with this part of its chance. Chances and prices are estimates, and the best of many
numbers of nodes is one that was estimated too well: where 64 requests decode a row costs 0.97 tokens, and nodes that
seemed to bring 0.98 made steps 7 % longer. Recorded answers lose nothing by it (`benchmarks/draft_replay.py`)."""

_ALONE = 4
"""What `explore` is multiplied with for a request that decodes alone: a text that begins to repeat itself gives it four
tokens a step at once, and nobody else waits. Asked in every step whatever that took, the default model's 4-bit file
decoded chat 7 % more slowly than without drafts (temperature 1, 3 ms a pass), and so 4 %; greedily 2 and 3 % faster."""


@dataclass(slots=True, eq=False)
class GoodputByNode(Goodput):
    """The nodes with the most expected tokens per second of all requests together (`worth_verifying`), none when none
    pay.

    A request whose proposals save less than it takes to make them is asked only from time to time, so rarely that
    asking all such requests takes the share `explore` of the time, and four times that for one that decodes alone.
    What is drawn says nothing of its nodes and is verified whole.
    """

    _usual: float | None = field(default=None, init=False, repr=False)

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """All nodes for a request whose proposals are worth making, none for others."""
        if not requests or not self.max_length:
            return [0] * len(requests)
        price, usual = self._price_of_asking(), self._usual_saving()
        step = self.prices.target(batch.num_prefill_rows + max(1, batch.num_decodes), batch.mean_context)
        share = self.explore * (_ALONE if batch.num_decodes == len(requests) == 1 else 1)
        often = share * step / len(requests)
        return [
            self.max_length
            if request.estimates.expected_saving(usual) >= price or often * (1 + request.steps_since_asked) >= price
            else 0
            for request in requests
        ]

    def trim(
        self, chances: Sequence[Sequence[float]], requests: Sequence[DraftStats], batch: BatchStats
    ) -> Sequence[int]:
        """`worth_verifying`, chances corrected by how those of the same request turned out."""
        corrected = [
            [chance * request.estimates.correction for chance in accumulate(one, min)]
            for one, request in zip(chances, requests, strict=True)
        ]
        trusted = [[_TRUST * chance for chance in one] for one in corrected]
        choice = worth_verifying(trusted, self.prices, batch)
        counts = choice.levels.tolist()
        self._weigh(choice.seconds, counts, corrected, requests, batch)
        return counts

    def _weigh(
        self, seconds: float, counts: list[int], chances: list[list[float]], requests: Sequence[DraftStats],
        batch: BatchStats,
    ) -> None:  # fmt: skip
        """Tell every request what its proposal should save: its tokens at the plain rate, less its rows."""
        size, context = max(1, batch.num_decodes), batch.mean_context
        plain = self.prices.target(size, context)
        row = (seconds - self.prices.target(batch.num_prefill_rows + size, context)) / max(1, sum(counts))
        usual = self._usual_saving()
        for one, count, request in zip(chances, counts, requests, strict=True):
            saving = sum(one[:count]) * plain / size - count * row
            request.estimates.weigh(saving)
            usual = _USUAL_MEMORY * usual + (1 - _USUAL_MEMORY) * saving
        self._usual = usual

    def _usual_saving(self) -> float:
        """What a proposal saves on average; before the first one a guess."""
        return _FIRST_SAVING * self._price_of_asking() if self._usual is None else self._usual

    def _price_of_asking(self) -> float:
        return _ASKING * self.prices.draft_level(0, 1)
