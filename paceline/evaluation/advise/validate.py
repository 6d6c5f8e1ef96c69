"""`--validate`: the best candidates and others of an advice, measured against plain decoding."""

from collections.abc import Sequence
from typing import Any

from paceline.engine.llm import LLM
from paceline.evaluation.advise.run import Advice, specs_to_validate
from paceline.evaluation.bench.own_arms import bases_of, own_arms
from paceline.evaluation.bench.record import BenchFile
from paceline.evaluation.bench.run import Plan, cells_of, run_bench
from paceline.evaluation.bench.summary import tables_of
from paceline.evaluation.prompts import Prompt
from paceline.types import NamedProgress


def validate(
    llm: LLM, advice: Advice, prompts: Sequence[Prompt], minutes: float, raw: bool, progress: NamedProgress
) -> list[dict[str, Any]]:
    """Predicted and measured, side by side, for one request at a time.

    Args:
        prompts: those of the advice.
        minutes: after which no prompt begins.
    """
    params = advice.params
    arms, _ = own_arms(llm, specs_to_validate(advice.predictions, advice.candidates), raw)
    seed = None if params.is_greedy else 0
    cells = cells_of(prompts, [params.temperature], seed=seed, max_tokens=params.max_tokens)
    file = BenchFile(None, {"arms": [arm.label for arm in arms]})
    run_bench(arms, Plan(cells, minutes=minutes), file, progress)
    if not file.measurements:
        return []
    measured = {one.arm: one.decode for one in tables_of(file.measurements, *bases_of(arms))[0].arms}
    return [
        {"draft": one.draft, "k": one.k, "predicted": one.predicted, "low": one.low, "high": one.high,
         "measured": interval.ratio, "measured_low": interval.low, "measured_high": interval.high}
        for one in advice.predictions
        if one.batch == 1 and (interval := measured.get(f"{one.draft} k={one.k}")) is not None
    ]  # fmt: skip
