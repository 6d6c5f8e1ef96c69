"""`Interference`: what models that share groups do to each other."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from paceline.placement.placement import Placement
from paceline.placement.simulator import Evaluator, SimulationResult, components
from paceline.placement.simulator.token_evaluator import TokenEvaluator


@dataclass(frozen=True)
class Interference:
    """Rows are the models that suffer, columns those that cause it; all in the order of the case.

    Attributes:
        models: names.
        shared: attainment as it is.
        alone: attainment of each model with its groups to itself.
        attainment: [suffers][causes], what the first would gain if no requests came for the second.
        latency: [suffers][causes], seconds by which the second lengthens the mean latency of the first's served
            requests. Below 0 where the slowest of them are turned away instead.
    """

    models: tuple[str, ...]
    shared: tuple[float, ...]
    alone: tuple[float, ...]
    attainment: tuple[tuple[float, ...], ...]
    latency: tuple[tuple[float, ...], ...]


def interference(
    evaluator: Evaluator | TokenEvaluator, placement: Placement, result: SimulationResult, step: Callable[[], None]
) -> Interference:
    """Simulate `placement` without each model in turn, and with it only; models that share nothing are skipped."""
    num_models = len(evaluator.case.models)
    as_is = _by_model(evaluator, result)
    alone = as_is[0].copy()
    effect = np.zeros((2, num_models, num_models))
    sharing = [frozenset(m for g in part for m in placement.groups[g].models) for part in components(placement.groups)]
    for m in range(num_models):
        others = next((part - {m} for part in sharing if m in part), frozenset())
        if others:
            without = _run(evaluator, placement, lambda other, m=m: other != m)
            effect[0, :, m], effect[1, :, m] = without[0] - as_is[0], as_is[1] - without[1]
            effect[:, m, m] = 0.0
        step()
        if others:
            alone[m] = _run(evaluator, placement, lambda other, m=m: other == m)[0][m]
        step()
    effect = np.where(np.isnan(as_is[0])[None, :, None], np.nan, effect)
    return Interference(
        models=tuple(model.name for model in evaluator.case.models),
        shared=tuple(as_is[0].tolist()),
        alone=tuple(alone.tolist()),
        attainment=tuple(map(tuple, effect[0].tolist())),
        latency=tuple(map(tuple, effect[1].tolist())),
    )


def _run(evaluator: Evaluator | TokenEvaluator, placement: Placement, keep: Callable[[int], bool]) -> np.ndarray:
    """Attainment and mean latency by model when the groups hold only models to `keep`."""
    groups = tuple(type(group)(group.parallel, tuple(m for m in group.models if keep(m))) for group in placement.groups)
    return _by_model(evaluator, evaluator.simulate(Placement(groups), keep_latencies=True))


def _by_model(evaluator: Evaluator | TokenEvaluator, result: SimulationResult) -> np.ndarray:
    """float64 [2, models]: attainment and mean latency of served requests; NaN where there are none."""
    assert result.latencies is not None
    num_models, served = len(evaluator.case.models), ~np.isnan(result.latencies)
    models = evaluator.workload.models[served]
    counts = np.bincount(models, minlength=num_models)
    sums = np.bincount(models, result.latencies[served], minlength=num_models)
    mean = np.divide(sums, counts, out=np.full(num_models, np.nan), where=counts > 0)
    return np.stack([result.model_attainment, mean])
