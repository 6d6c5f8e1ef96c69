"""What a plan is worth on arrivals that it was not made for: held-out halves, resampled confidence, regret.

A search fits its placement to the arrivals it sees. So the search is run again on the first part of them only, and what
it finds is played against the rest.
"""

from dataclasses import dataclass, replace

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.case import Case
from paceline.placement.placement import Placement
from paceline.placement.search.planner import plan
from paceline.placement.simulator import simulate
from paceline.placement.workload import Workload

NUM_BLOCKS = 50
"""Stretches of time that are resampled; requests within one keep their order, and their bursts."""
NUM_RESAMPLES = 2000
COVERAGE = 0.95


@dataclass(frozen=True)
class HeldOut:
    """The same search on the first part of the arrivals, judged on the rest.

    Attributes:
        train: attainment on the part it was planned on.
        test: on the rest. low, high: between these it lies in 95 % of resampled rests.
        hindsight: of a placement that was planned on the rest.
        drift: half the sum of the changes of models' shares of the requests between both parts, in [0, 1].
        rate_change: requests per second of the rest over those of the first part.
        num_train, num_test: requests.
    """

    train: float
    test: float
    low: float
    high: float
    hindsight: float
    drift: float
    rate_change: float
    num_train: int
    num_test: int

    @property
    def regret(self) -> float:
        """What knowing the rest beforehand would have gained."""
        return self.hindsight - self.test


def halves(workload: Workload, share: float = 0.5) -> tuple[Workload, Workload]:
    """The first `share` of the time, and the rest counted from 0.

    Raises:
        InvalidParameter: no requests in one of both.
    """
    if not 0 < share < 1:
        raise InvalidParameter("share", f"{share}", "give a part of 1, e.g. 0.5")
    middle = share * workload.duration
    first, rest = workload.between(0.0, middle), workload.between(middle, float("inf"))
    if not first.num_requests or not rest.num_requests:
        raise InvalidParameter("arrivals", "one half of the time has none", "give a longer trace")
    return first, replace(rest, times=rest.times - middle)


def held_out(
    case: Case,
    policy: str = "auto",
    *,
    share: float = 0.5,
    time_budget: float | None = None,
    effort: int | None = None,
    seed: int = 0,
    beam_width: int = 1,
    allow_unplaceable: bool = False,
) -> HeldOut:
    """Search on the first `share` of the time and judge on the rest; search on the rest too, for the regret.

    Args:
        time_budget: seconds of each of both searches. The others as for `plan`.

    Raises:
        InvalidParameter: see `plan` and `halves`; or a policy with a placement for each window.
    """
    first, rest = halves(case.workload, share)
    train, test = case.with_workload(first), case.with_workload(rest)
    options = {"time_budget": time_budget, "effort": effort, "seed": seed, "beam_width": beam_width}
    found = [plan(each, policy, **options, allow_unplaceable=allow_unplaceable) for each in (train, test)]
    if found[0].windows:
        raise InvalidParameter("policy", f"{policy} has a placement for each window", "hold out with another policy")
    reached = simulate(found[0].placement, test, keep_latencies=True)
    assert reached.routes is not None
    low, high = interval(rest, reached.routes >= 0, seed)
    shares = [part.counts(len(case.models)) / part.num_requests for part in (first, rest)]
    rates = [part.num_requests / max(part.duration, 1e-12) for part in (first, rest)]
    return HeldOut(
        train=found[0].slo_attainment,
        test=reached.slo_attainment,
        low=low,
        high=high,
        hindsight=max(found[1].slo_attainment, reached.slo_attainment),
        drift=float(np.abs(shares[0] - shares[1]).sum() / 2),
        rate_change=rates[1] / rates[0],
        num_train=first.num_requests,
        num_test=rest.num_requests,
    )


def confidence(case: Case, placement: Placement, seed: int = 0) -> tuple[float, float]:
    """Between which attainments `placement` lies on 95 % of the resampled arrivals of `case`."""
    result = simulate(placement, case, keep_latencies=True)
    assert result.routes is not None
    return interval(case.workload, result.routes >= 0, seed)


def interval(workload: Workload, in_time: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """A percentile interval of the mean of `in_time`, bool [requests], over resampled stretches of time.

    Requests that follow each other share queues and bursts, so whole stretches are drawn, with replacement (Künsch
    1989, the block bootstrap).
    """
    length = max(workload.duration, 1e-12) / NUM_BLOCKS
    block = np.minimum((workload.times // length).astype(np.int64), NUM_BLOCKS - 1)
    counts = np.bincount(block, minlength=NUM_BLOCKS)
    served = np.bincount(block, weights=in_time, minlength=NUM_BLOCKS)
    drawn = np.random.default_rng(seed).integers(NUM_BLOCKS, size=(NUM_RESAMPLES, NUM_BLOCKS))
    sums = counts[drawn].sum(axis=1)
    means = served[drawn].sum(axis=1) / np.maximum(sums, 1)
    low, high = np.quantile(means, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return float(low), float(high)
