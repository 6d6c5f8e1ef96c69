"""`--validate`: measuring some candidates of an advice, the best ones included, against plain decoding."""

from collections.abc import Sequence
from typing import Any

from paceline.engine.llm import LLM
from paceline.evaluation.advise.run import Advice, specs_to_validate
from paceline.evaluation.bench.arms import Cell
from paceline.evaluation.bench.own_arms import bases_of, own_arms
from paceline.evaluation.bench.record import BenchFile
from paceline.evaluation.bench.run import Plan, cells_of, run_bench
from paceline.evaluation.bench.summary import tables_of
from paceline.evaluation.prompts import Prompt
from paceline.types import NamedProgress, SamplingParams


def cells_to_validate(prompts: Sequence[Prompt], params: SamplingParams, batch: int) -> list[Cell]:
    """The cells to measure. Raises InvalidParameter if no family has `batch` prompts."""
    seed = None if params.is_greedy else 0
    return cells_of(prompts, [params.temperature], [batch], seed, params.max_tokens)


def validate(
    llm: LLM, advice: Advice, prompts: Sequence[Prompt], batch: int, minutes: float, raw: bool, progress: NamedProgress
) -> tuple[list[dict[str, Any]], bool]:
    """Predicted and measured ratios at `batch` concurrent requests; ``why`` if nothing was measured.

    Also whether Ctrl-C ended the measurement.

    Args:
        prompts: those of the advice.
        minutes: time after which no prompt begins.
    """
    own = [one for one in advice.predictions if one.batch == batch]
    specs = specs_to_validate(own, advice.candidates)
    arms, skipped = own_arms(llm, specs, raw)
    file = BenchFile(None, {"arms": [arm.label for arm in arms]})
    ended = run_bench(arms, Plan(cells_to_validate(prompts, advice.params, batch), minutes=minutes), file, progress)
    tables = tables_of(file.measurements, *bases_of(arms)) if file.measurements else []
    measured = {one.arm: one.decode for one in (tables[0].arms if tables else ())}
    found, is_ended = list[dict[str, Any]](), ended == "interrupted"
    for one in own:
        label = f"{one.draft} k={one.k}"
        if label not in specs:
            continue
        told = {name: getattr(one, name) for name in ("draft", "k", "batch", "predicted", "low", "high")}
        interval, why = measured.get(label), skipped.get(label)
        if interval is None:
            why = why or ("ended before" if is_ended else f"no prompt was answered in {minutes:g} minutes")
            found.append(told | {"measured": None, "why": why})
        else:
            ends = {"measured_low": interval.low, "measured_high": interval.high}
            found.append(told | {"measured": interval.ratio, **ends})
    return found, is_ended
