"""From replayed rounds and measured times to a predicted speed-up with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np

from paceline.evaluation.advise.replay import Rounds, Text
from paceline.evaluation.stats import Pairs, time_ratio
from paceline.scheduling.profile import Profile
from paceline.theory.round import Round, break_even_tokens, round_seconds

TIMING_NOISE = 0.03
"""Relative error that measured times are taken to have, beside the difference between prompts."""


@dataclass(frozen=True, slots=True)
class MeasuredPrices:
    """Prices of rounds that `num_requests` requests share, from profiles; see `theory.round.RoundPrices`.

    Attributes:
        profile: of the target.
        num_requests: that decode together.
        draft: profile of the draft model; None where whole proposals were timed.
        proposal_seconds: of a whole proposal for one request.
        has_model: a proposal runs a model; for many requests it costs as much more as a target pass over as many rows.
    """

    profile: Profile
    num_requests: int = 1
    draft: Profile | None = None
    proposal_seconds: float = 0.0
    has_model: bool = False

    def target(self, rows: float, context: float = 0.0) -> float:
        """See `RoundPrices`."""
        return self.profile.batch_seconds(rows, self.num_requests, context)

    def draft_level(self, level: int, num_requests: int, context: float = 0.0) -> float:
        """See `RoundPrices`."""
        if self.draft is None:
            return self._proposals(num_requests, context) if level == 0 else 0.0
        return self.draft.batch_seconds(num_requests, num_requests, context)

    def _proposals(self, num_requests: int, context: float) -> float:
        """Seconds of proposals that were timed for one request at a time."""
        if not self.has_model:
            return num_requests * self.proposal_seconds
        cost = self.profile.cost
        return self.proposal_seconds * cost(num_requests, context) / cost(1, context)


@dataclass(frozen=True, slots=True)
class Prediction:
    """One candidate.

    Attributes:
        draft, k, batch, dtype: drafter, most drafted tokens, requests at once, storage of the target's weights.
        predicted: speed-up over plain decoding of as many requests; low, high: 95 %, None with too few texts.
        tokens_per_pass: of the replay.
        break_even: tokens per pass at which drafts as long as these would pay for themselves.
        losing_share: of the texts, those that would be slower.
    """

    draft: str
    k: int
    batch: int
    dtype: str
    predicted: float
    low: float | None
    high: float | None
    tokens_per_pass: float
    break_even: float
    losing_share: float


def predict(
    draft: str,
    k: int,
    dtype: str,
    texts: Sequence[Text],
    rounds: Sequence[Rounds],
    prices: MeasuredPrices,
) -> Prediction:
    """The speed-up of decoding these texts with these rounds, and how far it may be off.

    Args:
        rounds: of each text.
        prices: for as many requests as decode together.
    """
    kept = [(text, one) for text, one in zip(texts, rounds, strict=True) if one.tokens]
    plain = np.array([_plain_seconds(text, prices) for text, _ in kept])
    drafted = np.array([_seconds(text, one, prices) for text, one in kept])
    ones = np.ones(len(kept))
    interval = time_ratio(Pairs(plain, ones, drafted, ones, [text.family for text, _ in kept]))
    low, high = _with_noise(interval.ratio, interval.low, interval.high)
    tokens, count = sum(one.tokens for _, one in kept), sum(one.count for _, one in kept)
    return Prediction(
        draft, k, prices.num_requests, dtype, interval.ratio, low, high, tokens / count,
        break_even_tokens(_mean_round(kept, prices), prices, prices.profile.step_overhead or 0.0),
        float((drafted > plain).mean()),
    )  # fmt: skip


def _plain_seconds(text: Text, prices: MeasuredPrices) -> float:
    step = Round(prices.num_requests, context=text.mean_context)
    bare = MeasuredPrices(prices.profile, prices.num_requests)
    return text.num_decoded * round_seconds(step, bare, prices.profile.step_overhead or 0.0)


def _seconds(text: Text, rounds: Rounds, prices: MeasuredPrices) -> float:
    """Seconds of all rounds of a text; alone each round by its size, in company by the mean size of a round."""
    overhead, number = prices.profile.step_overhead or 0.0, prices.num_requests
    sizes = rounds.sizes if number == 1 else {_mean_size(rounds): rounds.count}
    seconds = sum(count * round_seconds(_round(size, text, prices), prices, overhead) for size, count in sizes.items())
    if prices.draft is not None and sum(rounds.sizes.values()):
        seconds += prices.draft.prefill_cost(len(text.prompt), 0)
    return seconds


def _round(size: float, text: Text, prices: MeasuredPrices) -> Round:
    levels = 1 if prices.draft is None else size
    return Round(prices.num_requests, prices.num_requests * size, levels, text.mean_context)


def _mean_size(rounds: Rounds) -> float:
    return sum(size * count for size, count in rounds.sizes.items()) / rounds.count


def _mean_round(kept: Sequence[tuple[Text, Rounds]], prices: MeasuredPrices) -> Round:
    count = sum(one.count for _, one in kept)
    size = sum(_mean_size(one) * one.count for _, one in kept) / count
    context = sum(text.mean_context for text, _ in kept) / len(kept)
    levels = 1 if prices.draft is None else size
    return Round(prices.num_requests, prices.num_requests * size, levels, context)


def _with_noise(ratio: float, low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """The interval widened by the error of the measured times."""
    if low is None or high is None:
        return None, None
    wider = [sqrt(log(end / ratio) ** 2 + (1.96 * TIMING_NOISE) ** 2) for end in (low, high)]
    return ratio * exp(-wider[0]), ratio * exp(wider[1])


def best_of(predictions: Sequence[Prediction], batch: int = 1) -> Prediction | None:
    """The candidate with the largest speed-up at `batch` whose interval leaves no doubt that it gains; None: plain."""
    sure = [one for one in predictions if one.batch == batch and one.low is not None and one.low > 1]
    return max(sure, key=lambda one: one.predicted, default=None)


def advice_of(predictions: Sequence[Prediction], batch: int = 1) -> str:
    """One sentence."""
    some = [one for one in predictions if one.batch == batch]
    if not some:
        return "do not speculate: nothing could be replayed"
    best = best_of(some, batch)
    most = max(some, key=lambda one: one.predicted)
    if best is None and most.low is None:
        return f"too few texts to advise: {most.draft} k={most.k} would be {most.predicted:.2f}; give at least 6"
    if best is None:
        most_text = f"{most.predicted:.2f} [{most.low:.2f}, {most.high:.2f}]"
        return f"do not speculate: {most_text} at most, by {most.draft} k={most.k}"
    return (
        f"speculate with {best.draft}, {best.k} drafted tokens: {best.predicted:.2f} [{best.low:.2f}, {best.high:.2f}] "
        f"times plain decoding at {batch} request{'s' if batch > 1 else ''} at once"
    )
