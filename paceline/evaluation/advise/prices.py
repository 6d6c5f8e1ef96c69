"""Seconds of a candidate's rounds, from profiles or from a rehearsal, by the formula of `theory/round.py`.

Not for measuring (`rehearsal.py`, `evaluation/tune.py`), nor for the number of rounds (`replay.py`).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Protocol

import numpy as np

from paceline.evaluation.advise.rehearsal import PLAIN, SCRIPTED, Opening, Rehearsal, Timed
from paceline.scheduling.profile import Profile
from paceline.theory.round import Round, round_seconds

_TRIMMED = 0.1
"""Fraction of turns trimmed at either end, because of disturbances by other processes and virtual machines."""


class CandidatePrices(Protocol):
    """Costs of one candidate and of plain decoding, in seconds."""

    def round(self, num_requests: int, num_nodes: float, context: float) -> float:
        """Seconds of a round of `num_requests` requests of `context` tokens each, with `num_nodes` drafted in total."""
        ...

    def plain(self, num_requests: int, context: float) -> float:
        """Seconds of a plain step."""
        ...

    def opening(self, num_requests: int, num_prompt_tokens: int) -> float:
        """One-off seconds after the first token, for prompts with `num_prompt_tokens` tokens in total."""
        ...

    def plain_opening(self, num_requests: int, num_prompt_tokens: int) -> float:
        """As `opening`, for plain decoding."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuredPrices:
    """Costs from profiles; also implements `theory.round.RoundPrices` for `num_requests`.

    Attributes:
        profile: of the target.
        num_requests: number of requests that decode together.
        draft: profile of the draft model; None if whole proposals were timed.
        proposal_seconds: of a whole proposal for one request.
        has_model: a proposal runs a model; its cost then grows with the number of requests as a target pass's does with
            rows, and else in proportion.
    """

    profile: Profile
    num_requests: int = 1
    draft: Profile | None = None
    proposal_seconds: float = 0.0
    has_model: bool = False

    def round(self, num_requests: int, num_nodes: float, context: float) -> float:
        """See `CandidatePrices`."""
        levels = 1 if self.draft is None else num_nodes / num_requests
        one = Round(num_requests, num_nodes, levels, context)
        return round_seconds(one, replace(self, num_requests=num_requests), self.profile.step_overhead or 0.0)

    def plain(self, num_requests: int, context: float) -> float:
        """See `CandidatePrices`."""
        return MeasuredPrices(self.profile).round(num_requests, 0, context)

    def opening(self, num_requests: int, num_prompt_tokens: int) -> float:
        """See `CandidatePrices`: the draft model's prefill."""
        return 0.0 if self.draft is None else self.draft.prefill_cost(num_prompt_tokens, 0)

    def plain_opening(self, num_requests: int, num_prompt_tokens: int) -> float:
        """See `CandidatePrices`."""
        return 0.0

    def target(self, rows: float, context: float = 0.0) -> float:
        """See `RoundPrices`."""
        return self.profile.batch_seconds(rows, self.num_requests, context)

    def draft_level(self, level: int, num_requests: int, context: float = 0.0) -> float:
        """See `RoundPrices`."""
        if self.draft is None:
            return self._proposals(num_requests, context) if level == 0 else 0.0
        return self.draft.batch_seconds(num_requests, num_requests, context)

    def _proposals(self, num_requests: int, context: float) -> float:
        """Seconds of proposals for `num_requests` requests, from those timed for one."""
        if not self.has_model:
            return num_requests * self.proposal_seconds
        cost = self.profile.cost
        return self.proposal_seconds * cost(num_requests, context) / cost(1, context)


@dataclass(frozen=True, slots=True)
class Arm:
    """Costs of one candidate, or of plain decoding, at one number of requests.

    Attributes:
        besides: seconds of a drafting round beyond those of a scripted round with as many drafted tokens.
        idle: the same for rounds without drafted tokens.
        opening: one-off seconds per prompt token.
        mean_nodes: mean number of drafted tokens per request and round.
    """

    besides: float
    idle: float
    opening: float
    mean_nodes: float


