"""`GroupLoad`: how busy a group is, how long its requests wait, and how bursty they come."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paceline.placement.placement import Group, Placement
from paceline.placement.profile import ParallelConfig
from paceline.placement.simulator import Evaluator, SimulationResult
from paceline.theory.checks import Number
from paceline.theory.queueing import mixture_wait


@dataclass(frozen=True)
class GroupLoad:
    """What reached a group.

    Attributes:
        group: its index in the placement; tensor, pipeline: its split; models: the names of those it holds.
        rate: requests sent to it per second, those turned away included.
        load: rate x seconds of the busiest stage; above 1 it cannot serve them all. Of batches, seconds per request
            are those of the best size.
        estimated_wait: seconds; what a queue of the served requests with Poisson arrivals would wait at the busiest
            stage (Pollaczek-Khinchine, M/G/1). NaN when nothing was served, and with batches.
        simulated_wait: seconds that served requests waited for others, or took longer in a batch, all stages together.
            Above the estimate where arrivals are bursty, below it where deadlines turn away those who would wait
            longest.
        cv: of the gaps between all requests for the group's models; model_cv: the mean of the models' own, by requests.
            Sharing pays where the first is well below the second.
        attainment: of the requests sent to the group.
    """

    group: int
    tensor: int
    pipeline: int
    models: tuple[str, ...]
    rate: float
    load: float
    estimated_wait: float
    simulated_wait: float
    cv: float
    model_cv: float
    attainment: float


def group_loads(evaluator: Evaluator, placement: Placement, result: SimulationResult) -> tuple[GroupLoad, ...]:
    """The load of each group; `result` must have kept its latencies."""
    outcome = evaluator.component(placement.groups)
    duration = max(evaluator.workload.duration, 1e-12)
    loads = []
    for g, group in enumerate(placement.groups):
        seconds = _rows(group, evaluator.least_stage_seconds)
        served, rejected = outcome.served[g, list(group.models)], outcome.rejected[g, list(group.models)]
        cv, model_cv = burstiness(evaluator, group.models)
        loads.append(
            GroupLoad(
                group=g,
                tensor=group.parallel.tensor,
                pipeline=group.parallel.pipeline,
                models=tuple(evaluator.case.models[m].name for m in group.models),
                rate=float((served + rejected).sum()) / duration,
                load=float(np.max((served + rejected) @ seconds, initial=0.0)) / duration,
                estimated_wait=float("nan") if evaluator.is_batched else float(_estimate(served, seconds, duration)),
                simulated_wait=_waited(evaluator, g, group, result),
                cv=cv,
                model_cv=model_cv,
                attainment=float(result.group_attainment[g]),
            )
        )
    return tuple(loads)


def burstiness(evaluator: Evaluator, models: tuple[int, ...]) -> tuple[float, float]:
    """Coefficient of variation of the gaps of all requests for `models`, and the mean of each model's own."""
    workload = evaluator.workload
    own = np.array([gap_cv(workload.times_of(m)) for m in models])
    weights = evaluator.requests_of[list(models)] * ~np.isnan(own)
    mean = float(np.nansum(own * weights) / weights.sum()) if weights.sum() else float("nan")
    return gap_cv(workload.times[np.isin(workload.models, models)]), mean


def gap_cv(times: np.ndarray) -> float:
    """Standard deviation over mean of the gaps between sorted `times`; NaN with fewer than two gaps."""
    gaps = np.diff(times)
    return float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() > 0 else float("nan")


def _rows(group: Group, stage_seconds: Callable[[int, ParallelConfig], np.ndarray]) -> np.ndarray:
    """float64 [models of the group, stages]."""
    rows = [stage_seconds(m, group.parallel) for m in group.models]
    return np.array(rows, np.float64).reshape(len(rows), group.parallel.pipeline)


def _estimate(served: np.ndarray, seconds: np.ndarray, duration: float) -> Number:
    if not served.sum():
        return float("nan")
    busiest = int(np.argmax(served @ seconds))
    shares = served / served.sum()
    return mixture_wait(float(served.sum()) / duration, list(zip(shares, seconds[:, busiest], strict=True)))


def _waited(evaluator: Evaluator, g: int, group: Group, result: SimulationResult) -> float:
    assert result.latencies is not None and result.routes is not None
    here = result.routes == g
    if not here.any():
        return float("nan")
    lone = np.zeros(len(evaluator.case.models))
    lone[list(group.models)] = _rows(group, evaluator.stage_seconds).sum(axis=1) + evaluator.rules.overhead
    return max(0.0, float(np.mean(result.latencies[here] - lone[evaluator.workload.models[here]])))
