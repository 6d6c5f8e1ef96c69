"""`GoodputByNode`: goodput for drafters that estimate the acceptance probability of each node.

Such a drafter proposes first; then only the nodes that pay are verified. What remains to be decided beforehand is
whether the proposal is worth its own cost. For drafters without such estimates see `goodput.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from paceline.speculation.best_draft import worth_verifying
from paceline.speculation.full_step import prices_in
from paceline.speculation.policies.goodput import Goodput
from paceline.speculation.prices import Prices
from paceline.speculation.records import BatchStats, DraftStats

_USUAL_MEMORY, _FIRST_SAVING = 0.98, 2.0
"""Memory of the mean saving over all requests (about 50 proposals), and its prior: twice the cost of a proposal. With
that prior a request that is alone gets 10 useless proposals before they stop, and each of 16 requests gets 2."""

_ASKING = 1.5
"""Full cost of a proposal over its measured drafting time: choosing the requests and calling `observe` at every step
take 70 microseconds besides 150 of drafting (`ngram`, one request in w8a8)."""

_TRUST = 0.9
"""Factor on acceptance probabilities when nodes are chosen. The maximum over noisy estimates is biased upwards: with 64
decoding requests a row costs 0.97 tokens, and nodes estimated at 0.98 tokens made steps 7 % longer. Replays of recorded
answers lose nothing by it (`benchmarks/draft_replay.py`)."""

_ALONE = 4
"""Factor on `explore` for a request that decodes alone: when its text begins to repeat itself, drafts give it four
tokens a step, and no other request waits. Measured on chat with the default model's 4-bit file (3 ms a pass): at
temperature 1 it decoded 7 % more slowly than without drafts when asked at every step, 4 % with this factor; greedily, 2
and 3 % faster."""


@dataclass(slots=True, eq=False)
class GoodputByNode(Goodput):
    """Verifies the nodes that maximise the expected tokens per second of all requests (`worth_verifying`), or none.

    A request whose proposals save less than they cost is asked only from time to time, so that all such proposals take
    the share `explore` of the time, and four times that for a request that decodes alone. Drawn proposals carry no
    estimates and are verified whole.
    """

    _usual: float | None = field(default=None, init=False, repr=False)

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """`num_draft_tokens` for requests whose proposals are worth their cost or due for a trial, 0 for the others."""
        if not requests or not self.num_draft_tokens:
            return [0] * len(requests)
        price, usual = self._price_of_asking(), self._usual_saving()
        step = prices_in(batch, self.prices).target(
            batch.num_prefill_rows + max(1, batch.num_decodes), batch.mean_context
        )
        share = self.explore * (_ALONE if batch.num_decodes == len(requests) == 1 else 1)
        often = share * step / len(requests)
        return [
            self.num_draft_tokens
            if request.estimates.expected_saving(usual) >= price or often * (1 + request.steps_since_asked) >= price
            else 0
            for request in requests
        ]

    def reads_along(self, request: DraftStats, batch: BatchStats) -> bool:
        """True: what its drafts are worth is known to the drafter itself."""
        return True

    def trim(
        self, chances: Sequence[Sequence[float]], requests: Sequence[DraftStats], batch: BatchStats
    ) -> Sequence[int]:
        """`worth_verifying`, with probabilities corrected by each request's record of estimated against accepted."""
        corrected = [
            [chance * request.estimates.correction for chance in accumulate(one, min)]
            for one, request in zip(chances, requests, strict=True)
        ]
        trusted = [[_TRUST * chance for chance in one] for one in corrected]
        prices = prices_in(batch, self.prices)
        choice = worth_verifying(trusted, prices, batch)
        counts = choice.levels.tolist()
        self._weigh(prices, choice.seconds, counts, corrected, requests, batch)
        return counts

    def _weigh(
        self, prices: Prices, seconds: float, counts: list[int], chances: list[list[float]],
        requests: Sequence[DraftStats], batch: BatchStats,
    ) -> None:  # fmt: skip
        """Record each proposal's expected saving in seconds: its tokens at the plain rate minus its rows' cost."""
        size, context = max(1, batch.num_decodes), batch.mean_context
        plain = prices.target(size, context)
        row = (seconds - prices.target(batch.num_prefill_rows + size, context)) / max(1, sum(counts))
        usual = self._usual_saving()
        for one, count, request in zip(chances, counts, requests, strict=True):
            saving = sum(one[:count]) * plain / size - count * row
            request.estimates.weigh(saving)
            usual = _USUAL_MEMORY * usual + (1 - _USUAL_MEMORY) * saving
        self._usual = usual

    def _usual_saving(self) -> float:
        """Mean saving of a proposal in seconds; before the first one, the prior."""
        return _FIRST_SAVING * self._price_of_asking() if self._usual is None else self._usual

    def _price_of_asking(self) -> float:
        return _ASKING * self.prices.draft_level(0, 1)
