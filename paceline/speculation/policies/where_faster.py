"""`WhereFaster`: lets a policy draft only where steps with drafts make more tokens per second than steps without.

A device that runs passes by itself hides the host's work in a run of steps without drafts, whose passes begin ahead of
time. In steps with drafts the device waits for the host, unless these are made on the device too. So the cost of one
draft more or less does not tell whether to draft at all: a single step without drafts is as dear as others, and a
single trial of drafts wastes a pass. This policy compares both ways of decoding as measured over many steps. Not for
executors whose passes take the host's own time, where prices of single steps (`goodput.py`) are right.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from paceline.speculation.outcome import StepOutcome
from paceline.speculation.policies.base import Around
from paceline.speculation.policies.goodput import Goodput
from paceline.speculation.prices import LearnedPrices
from paceline.speculation.records import BatchStats, DraftStats

_WARM = 4
"""First steps with drafts that are not measured: indices are extended, and a pass that was begun ahead is wasted."""
_WITH, _MOST_WITH, _WITHOUT = 16, 96, 32
"""Fewest and most steps of a trial of drafts, and those of one without: passes begin ahead only after some of these
(`prices.py`)."""
_APART = 128
"""Fewest steps between two trials."""
_LONGEST = 4096
"""Most steps between two trials."""
_EXPLORE = 0.01
"""Share of the time that trials may lose, as in `Goodput.explore`."""
_NEWEST = 0.03
"""Weight of the newest step in the averages of steps with drafts, once there are so many."""
_NOISE, _TIE = 1.5, 0.02
"""An average over n steps is taken to be within the share 1.5 / n of the truth: requests differ, and so do steps.
Drafts that take no more than 2 per cent longer go on, as they may help later."""
_LONGEST_STEP = 8.0
"""A step counts as at most this many steps without drafts: longer ones compile something, or were disturbed."""
_SURE = 2.0
"""Without drafts is not tried where these are expected to be this much faster, once that price was measured at all:
before, it may be a profile of another day, or one that was measured while the machine was busy."""


@dataclass(slots=True)
class _Way:
    """How requests of about the same number decode.

    Attributes:
        drafts: with drafts, as far as the policy makes any.
        is_trial: for some steps only.
        steps: since that began.
        seconds, tokens: of a step with drafts, on average; tokens per request.
        num_measured: steps in these averages.
        credit: seconds that trials may lose, at most 0 after the first trial, which is free: nothing is known before
            it, and drafters that remember texts remember none.
    """

    drafts: bool = True
    is_trial: bool = True
    steps: int = 0
    seconds: float = 0.0
    tokens: float = 0.0
    num_measured: int = 0
    credit: float = inf

    @property
    def seconds_each(self) -> float:
        """Seconds for one token of each request with drafts; infinite where that is not known."""
        return self.seconds / self.tokens if self.num_measured else inf

    def measure(self, seconds: float, tokens: float) -> None:
        """Add a step with drafts to the averages."""
        self.num_measured += 1
        newest = max(_NEWEST, 1 / self.num_measured)
        self.seconds += newest * (seconds - self.seconds)
        self.tokens += newest * (tokens - self.tokens)

    def turn(self, *, drafts: bool, is_trial: bool = False) -> None:
        """Go on this way."""
        if drafts and is_trial:
            self.num_measured = 0
        self.drafts, self.is_trial, self.steps = drafts, is_trial, 0


class WhereFaster(Around):
    """Asks `inner` where drafting has made more tokens per second than plain decoding, and for trials.

    Traffic changes, so each way is tried again after some time: the dearer the latest trial, the later the next one.
    Different numbers of requests (by powers of two) are different cases.

    Args:
        inner: decides how much to draft.
        prices: of steps without drafts (`LearnedPrices.undrafted`).
    """

    def __init__(self, inner: Goodput, prices: LearnedPrices) -> None:
        super().__init__(inner)
        self._prices, self._most = prices, inner.num_draft_tokens
        self._ways: dict[int, _Way] = {}
        self._has_decoded_plainly = False
        """Whether a run of steps without drafts has taught `prices` what these take."""

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """Those of `inner`; 0 for all where drafts are not faster, and the most for all at the beginning of a trial.

        `inner` may have stopped asking for drafts, which it does again only after a while. A draft model, which would
        have to read all texts first, is left to it, and so are steps with prefill rows, which are not measured.
        """
        way = self._way(batch.num_decodes)
        if not way.drafts:
            return [0] * len(requests)
        budgets = self.inner.budgets(requests, batch)
        begins = way.is_trial and way.steps < _WARM and not batch.num_prefill_rows
        if begins and not self._prices.reading(1):
            return [budget or self._most for budget in budgets]
        return budgets

    def reads_along(self, request: DraftStats, batch: BatchStats) -> bool:
        """As `inner`, where drafts are faster with one request more."""
        return self._way(batch.num_decodes + 1).drafts and self.inner.reads_along(request, batch)

    def observe(self, step: StepOutcome) -> None:
        """Compare the ways, by steps without prefill rows and requests' own drafts, which both ways have."""
        self.inner.observe(step)
        size, tokens, seconds = step.num_decodes, step.num_tokens, step.seconds.total
        if step.num_prefill_rows or not (step.is_complete and tokens and seconds > 0):
            return
        if any([one.is_own for one in step.requests]):
            return
        way, usual = self._way(size), self._prices.undrafted(size, step.mean_context)
        seconds = min(seconds, _LONGEST_STEP * usual)
        way.steps += 1
        if way.drafts and way.steps > _WARM:
            way.measure(seconds, tokens / size)
        self._has_decoded_plainly |= not way.drafts and way.steps >= _WITHOUT
        best = min(usual, way.seconds_each)
        if way.is_trial or way.steps <= _WARM:
            way.credit = max(way.credit - (seconds - best * tokens / size), -_EXPLORE * _LONGEST * usual)
        else:
            way.credit = min(0.0, way.credit + _EXPLORE * seconds)
        self._choose(way, usual)

    def _choose(self, way: _Way, usual: float) -> None:
        """Decide how to go on; `usual` are the seconds of a step without drafts."""
        ratio, noise = way.seconds_each / usual, _NOISE / max(1, way.num_measured)
        is_slower = way.num_measured > 0 and ratio > 1 + max(_TIE, noise)
        if way.is_trial and not way.drafts:
            if way.steps >= _WITHOUT:
                way.turn(drafts=not is_slower)
        elif way.is_trial:
            if way.steps >= _WITH and is_slower:
                way.turn(drafts=False)
            way.is_trial = way.is_trial and way.steps < (_WITH if ratio < 1 - noise else _MOST_WITH)
        elif way.drafts and is_slower:
            way.turn(drafts=False)
        elif way.credit >= 0 and way.steps >= _APART:
            is_sure = self._has_decoded_plainly and _SURE * ratio < 1
            if not (way.drafts and is_sure):
                way.turn(drafts=not way.drafts, is_trial=True)

    def _way(self, num_requests: int) -> _Way:
        return self._ways.setdefault(num_requests.bit_length(), _Way())
