"""From replayed rounds and measured times to a predicted speed-up with its interval."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np

from paceline.evaluation.advise.prices import CandidatePrices
from paceline.evaluation.advise.replay import Rounds, Text
from paceline.evaluation.stats import Pairs, time_ratio

TIMING_NOISE = 0.03
"""Assumed relative error of measured times, in addition to the variation between prompts."""
_CONTEXT = 8
"""Contexts are rounded to multiples of this many tokens for pricing."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One candidate.

    Attributes:
        draft, k, batch, dtype: drafter, most drafted tokens, concurrent requests, type of the target's weights.
        predicted: speed-up over plain decoding of as many requests; low, high: 95 % interval, None with too few texts.
        tokens_per_pass: acceptance length of the replay.
        break_even: tokens per pass at which drafts of this length would have a speed-up of 1.
        losing_share: fraction of the texts that would be slower.
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
    draft: str, k: int, dtype: str, texts: Sequence[Text], rounds: Sequence[Rounds], prices: CandidatePrices,
    batch: int = 1,
) -> Prediction:  # fmt: skip
    """The predicted speed-up of decoding these texts with these rounds, with its interval.

    With `batch` above 1, texts of a family start together, `batch` at a time and in order, as in `paceline bench`: the
    unfinished ones share each round. The interval is computed from the texts' own groups.

    Args:
        rounds: of each text.
    """
    kept = [(text, one) for text, one in zip(texts, rounds, strict=True) if one.tokens]
    company = [_pair([each] * batch, prices) for each in kept]
    plain, drafted = (np.array(seconds) for seconds in zip(*company, strict=True))
    ones = np.ones(len(kept))
    interval = time_ratio(Pairs(plain, ones, drafted, ones, [text.family for text, _ in kept]))
    predicted = interval.ratio
    if batch > 1:
        together = [_pair(group, prices) for group in _groups(kept, batch)]
        predicted = sum(base for base, _ in together) / sum(seconds for _, seconds in together)
    low, high = _with_noise(interval.ratio, interval.low, interval.high)
    moved = predicted / interval.ratio
    tokens, count = sum(one.tokens for _, one in kept), sum(one.count for _, one in kept)
    return Prediction(
        draft, k, batch, dtype, predicted, None if low is None else low * moved, None if high is None else high * moved,
        tokens / count, _break_even(kept, prices, batch), float((drafted > plain).mean()),
    )  # fmt: skip


Replayed = tuple[Text, Rounds]
"""An answer and its rounds."""


def _groups(kept: Sequence[Replayed], batch: int) -> list[list[Replayed]]:
    """Groups of texts that start together; a family's last group is filled up with its first texts."""
    families: dict[str, list[Replayed]] = {}
    for each in kept:
        families.setdefault(each[0].family, []).append(each)
    return [
        [own[place % len(own)] for place in range(first, first + batch)]
        for own in families.values()
        for first in range(0, len(own), batch)
    ]


def _pair(group: Sequence[Replayed], prices: CandidatePrices) -> tuple[float, float]:
    """(seconds of plain decoding, seconds with drafts) from the first tokens to the last one of a group."""
    prompts, contexts = sum(len(text.prompt) for text, _ in group), [len(text.prompt) + 1 for text, _ in group]
    plain = prices.plain_opening(len(group), prompts)
    plain += _played([[(0, 0)] * text.num_decoded for text, _ in group], contexts, lambda n, _, c: prices.plain(n, c))
    drafted = prices.opening(len(group), prompts)
    return plain, drafted + _played([one.in_order() for _, one in group], contexts, prices.round)


def _played(
    group: Sequence[Sequence[tuple[float, float]]], contexts: Sequence[float],
    price: Callable[[int, float, float], float],
) -> float:  # fmt: skip
    """Seconds of rounds in step: each (drafted tokens, those that stood) of each request, until the last is done."""
    seconds, said = 0.0, list(contexts)
    known: dict[tuple[int, float, float], float] = {}
    for number in range(max(map(len, group))):
        going = [place for place, own in enumerate(group) if number < len(own)]
        nodes = sum(group[place][number][0] for place in going)
        context = round(sum(said[place] for place in going) / len(going) / _CONTEXT) * _CONTEXT
        key = len(going), nodes, context
        if key not in known:
            known[key] = price(len(going), nodes, context)
        seconds += known[key]
        for place in going:
            said[place] += group[place][number][1] + 1
    return seconds


def _break_even(kept: Sequence[Replayed], prices: CandidatePrices, batch: int) -> float:
    """Tokens per pass at which drafts as long as these would pay for themselves."""
    count = sum(one.count for _, one in kept)
    size = sum(size * number for _, one in kept for size, number in one.sizes.items()) / count
    context = sum(text.mean_context for text, _ in kept) / len(kept)
    return prices.round(batch, batch * size, context) / prices.plain(batch, context)


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


@dataclass(frozen=True, slots=True)
class Regret:
    """What an advice may lose where predictions are off.

    Attributes:
        share: of the best speed, if what is advised lies at the low end of its interval and `against` at its high end.
        against: the candidate that would be the best then; plain decoding has the speed-up 1.
    """

    share: float
    against: str


def regret_of(predictions: Sequence[Prediction], batch: int = 1) -> Regret | None:
    """The most that the advice at `batch` loses within all intervals; None where there are none."""
    some = [one for one in predictions if one.batch == batch and one.high is not None]
    if not some:
        return None
    best = best_of(some, batch)
    own = 1.0 if best is None or best.low is None else best.low
    rivals = {"plain decoding": 1.0} | {f"{one.draft} k={one.k}": one.high or 0.0 for one in some if one is not best}
    against = max(rivals, key=lambda name: rivals[name])
    return Regret(max(0.0, 1 - own / rivals[against]), against)


def pays_up_to(predictions: Sequence[Prediction], one: Prediction) -> int:
    """The largest number of requests at once, of those asked for, up to which a drafter gains; 0: it never does."""
    own = sorted((each.batch, each.predicted) for each in predictions if (each.draft, each.k) == (one.draft, one.k))
    until = 0
    for batch, predicted in own:
        if predicted <= 1:
            break
        until = batch
    return until


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
