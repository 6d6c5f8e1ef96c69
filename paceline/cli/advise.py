"""`paceline advise`: should you speculate on your traffic, with what, and how far; before you switch anything on."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from paceline.cli import options as o
from paceline.cli.groups import Machine, grouped
from paceline.cli.terminal import messages, output, progress_bars, show_table
from paceline.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.engine.llm import LLM
    from paceline.evaluation.advise.candidates import Candidate
    from paceline.evaluation.advise.predict import Prediction
    from paceline.evaluation.advise.replay import Text
    from paceline.evaluation.advise.run import Advice

WHAT, TIMES, RESULT = "What is asked", "What rounds cost", "What comes of it"
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Question:
    """What is replayed, on what."""

    traffic: Annotated[
        str, o.option(WHAT, "--traffic", "--prompts", help="builtin, or your log: .jsonl with prompt and answer.")
    ] = "builtin"
    candidates: Annotated[
        str | None,
        o.option(
            WHAT, "--candidates", help="a,b,c of drafters; NAME:MODEL lends a model; default what fits the model."
        ),
    ] = None
    spec: Annotated[
        list[str] | None,
        o.option(WHAT, "--spec", help='LABEL={"method": ...}: a configuration, e.g. a tree; repeatable.'),
    ] = None
    lengths: Annotated[str, o.option(WHAT, "--num-draft-tokens", "-k", help="Most drafted tokens to try.")] = "2,4,8"
    batch: Annotated[str, o.option(WHAT, "--concurrency", "-c", help="Requests that decode at once.")] = "1,4,16"
    acceptance: Annotated[
        Path | None, o.option(WHAT, "--acceptance", help="speculation_profile.json: candidates measured elsewhere.")
    ] = None
    temperature: o.Temperature = o.DEFAULT_TEMPERATURE
    max_tokens: o.MaxTokens = o.DEFAULT_MAX_TOKENS
    per_family: Annotated[int | None, o.option(WHAT, "--per-family", help="Most texts of each kind.")] = None
    raw: o.Raw = False


@dataclass(frozen=True, slots=True)
class Times:
    """Where the times of rounds come from."""

    profile: Annotated[
        Path | None, o.option(TIMES, "--profile", help="A file of `paceline tune`; measured when left out.")
    ] = None
    url: Annotated[
        str | None, o.option(TIMES, "--url", help="URL[#MODEL] of a plain server: advise for it, by its pace alone.")
    ] = None
    draft_ms: Annotated[
        float, o.option(TIMES, "--draft-ms", help="Milliseconds of drafting one token, for --acceptance.")
    ] = 0.0
    draft_url: Annotated[
        str | None, o.option(TIMES, "--draft-url", help="The draft model served alone, for its pace; with --url.")
    ] = None


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is done with the advice."""

    engines: Annotated[
        str,
        o.option(RESULT, "--for", help="Engines to write flags for: paceline, vllm, sglang, llama.cpp, tensorrt-llm."),
    ] = "paceline"
    validate: Annotated[
        float | None, o.option(RESULT, "--validate", help="Minutes to measure the best and others in, against it.")
    ] = None
    export: Annotated[
        Path | None, o.option(o.OUTPUT, "--export", help="Write acceptance by place here (JSON), for simulators.")
    ] = None
    as_json: o.Json = False


@grouped
def advise(
    model: Annotated[str, typer.Argument(help="Built-in name, GGUF file, folder or hub id.")] = o.DEFAULT_MODEL,
    *,
    question: Question,
    times: Times,
    wishes: Wishes,
    machine: Machine,
) -> None:
    """Predict what speculation would bring on your traffic, without generating where your log has the answers.

    Each candidate drafts again for every logged answer; what its rounds cost comes from `paceline tune` or a short
    measurement. Greedy answers are exact given the text, whatever drafts; sampled ones exact or unbiased.

    Examples:

        paceline advise smollm2-135m

        paceline advise target.gguf --traffic log.jsonl --candidates suffix,draft_model:small.gguf -k 2,4,8 -c 1,8

        paceline advise --candidates head --spec 'wide={"method": "head", "options": {"tree": "dynamic"}}'

        paceline advise --traffic log.jsonl --for vllm,llama.cpp --validate 5 --json

        paceline advise none --url http://localhost:8080 --candidates ngram,suffix --for llama.cpp
    """
    from paceline.evaluation.advise.flags import all_flags

    all_flags(o.names(wishes.engines), None)
    sizes = o.numbers("concurrency", question.batch, int)
    if times.url is not None and wishes.validate:
        raise InvalidParameter("validate", "is given beside --url", "measure the server with paceline bench --url")
    llm = None if times.url is not None else o.load_llm(model, None, **machine.engine())
    is_traced = wishes.export is not None
    if llm is None:
        advice = _ask_server(model, times, question, sizes)
    else:
        advice = _ask(llm, question, times, sizes, machine, is_traced)
    checked = _validate(llm, advice, question, wishes.validate) if llm and wishes.validate else None
    record = _record(advice, sizes[0], o.names(wishes.engines), checked)
    if wishes.export:
        _export(advice, wishes.export, model, question.temperature)
    print(json.dumps(record)) if wishes.as_json else _show(advice.predictions, record)