class Stand:
    """The timings of a rehearsal at one number of requests.

    Args:
        num_requests: that number.
        rehearsal: timings at all numbers of requests.
        profile: of the target; used only for the effect of the context on a pass.
    """

    def __init__(self, num_requests: int, rehearsal: Rehearsal, profile: Profile) -> None:
        self._num_requests, self._profile = num_requests, profile
        own = {name: [one for one in rounds if one.num_requests == num_requests]
               for name, rounds in rehearsal.rounds.items()}  # fmt: skip
        known = own.pop(SCRIPTED)
        self._context = mean(one.context for one in known)
        self._nodes = sorted({one.num_nodes for one in known})
        self._seconds = [_usual((r.turn, r.seconds) for r in known if r.num_nodes == nodes) for nodes in self._nodes]
        self.arms = {name: self._arm(rounds, rehearsal.openings[name]) for name, rounds in own.items() if rounds}

    def known(self, num_nodes: float, context: float) -> float:
        """Seconds of a round with `num_nodes` drafted tokens in total that cost nothing to draft."""
        rows, number = self._num_requests + num_nodes, self._num_requests
        further = self._profile.batch_seconds(rows, number, context)
        further -= self._profile.batch_seconds(rows, number, self._context)
        return float(np.interp(num_nodes, self._nodes, self._seconds)) + further

    def _besides(self, rounds: Sequence[Timed]) -> float:
        """Typical seconds of `rounds` beyond `known` for the same number of drafted tokens."""
        return _usual((one.turn, one.seconds - self.known(one.num_nodes, one.context)) for one in rounds)

    def _arm(self, rounds: Sequence[Timed], openings: Sequence[Opening]) -> Arm:
        # the cost of judging drafts, and of their uneven sizes over requests, occurs in drafting rounds only
        drafting, idle = ([one for one in rounds if bool(one.num_nodes) is some] for some in (True, False))
        besides, besides_idle = self._besides(drafting or idle), self._besides(idle or drafting)
        usual = _usual((one.turn, one.seconds) for one in rounds)
        own = [one for one in openings if one.num_requests == self._num_requests]
        opening = _usual((turn, (one.seconds - usual) / one.num_prompt_tokens) for turn, one in enumerate(own))
        mean_nodes = mean(one.num_nodes for one in rounds) / self._num_requests
        return Arm(besides, besides_idle, max(0.0, opening), mean_nodes)


@dataclass(frozen=True, slots=True)
class RehearsedPrices:
    """Costs from a rehearsal, interpolated linearly between the timed numbers of requests.

    Attributes:
        stands: number of requests to its timings.
        name: of the candidate.
        has_model: the cost of drafting is proportional to the draft's length up to the mean; a lookup's is constant.
    """

    stands: Mapping[int, Stand]
    name: str = PLAIN
    has_model: bool = False

    def round(self, num_requests: int, num_nodes: float, context: float) -> float:
        """See `CandidatePrices`."""
        low, high, share = self._around(num_requests)
        own = num_nodes / num_requests
        return (1 - share) * self._round(low, own, context) + share * self._round(high, own, context)

    def plain(self, num_requests: int, context: float) -> float:
        """See `CandidatePrices`."""
        return RehearsedPrices(self.stands).round(num_requests, 0, context)

    def opening(self, num_requests: int, num_prompt_tokens: int) -> float:
        """See `CandidatePrices`."""
        low, high, share = self._around(num_requests)
        of = [self.stands[size].arms[self.name].opening for size in (low, high)]
        return num_prompt_tokens * ((1 - share) * of[0] + share * of[1])

    def plain_opening(self, num_requests: int, num_prompt_tokens: int) -> float:
        """See `CandidatePrices`."""
        return RehearsedPrices(self.stands).opening(num_requests, num_prompt_tokens)

    def _around(self, num_requests: int) -> tuple[int, int, float]:
        """(next smaller, next larger timed number of requests, weight of the larger one) for interpolation."""
        sizes = sorted(size for size, stand in self.stands.items() if self.name in stand.arms)
        low = max((size for size in sizes if size <= num_requests), default=sizes[0])
        high = min((size for size in sizes if size >= num_requests), default=sizes[-1])
        return low, high, (num_requests - low) / (high - low) if high > low else 0.0

    def _round(self, num_requests: int, own_nodes: float, context: float) -> float:
        """Seconds of a round with `own_nodes` drafted tokens per request; at least those of a plain step."""
        stand = self.stands[num_requests]
        arm = stand.arms[self.name]
        levels = min(1.0, own_nodes / arm.mean_nodes) if self.has_model and arm.mean_nodes else 1.0
        one = Round(num_requests, num_requests * own_nodes, levels, context)
        besides = arm.besides if own_nodes else arm.idle
        seconds = round_seconds(one, _AtStand(stand, num_requests, besides))
        return max(seconds, stand.known(0, context) + stand.arms[PLAIN].idle) if self.name != PLAIN else seconds


@dataclass(frozen=True, slots=True)
class _AtStand:
    """`theory.round.RoundPrices` at one number of requests, with the cost of a whole draft on its first level."""

    stand: Stand
    num_requests: int
    besides: float

    def target(self, rows: float, context: float = 0.0) -> float:
        return self.stand.known(rows - self.num_requests, context)

    def draft_level(self, level: int, num_requests: int, context: float = 0.0) -> float:
        return self.besides if level == 0 else 0.0


def stands_of(rehearsal: Rehearsal, profile: Profile) -> dict[int, Stand]:
    """The timings of a rehearsal by number of requests."""
    sizes = sorted({one.num_requests for one in rehearsal.rounds[SCRIPTED]})
    return {size: Stand(size, rehearsal, profile) for size in sizes}


def _usual(values: Iterable[tuple[int, float]]) -> float:
    """The trimmed mean over turns of the median seconds of each; `values` are (turn, seconds)."""
    turns: defaultdict[int, list[float]] = defaultdict(list)
    for turn, value in values:
        turns[turn].append(value)
    medians = sorted(median(own) for own in turns.values())
    cut = int(_TRIMMED * len(medians))
    return mean(medians[cut : len(medians) - cut])
