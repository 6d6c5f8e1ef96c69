"""`paceline advise`: should you speculate on your traffic, with what, and how far; before you switch anything on."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from paceline.cli import options as o
from paceline.cli.terminal import messages, output, progress_bars, show_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.engine.llm import LLM
    from paceline.evaluation.advise.predict import Prediction

WHAT = "What is asked"
_SHOWN = 12


def advise(
    model: Annotated[str, typer.Argument(help="Built-in name, GGUF file, folder or hub id.")] = o.DEFAULT_MODEL,
    traffic: Annotated[
        str, o.option(WHAT, "--traffic", "--prompts", help="builtin, or your log: .jsonl with prompt and answer.")
    ] = "builtin",
    candidates: Annotated[
        str, o.option(WHAT, "--candidates", help="a,b,c: ngram, suffix, draft_model:NAME.")
    ] = "ngram,suffix",
    lengths: Annotated[str, o.option(WHAT, "--num-draft-tokens", "-k", help="Most drafted tokens to try.")] = "2,4,8",
    batch: Annotated[str, o.option(WHAT, "--concurrency", "-c", help="Requests that decode at once.")] = "1,4,16",
    temperature: o.Temperature = o.DEFAULT_TEMPERATURE,
    max_tokens: o.MaxTokens = o.DEFAULT_MAX_TOKENS,
    per_family: Annotated[int | None, o.option(WHAT, "--per-family", help="Most texts of each kind.")] = None,
    profile: Annotated[
        Path | None, o.option(WHAT, "--profile", help="A file of `paceline tune`; measured when left out.")
    ] = None,
    engines: Annotated[
        str,
        o.option(WHAT, "--for", help="Engines to write flags for: paceline, vllm, sglang, llama.cpp, tensorrt-llm."),
    ] = "paceline",
    validate: Annotated[
        float | None, o.option(WHAT, "--validate", help="Minutes to measure the best and others in, against it.")
    ] = None,
    export: Annotated[
        Path | None, o.option(o.OUTPUT, "--export", help="Write acceptance by place here (JSON), for simulators.")
    ] = None,
    raw: o.Raw = False,
    dtype: o.Dtype = o.DEFAULT_DTYPE,
    threads: o.Threads = None,
    executor: o.ExecutorName = "auto",
    as_json: o.Json = False,
) -> None:
    """Predict what speculation would bring on your traffic, without generating where your log has the answers.

    Each candidate drafts again for every logged answer; what its rounds cost comes from `paceline tune` or a short
    measurement. Lookups and greedy draft models are exact given the text, sampled ones unbiased.

    Examples:

        paceline advise smollm2-135m

        paceline advise target.gguf --traffic log.jsonl --candidates suffix,draft_model:small.gguf -k 2,4,8 -c 1,8

        paceline advise --traffic log.jsonl --for vllm,llama.cpp --validate 5 --json
    """
    from paceline.config import EngineConfig
    from paceline.evaluation.advise.flags import all_flags
    from paceline.evaluation.advise.predict import advice_of, best_of
    from paceline.evaluation.advise.run import predictions_of, profile_of, replayed
    from paceline.evaluation.advise.texts import texts_of
    from paceline.evaluation.prompts import load_prompts
    from paceline.evaluation.provenance import provenance
    from paceline.scheduling.profile import Profile
    from paceline.types import SamplingParams

    sizes = o.numbers("concurrency", batch, int)
    all_flags(o.names(engines), None)
    prompts = load_prompts(traffic, per_family=per_family)
    params = SamplingParams(temperature=temperature, max_tokens=max_tokens)
    llm = o.load_llm(model, None, dtype=dtype, num_threads=threads, executor=executor)
    config = EngineConfig(dtype=dtype, num_threads=threads, executor=executor)  # type: ignore[arg-type]
    with progress_bars() as progress:
        measured = Profile.read(profile) if profile else profile_of(llm.loaded, config, progress)
        texts, num_foreign = texts_of(llm, prompts, params, raw, progress)
        every = o.numbers("num_draft_tokens", lengths, int)
        found = replayed(llm, o.names(candidates), every, texts, params, config, progress)
    predictions = predictions_of(found, texts, measured, sizes, llm.dtype)
    best = best_of(predictions, sizes[0])
    flags = all_flags(o.names(engines), best.draft if best else None, best.k if best else 0)
    checked = _validate(llm, predictions, [p.text for p in prompts], params, validate, raw) if validate else None
    if export:
        head = {"format": "paceline-speculation-profile", "version": 1, "model": model, "temperature": temperature}
        export.write_text(json.dumps(head | {"candidates": [one.record() for one in found]}, indent=1) + "\n")
    record = {
        "candidates": [asdict(one) for one in predictions], "advice": advice_of(predictions, sizes[0]), "flags": flags,
        "texts": len(texts), "foreign_texts": num_foreign, "validation": checked, "provenance": provenance(),
    }  # fmt: skip
    if as_json:
        print(json.dumps(record))
        return
    _show(predictions, record)


def _validate(
    llm: "LLM", predictions: "Sequence[Prediction]", texts: list[str], params: Any, minutes: float, raw: bool
) -> list[dict[str, Any]]:
    """The best candidates and two others, measured against plain decoding: predicted and measured side by side."""
    from paceline.evaluation.advise.run import specs_to_validate
    from paceline.evaluation.bench.own_arms import bases_of, own_arms
    from paceline.evaluation.bench.record import BenchFile
    from paceline.evaluation.bench.run import Plan, cells_of, run_bench
    from paceline.evaluation.bench.summary import tables_of
    from paceline.evaluation.prompts import Prompt

    arms, _ = own_arms(llm, specs_to_validate(predictions), raw)
    seed = None if params.is_greedy else 0
    cells = cells_of([Prompt(text) for text in texts], [params.temperature], seed=seed, max_tokens=params.max_tokens)
    file = BenchFile(None, {"arms": [arm.label for arm in arms]})
    with progress_bars() as progress:
        run_bench(arms, Plan(cells, minutes=minutes), file, progress)
    if not file.measurements:
        return []
    measured = {one.arm: one.decode for one in tables_of(file.measurements, *bases_of(arms))[0].arms}
    return [
        {"draft": one.draft, "k": one.k, "predicted": one.predicted, "low": one.low, "high": one.high,
         "measured": interval.ratio, "measured_low": interval.low, "measured_high": interval.high}
        for one in predictions
        if one.batch == 1 and (interval := measured.get(f"{one.draft} k={one.k}")) is not None
    ]  # fmt: skip


def _show(predictions: "Sequence[Prediction]", record: dict[str, Any]) -> None:
    """The table, the advice and the flags."""
    table = Table(
        "drafter", "k", "at once", "predicted", "95 %", "tokens/pass", "break-even", "texts that lose",
        title="Predicted speed-up over plain decoding", title_justify="left",
    )  # fmt: skip
    for one in predictions[: _SHOWN * len({p.batch for p in predictions})]:
        interval = "-" if one.low is None or one.high is None else f"[{one.low:.2f}, {one.high:.2f}]"
        numbers = [f"{value:.2f}" for value in (one.predicted, one.tokens_per_pass, one.break_even)]
        losing = f"{100 * one.losing_share:.0f} %"
        table.add_row(one.draft, str(one.k), str(one.batch), numbers[0], interval, *numbers[1:], losing)
    show_table(table)
    if record["foreign_texts"]:
        remark = f"{record['foreign_texts']} logged answers are not this model's; it answered those prompts itself."
        messages.print(remark, soft_wrap=True)
    for one in record["validation"] or ():
        output.print(f"{one['draft']} k={one['k']}: predicted {one['predicted']:.2f}, measured {one['measured']:.2f}")
    output.print(record["advice"], soft_wrap=True)
    for engine, told in record["flags"].items():
        text = told["flags"] or "cannot express this drafter"
        output.print(f"{engine}: {text}  ({told['source']}) {told['remark']}", soft_wrap=True)