def _ask_server(model: str, times: Times, question: Question, sizes: list[int]) -> "Advice":
    """The same for a server; `model` lends its tokenizer, or is none where the server tells tokens."""
    from paceline.evaluation.advise.candidates import wanted_of
    from paceline.evaluation.advise.server import take_server_advice
    from paceline.evaluation.endpoint import connect_to
    from paceline.evaluation.prompts import load_prompts
    from paceline.models.resolve import resolve_model
    from paceline.types import SamplingParams

    server, draft = (connect_to(url) if url else None for url in (times.url, times.draft_url))
    assert server is not None
    prompts = load_prompts(question.traffic, per_family=question.per_family)
    params = SamplingParams(temperature=question.temperature, max_tokens=question.max_tokens)
    named = o.names(question.candidates) if question.candidates is not None else ["ngram", "suffix"]
    wanted = wanted_of(named, o.numbers("num_draft_tokens", question.lengths, int), question.spec or ())
    tokenizer = None if model == o.NONE else resolve_model(model).tokenizer
    known = _known(question, times)
    with progress_bars() as progress:
        return take_server_advice(server, draft, prompts, wanted, params, sizes, tokenizer, progress, known)


def _known(question: Question, times: Times) -> "Callable[[Sequence[Text]], list[Candidate]]":
    """Candidates of a file."""
    from paceline.evaluation.advise.candidates import from_profiles
    from paceline.evaluation.advise.exchange import read_profiles

    profiles = read_profiles(question.acceptance) if question.acceptance else []
    return lambda texts: from_profiles(profiles, texts, times.draft_ms / 1000)


def _export(advice: "Advice", path: Path, model: str, temperature: float) -> None:
    from paceline.evaluation.advise.exchange import write_profiles

    write_profiles(path, model, temperature, [one.record() for one in advice.in_order()])


def _ask(llm: "LLM", question: Question, times: Times, sizes: list[int], machine: Machine, is_traced: bool) -> "Advice":
    """Texts, times, replays."""
    from paceline.config import EngineConfig
    from paceline.evaluation.advise.candidates import default_candidates, wanted_of
    from paceline.evaluation.advise.run import take_advice
    from paceline.evaluation.prompts import load_prompts
    from paceline.scheduling.profile import Profile
    from paceline.types import SamplingParams

    prompts = load_prompts(question.traffic, per_family=question.per_family)
    params = SamplingParams(temperature=question.temperature, max_tokens=question.max_tokens)
    named = o.names(question.candidates) if question.candidates is not None else default_candidates(llm.loaded)
    wanted = wanted_of(named, o.numbers("num_draft_tokens", question.lengths, int), question.spec or ())
    config = EngineConfig(**machine.engine())
    measured = Profile.read(times.profile) if times.profile else None
    known = _known(question, times)
    with progress_bars() as progress:
        return take_advice(
            llm, prompts, wanted, params, sizes, config, measured, question.raw, progress, is_traced, known
        )


def _record(advice: "Advice", size: int, engines: list[str], checked: list[dict[str, Any]] | None) -> dict[str, Any]:
    """The object that scripts read."""
    from paceline.evaluation.advise.flags import all_flags
    from paceline.evaluation.advise.predict import advice_of, best_of
    from paceline.evaluation.provenance import provenance

    best = best_of(advice.predictions, size)
    flags = all_flags(engines, advice.method_of(best) if best else None, best.k if best else 0)
    return {
        "candidates": [asdict(one) for one in advice.predictions], "advice": advice_of(advice.predictions, size),
        "flags": flags, "texts": len(advice.texts), "foreign_texts": advice.num_foreign, "validation": checked,
        "provenance": provenance(),
    }  # fmt: skip


def _validate(llm: "LLM", advice: "Advice", question: Question, minutes: float) -> list[dict[str, Any]]:
    """The best candidates and two others, measured against plain decoding: predicted and measured side by side."""
    from paceline.evaluation.advise.validate import validate
    from paceline.evaluation.prompts import load_prompts

    prompts = load_prompts(question.traffic, per_family=question.per_family)
    with progress_bars() as progress:
        return validate(llm, advice, prompts, minutes, question.raw, progress)


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
