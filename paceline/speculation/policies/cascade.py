"""`Cascade`: choose the draft length by trial, from the measured speed-up.

Saxena et al. 2025 (Cascade), for mixtures of experts, where a verify pass activates more experts and may cost more than
it gains. It knows nothing of models: it compares tokens per second of steps with and without drafts.
"""

from collections.abc import Sequence
from typing import Literal

from paceline.errors import InvalidParameter
from paceline.speculation.outcome import StepOutcome
from paceline.speculation.policies.base import LengthPolicy, check_least
from paceline.speculation.records import BatchStats, DraftStats

Phase = Literal["base", "test", "set"]


class Cascade(LengthPolicy):
    """One length K for all requests, found by hill climbing on the utility U = benefit / cost.

    Benefit is tokens per step and cost seconds per step, both relative to steps without drafts, so U is the speed-up.
    Phase ``base`` measures steps without drafts; ``test`` tries a few lengths, moving in the direction in which U grew;
    ``set`` keeps the best one. When no length beats U = 1, drafts are off for a ``set`` phase that doubles each time,
    up to `most_back_off` doublings: traffic changes, and a trial costs a few steps. The doubling starts again after a
    ``set`` phase that paid. A trial that paid is not enough: its few steps may have been lucky.

    Args:
        num_draft_tokens: longest draft.
        trial_steps: steps per trial; their tokens and seconds are summed before they are divided.
        max_trials: trials in one test phase.
        set_steps: steps of a set phase.
        base_steps: steps without drafts, the baseline; repeated after `refresh_every` steps and whenever the bit length
            of the number of requests changes.
        tie: relative gain in U up to which no further length is tried.
        most_back_off: largest number of doublings of a set phase without drafts; 0 keeps set phases equally long. With
            4, a workload for which drafts never pay spends at most 16 of 272 steps on trials, plus those in which a
            lucky trial's length is kept.

    State changes only in `observe`, which sees counts and seconds, never tokens.
    """

    def __init__(
        self,
        num_draft_tokens: int = 8,
        trial_steps: int = 4,
        max_trials: int = 4,
        set_steps: int = 16,
        base_steps: int = 4,
        refresh_every: int = 100,
        tie: float = 0.1,
        most_back_off: int = 4,
    ) -> None:
        check_least("num_draft_tokens", num_draft_tokens, 0)
        for name, value in (("trial_steps", trial_steps), ("max_trials", max_trials), ("set_steps", set_steps),
                            ("base_steps", base_steps), ("refresh_every", refresh_every)):  # fmt: skip
            check_least(name, value, 1)
        check_least("most_back_off", most_back_off, 0)
        if tie < 0:
            raise InvalidParameter("tie", f"{tie} is negative", "give a share such as 0.1")
        self._num_draft_tokens, self._trial_steps, self._max_trials = num_draft_tokens, trial_steps, max_trials
        self._set_steps, self._base_steps, self._refresh_every = set_steps, base_steps, refresh_every
        self._tie, self._most_back_off = tie, most_back_off
        self._start, self._times_off, self._size_class = 1, 0, 0
        self._begin("base", 0, base_steps)

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self._phase

    @property
    def length(self) -> int:
        """The current K."""
        return self._length

    def budgets(self, requests: Sequence[DraftStats], batch: BatchStats) -> list[int]:
        """The current K."""
        return [min(self._length, self._num_draft_tokens)] * len(requests)

    def reads_along(self, request: DraftStats, batch: BatchStats) -> bool:
        """Whether K is above 0 now."""
        return self._length > 0

    def observe(self, step: StepOutcome) -> None:
        """Count a step without prefill rows, by the requests that did not draft for themselves, as no phase decides on
        those drafts; start the next phase or trial when this one's steps are done."""
        counts = [one.num_new for one in step.requests if not one.is_own]
        if not step.only_decodes or not counts:
            return
        size_class = step.num_decodes.bit_length()
        if size_class != self._size_class:
            self._size_class = size_class
            self._begin("base", 0, self._base_steps)
        self._tokens += sum(counts) / len(counts)
        self._seconds += step.seconds.total
        self._steps_left -= 1
        self._since_base += 1
        if self._steps_left == 0:
            self._advance(self._tokens / max(self._seconds, 1e-9))

    def _begin(self, phase: Phase, length: int, steps: int) -> None:
        self._phase: Phase = phase
        self._length, self._steps_left = length, steps
        self._tokens = self._seconds = 0.0
        if phase == "base":
            self._since_base = 0

    def _advance(self, rate: float) -> None:
        """Start what follows a phase or trial in which each request got `rate` tokens per second."""
        if self._phase == "test":
            self._utilities[self._length] = rate / self._base_rate
            self._next_trial()
            return
        if self._length == 0:
            self._base_rate, self._since_base = rate, 0
        elif rate > self._base_rate:
            self._times_off = 0
        if self._since_base >= self._refresh_every:
            self._begin("base", 0, self._base_steps)
        else:
            self._utilities: dict[int, float] = {}
            self._begin("test", min(self._start, self._num_draft_tokens), self._trial_steps)

    def _next_trial(self) -> None:
        """Start the trial of another length, or end the test phase."""
        length = self._candidate()
        if length is None or len(self._utilities) >= self._max_trials:
            self._settle()
        else:
            self._begin("test", length, self._trial_steps)

    def _candidate(self) -> int | None:
        """An untried neighbour of the best length (longer first if U >= 1); None if the last trial gained little."""
        tried, best = self._utilities, self._best()
        others = [utility for length, utility in tried.items() if length != best]
        if others and best == self._length and tried[best] <= max(others) * (1 + self._tie):
            return None
        order = (best + 1, best - 1) if tried[best] >= 1 else (best - 1,)
        return next((n for n in order if 1 <= n <= self._num_draft_tokens and n not in tried), None)

    def _best(self) -> int:
        """The length with the largest utility, the smallest on ties."""
        return max(self._utilities, key=lambda length: (self._utilities[length], -length))

    def _settle(self) -> None:
        """Start a set phase with the best length, or without drafts when no length has U above 1."""
        self._start = best = self._best()
        if self._utilities[best] > 1:
            self._begin("set", best, self._set_steps)
            return
        steps = self._set_steps << self._times_off
        self._times_off = min(self._times_off + 1, self._most_back_off)
        self._begin("set", 0, steps)
