"""Queueing formulas: mean waiting times of single queues, and of two models on two devices, with or without a pipeline.

Requests arrive as a Poisson process and are served first come first served. Times are in any one unit, rates in its
inverse; Fractions give Fractions, except where a root is taken. A queue with load 1 or more is unstable: its mean wait
is infinite. Not the place for deadlines, bursts or more than two models (`placement/simulator/`).
"""

import math

from paceline.errors import InvalidParameter
from paceline.theory.checks import Number, check_cost, check_positive, check_rate


def md1_wait(rate: Number, seconds: Number) -> Number:
    """rate D^2 / (2 (1 - rate D)): mean wait before service when every service takes D (M/D/1)."""
    return _wait(rate, seconds, seconds * seconds)


def mm1_wait(rate: Number, seconds: Number) -> Number:
    """rate D^2 / (1 - rate D): mean wait when services are exponential with mean D (M/M/1)."""
    return _wait(rate, seconds, 2 * seconds * seconds)


def mixture_wait(rate: Number, services: list[tuple[Number, Number]]) -> Number:
    """Mean wait when a request takes one of several times: ``services`` are (probability, seconds) pairs (M/G/1).

    rate E[S^2] / (2 (1 - rate E[S])), Pollaczek-Khinchine. Models of unequal length that share a group: a short request
    waits for the long ones before it (the convoy effect).
    """
    if not services or abs(sum(share for share, _ in services) - 1) > 1e-9:
        raise InvalidParameter("services", "probabilities do not sum to 1", "give every request a service time")
    mean = sum(share * seconds for share, seconds in services)
    return _wait(rate, mean, sum(share * seconds * seconds for share, seconds in services))


def _wait(rate: Number, mean: Number, mean_square: Number) -> Number:
    check_cost("rate", rate)
    check_positive("seconds", mean)
    load = rate * mean
    return rate * mean_square / (2 * (1 - load)) if load < 1 else float("inf")


def simple_latency(rate: Number, seconds: Number, share: Number = 0.5) -> Number:
    """Mean latency of two models with a device each: model 1 gets `share` of all `rate` requests.

    D + p^2 rate D^2 / (2 (1 - p rate D)) + the same with 1 - p. Li et al. 2023 (AlpaServe), section 3.4.
    """
    check_rate("share", share)
    return seconds + sum(part * md1_wait(part * rate, seconds) for part in (share, 1 - share) if part)


def pipeline_latency(rate: Number, seconds: Number, bottleneck: Number) -> Number:
    """Mean latency of two models that share one pipeline: D_s + rate D_m^2 / (2 (1 - rate D_m)).

    Args:
        rate: requests per unit of time, both models together; how they divide does not matter.
        seconds: D_s, a lone request through all stages.
        bottleneck: D_m, the slowest stage.

    Li et al. 2023, section 3.4.
    """
    if bottleneck > seconds:
        problem = f"{bottleneck} is longer than the whole pass, {seconds}"
        raise InvalidParameter("bottleneck", problem, "give the time of the slowest stage")
    return seconds + md1_wait(rate, bottleneck)


def most_communication_overhead(load: float) -> float:
    """alpha(r): the pipeline may take alpha times the work, evenly spread, before two separate devices are as good.

    With D_s = 2 D_m = alpha D the pipeline has the mean latency of `simple_latency` at an even split exactly at
    4 (4 - r) / (8 - r^2 + sqrt(64 - 96 r + 56 r^2 - 12 r^3 + r^4)), r = rate D. It is 1 at both ends of 0 .. 2 and
    largest, 1.138, near r = 1.2. Solved from Li et al. 2023, section 3.4.
    """
    _check_load(load)
    root = math.sqrt(64 - 96 * load + 56 * load**2 - 12 * load**3 + load**4)
    return 4 * (4 - load) / (8 - load**2 + root)


def most_uneven_overhead(load: float) -> float:
    """beta(r): the slowest of two stages may take beta / 2 of the work before two separate devices are as good.

    With D_s = D and D_m = beta D / 2 the two are equal at 4 / (r + sqrt(8 - 4 r + r^2)), which falls from sqrt 2 at no
    load to 1 at r = 2. Solved from Li et al. 2023, section 3.4.
    """
    _check_load(load)
    return 4 / (load + math.sqrt(8 - 4 * load + load**2))


def _check_load(load: float) -> None:
    if not 0 <= load < 2:
        raise InvalidParameter("load", f"{load} is not in [0, 2)", "give rate times seconds of a pass, below 2 devices")
