"""The controller's rules written down plainly: the slow, clear twin of `simulator/kernel.py`."""

import numpy as np

from paceline.placement import Case, Placement


def plain_simulate(placement: Placement, case: Case, wrong: str = "") -> list[float | None]:
    """Seconds from arrival to answer of each request, None where it was turned away.

    `wrong` breaks a rule: rejected requests "occupy" their group, or the group that frees "first" by its first stage is
    taken.
    """
    clocks = [[0.0] * group.parallel.pipeline for group in placement.groups]
    answers: list[float | None] = []
    for arrival, model in zip(case.workload.times.tolist(), case.workload.models.tolist(), strict=True):
        holding = [g for g, group in enumerate(placement.groups) if model in group.models]
        if not holding:
            answers.append(None)
            continue
        chosen = min(holding, key=lambda g: (clocks[g][0 if wrong == "first" else -1], g))
        passed = _pass(arrival, clocks[chosen], _stage_seconds(placement, case, chosen, model))
        latency = passed[-1] + 0.011 - arrival
        in_time = latency <= np.float32(case.models[model].slo)
        if in_time or wrong == "occupy":
            clocks[chosen] = passed
        answers.append(latency if in_time else None)
    return answers


def _stage_seconds(placement: Placement, case: Case, group: int, model: int) -> list[float]:
    parallel = placement.groups[group].parallel
    latency = case.profile_of(model).stages(parallel).latency
    return [float(np.float32(seconds * (1 + 0.009 * parallel.pipeline))) for seconds in latency]


def _pass(arrival: float, clocks: list[float], seconds: list[float]) -> list[float]:
    passed, clock = [], arrival
    for free, busy in zip(clocks, seconds, strict=True):
        clock = max(clock, free) + busy
        passed.append(clock)
    return passed
