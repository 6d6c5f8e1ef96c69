"""`ModelLoss`: of each model's requests, what share missed its deadline, and why."""

from dataclasses import dataclass

import numpy as np

from paceline.placement.explain.loads import gap_cv
from paceline.placement.placement import Placement
from paceline.placement.simulator import ComponentOutcome, Evaluator


@dataclass(frozen=True)
class ModelLoss:
    """Where the requests of a model went. Attainment and the three losses are shares of them and sum to 1.

    Attributes:
        model: its name.
        rate: requests per second; cv: of the gaps between them (1 is Poisson).
        load: devices that its requests would keep busy: rate x seconds in the groups they were sent to, those of the
            best batch.
        attainment: in time; NaN, and no losses, when there were no requests.
        no_replica: no group holds the model.
        too_slow: sent to a group whose split misses the deadline even for a lone request.
        queueing: would have been in time alone, but had to wait.
    """

    model: str
    rate: float
    cv: float
    load: float
    attainment: float
    no_replica: float
    too_slow: float
    queueing: float


def model_losses(evaluator: Evaluator, placement: Placement) -> tuple[ModelLoss, ...]:
    """The losses of each model of the case."""
    outcome = evaluator.component(placement.groups)
    return tuple(_loss(evaluator, placement, m, outcome) for m in range(len(evaluator.case.models)))


def _loss(evaluator: Evaluator, placement: Placement, m: int, outcome: ComponentOutcome) -> ModelLoss:
    requests, duration = int(evaluator.requests_of[m]), max(evaluator.workload.duration, 1e-12)
    deadline = float(np.float32(evaluator.case.models[m].slo))
    sent_seconds, too_slow, queueing = 0.0, 0, 0
    for g, group in enumerate(placement.groups):
        if m not in group.models:
            continue
        seconds = float(evaluator.stage_seconds(m, group.parallel).sum(dtype=np.float64))
        rejected = int(outcome.rejected[g, m])
        busy = evaluator.busy_seconds(m, group.parallel)
        sent_seconds += (int(outcome.served[g, m]) + rejected) * busy * group.parallel.tensor
        if seconds + evaluator.rules.overhead > deadline:
            too_slow += rejected
        else:
            queueing += rejected
    held = any(m in group.models for group in placement.groups)

    def share(count: int) -> float:
        return count / requests if requests else float("nan")

    return ModelLoss(
        model=evaluator.case.models[m].name,
        rate=requests / duration,
        cv=gap_cv(evaluator.workload.times_of(m)),
        load=sent_seconds / duration,
        attainment=share(int(outcome.served[:, m].sum())),
        no_replica=share(0 if held else requests),
        too_slow=share(too_slow),
        queueing=share(queueing),
    )
