"""`explain`: every part of the answer for one placement, put together."""

from dataclasses import asdict, dataclass
from typing import Any

from paceline.placement.case import Case
from paceline.placement.explain.ablations import Ablations, ReplicaAblation, SplitAblation
from paceline.placement.explain.interference import Interference, interference
from paceline.placement.explain.loads import GroupLoad, group_loads
from paceline.placement.explain.losses import ModelLoss, model_losses
from paceline.placement.placement import Placement
from paceline.placement.simulator import Evaluator
from paceline.placement.simulator.token_evaluator import TokenEvaluator
from paceline.theory.json_values import finite
from paceline.types import Progress


@dataclass(frozen=True)
class Explanation:
    """Why a placement fares as it does.

    Attributes:
        groups: load, queue and burstiness of each group.
        models: of each model, what share of its requests was lost to what.
        replicas: what each model in each group buys.
        splits: what the split of each group of several devices buys against the other ways to use them.
        interference: how models that share groups slow each other.
    """

    groups: tuple[GroupLoad, ...]
    models: tuple[ModelLoss, ...]
    replicas: tuple[ReplicaAblation, ...]
    splits: tuple[SplitAblation, ...]
    interference: Interference

    def to_record(self) -> dict[str, Any]:
        """For JSON: nested lists and mappings; what is infinite or undefined is None."""
        return finite(asdict(self))


def explain(case: Case, placement: Placement, progress: Progress | None = None) -> Explanation:
    """Explain `placement` on the arrivals of `case`; simulates about once per replica and twice per model.

    Of requests that are generated token by token only the interference: they share passes, so that loads and losses
    cannot be told apart.

    Args:
        progress: told now and then how many of how many simulations are done.

    Raises:
        InvalidParameter: the case's cluster cannot hold the placement (`placement.validate`).
    """
    if case.is_generated:
        return _explain_generated(TokenEvaluator(case), placement, progress)
    evaluator = Evaluator(case)
    result = evaluator.simulate(placement, keep_latencies=True)
    ablations = Ablations(evaluator, placement)
    shares, replicas = len(case.models), len(ablations.held)
    total = replicas + len(ablations.wide) + 2 * shares
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    return Explanation(
        groups=group_loads(evaluator, placement, result),
        models=model_losses(evaluator, placement),
        replicas=tuple(ablations.replicas(step)),
        splits=tuple(ablations.splits(step)),
        interference=interference(evaluator, placement, result, step),
    )


def _explain_generated(evaluator: TokenEvaluator, placement: Placement, progress: Progress | None) -> Explanation:
    result, total, done = evaluator.simulate(placement, keep_latencies=True), 2 * len(evaluator.case.models), 0

    def step() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    return Explanation((), (), (), (), interference(evaluator, placement, result, step))
