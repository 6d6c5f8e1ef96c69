"""`paceline advise`: should you speculate on your traffic, with what, and how far; before you switch anything on."""

import json
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from paceline.cli.options import model as o
from paceline.cli.options.given import options_of, refuse_given
from paceline.cli.options.groups import Machine, grouped
from paceline.cli.terminal.streams import messages, output, progress_bars, show_table, telling_end
from paceline.disk import check_file
from paceline.errors import InvalidParameter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.engine.llm import LLM
    from paceline.evaluation.advise.candidates import Candidate, Wanted
    from paceline.evaluation.advise.predict import Prediction
    from paceline.evaluation.advise.replay import Text
    from paceline.evaluation.advise.run import Advice
    from paceline.evaluation.prompts import Prompt
    from paceline.scheduling.profile import Profile
    from paceline.types import SamplingParams

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

    def prompts(self) -> "list[Prompt]":
        """The prompts, with their logged answers if there are any."""
        from paceline.evaluation.prompts import load_prompts

        return load_prompts(self.traffic, per_family=self.per_family)

    def params(self) -> "SamplingParams":
        """The sampling parameters of answers. Raises InvalidParameter for a single token."""
        from paceline.types import SamplingParams

        if self.max_tokens == 1:
            problem = "1 leaves nothing to draft: the first token comes with the prompt"
            raise InvalidParameter("max_tokens", problem, "give at least 2")
        return SamplingParams(temperature=self.temperature, max_tokens=self.max_tokens)

    def wanted(self, default: "Sequence[str]" = ()) -> "list[Wanted]":
        """The candidates to replay; `default` if none are named."""
        from paceline.evaluation.advise.candidates import wanted_of

        named = o.names(self.candidates) if self.candidates is not None else default
        if self.candidates is not None and not (named or self.spec or self.acceptance):
            remedy = "name some, e.g. ngram,suffix, or leave it out for what fits the model"
            raise InvalidParameter("candidates", f"{self.candidates!r} names no drafter", remedy)
        return wanted_of(named, _counts("num_draft_tokens", self.lengths), self.spec or ())

    def known(self, draft_ms: float) -> "Callable[[Sequence[Text]], list[Candidate]]":
        """A function from texts to the candidates of the file `acceptance`, with `draft_ms` per drafted token."""
        from paceline.evaluation.advise.candidates import from_profiles
        from paceline.evaluation.advise.exchange import read_profiles

        profiles = read_profiles(self.acceptance) if self.acceptance else []
        return lambda texts: from_profiles(profiles, texts, draft_ms / 1000)

    @property
    def at_once(self) -> list[int]:
        """Numbers of concurrent requests."""
        return _counts("concurrency", self.batch)


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
    context: typer.Context,
    model: o.ModelOrServers = o.DEFAULT_MODEL,
    *,
    question: Question,
    times: Times,
    wishes: Wishes,
    machine: Machine,
) -> None:
    """Predict what speculation would bring on your traffic, without generating where your log has the answers.

    Each candidate drafts again for every logged answer; what its rounds cost comes from `paceline tune` or a short
    measurement. Greedy answers are exact given the text, whatever drafts; sampled ones exact or unbiased. Takes five
    to ten minutes for the default model and options on two cores, less with --per-family and fewer -k and -c.

    Examples:

        paceline advise smollm2-135m

        paceline advise target.gguf --traffic log.jsonl --candidates suffix,draft_model:small.gguf -k 2,4,8 -c 1,8

        paceline advise --candidates head --spec 'wide={"method": "head", "options": {"tree": "dynamic"}}'

        paceline advise --traffic log.jsonl --for vllm,llama.cpp --validate 5 --json

        paceline advise none --url http://localhost:8080 --candidates ngram,suffix --for llama.cpp
    """
    from paceline.evaluation.advise.flags import all_flags

    all_flags(o.names(wishes.engines), None)
    _check_given(context, question, times)
    if times.url is None:
        o.need_model(model)
    asked = _asked(question, times, wishes)
    llm, checked, is_ended = None, None, False
    with telling_end("ended before there was an advice; nothing is written"):
        if times.url is not None:
            advice = _ask_server(model, times, asked)
        else:
            llm = o.load_llm(model, None, **machine.engine())
            advice = _ask(llm, question, asked, machine, is_traced=wishes.export is not None)
    if llm and wishes.validate:
        checked, is_ended = _validate(llm, advice, asked, question.raw, wishes.validate)
    record = _record(advice, asked.sizes[0], o.names(wishes.engines), checked)
    if wishes.export:
        _export(advice, wishes.export, model, question.temperature)
    print(json.dumps(record)) if wishes.as_json else _show(advice.predictions, record)
    if is_ended:
        messages.print("ended while the advice was validated; the advice itself is complete", soft_wrap=True)
        raise typer.Exit(130)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The parsed and checked options, before a model is loaded."""

    prompts: "list[Prompt]"
    params: "SamplingParams"
    wanted: "Callable[[Sequence[str]], list[Wanted]]"
    known: "Callable[[Sequence[Text]], list[Candidate]]"
    sizes: list[int]
    profile: "Profile | None"


def _check_given(context: typer.Context, question: Question, times: Times) -> None:
    """Raise InvalidParameter for an option that was given but would have no effect."""
    if times.url is not None:
        refuse_given(context, {"validate"}, "is given beside --url", "measure the server with paceline bench --url")
        names = options_of(Machine) | {"profile", "raw"}
        refuse_given(
            context, names, "is given beside --url: a server runs already and tells its own pace", "leave it out"
        )
    else:
        remedy = "name the server that it would draft for with --url, or leave it out"
        refuse_given(context, {"draft_url"}, "is given without --url", remedy)
    if question.acceptance is None:
        remedy = "name the file of candidates that it prices, or leave it out: other drafts are timed"
        refuse_given(context, {"draft_ms"}, "is given without --acceptance", remedy)


def _asked(question: Question, times: Times, wishes: Wishes) -> _Asked:
    """Parse the options. Raises InvalidParameter for all errors that can be found without the model."""
    from paceline.evaluation.advise.candidates import check_names
    from paceline.evaluation.advise.validate import cells_to_validate
    from paceline.scheduling.profile import Profile

    if wishes.validate is not None and not 0 < wishes.validate < inf:
        raise InvalidParameter("validate", f"{wishes.validate} is not above 0", "give minutes")
    if not 0 <= times.draft_ms < inf:
        raise InvalidParameter("draft_ms", f"{times.draft_ms} is no time", "give milliseconds")
    if wishes.export is not None:
        check_file("export", wishes.export)
    wanted = question.wanted()
    check_names(wanted)
    if times.draft_url is not None and not any(one.spec["method"] == "draft_model" for one in wanted):
        raise InvalidParameter("draft_url", "is given, and no candidate is a draft model", "add draft_model:NAME")
    profile = Profile.read(times.profile) if times.profile else None
    known = question.known(times.draft_ms)
    asked = _Asked(question.prompts(), question.params(), question.wanted, known, question.at_once, profile)
    if wishes.validate is not None:
        cells_to_validate(asked.prompts, asked.params, asked.sizes[0])
    return asked


def _counts(field: str, text: str) -> list[int]:
    """Parse ``1,2,4`` into distinct whole numbers of at least 1. Raises InvalidParameter for anything else."""
    found = o.distinct_numbers(field, text, int)
    if min(found) < 1:
        raise InvalidParameter(field, f"{text!r} has a number below 1", "write e.g. 1,4,8")
    return found


def _ask_server(model: str, times: Times, asked: _Asked) -> "Advice":
    """The advice for a server; `model` provides the tokenizer, or is ``none`` if the server has ``/tokenize``."""
    from paceline.evaluation.advise.server import take_server_advice
    from paceline.evaluation.endpoint import connect_to
    from paceline.models.resolve import resolve_model

    server, draft = (connect_to(url) if url else None for url in (times.url, times.draft_url))
    assert server is not None
    tokenizer = None if model == o.NONE else resolve_model(model).tokenizer
    wanted = asked.wanted(["ngram", "suffix"])
    with progress_bars() as progress:
        return take_server_advice(
            server, draft, asked.prompts, wanted, asked.params, asked.sizes, tokenizer, progress, asked.known
        )


def _export(advice: "Advice", path: Path, model: str, temperature: float) -> None:
    from paceline.evaluation.advise.exchange import write_profiles

    write_profiles(path, model, temperature, [one.record() for one in advice.in_order()])


def _ask(llm: "LLM", question: Question, asked: _Asked, machine: Machine, is_traced: bool) -> "Advice":
    """The advice for a local model."""
    from paceline.config import EngineConfig
    from paceline.evaluation.advise.candidates import default_candidates
    from paceline.evaluation.advise.run import take_advice

    config = EngineConfig(**machine.engine())
    wanted = asked.wanted(default_candidates(llm.loaded))
    with progress_bars() as progress:
        return take_advice(
            llm, asked.prompts, wanted, asked.params, asked.sizes, config, asked.profile, question.raw, progress,
            is_traced, asked.known,
        )  # fmt: skip


def _record(advice: "Advice", size: int, engines: list[str], checked: list[dict[str, Any]] | None) -> dict[str, Any]:
    """The JSON object."""
    from paceline.evaluation.advise.flags import all_flags
    from paceline.evaluation.advise.predict import advice_of, best_of, pays_up_to, regret_of
    from paceline.evaluation.provenance import provenance

    best = best_of(advice.predictions, size)
    flags = all_flags(engines, advice.spec_of(best) if best else None, best.k if best else 0)
    predictions, regret = advice.predictions, regret_of(advice.predictions, size)
    return {
        "candidates": [asdict(one) | {"pays_up_to": pays_up_to(predictions, one)} for one in predictions],
        "advice": advice_of(predictions, size), "regret": asdict(regret) if regret else None, "flags": flags,
        "texts": len(advice.texts), "foreign_texts": advice.num_foreign, "validation": checked,
        "provenance": provenance(),
    }  # fmt: skip


def _validate(
    llm: "LLM", advice: "Advice", asked: _Asked, raw: bool, minutes: float
) -> tuple[list[dict[str, Any]] | None, bool]:  # fmt: skip
    """The best candidates and two others, measured against plain decoding: predicted and measured side by side.

    Also whether Ctrl-C ended it; then there is what was measured before, or None if nothing was.
    """
    from paceline.evaluation.advise.validate import validate

    try:
        with progress_bars() as progress:
            return validate(llm, advice, asked.prompts, asked.sizes[0], minutes, raw, progress)
    except KeyboardInterrupt:
        return None, True


def _show(predictions: "Sequence[Prediction]", record: dict[str, Any]) -> None:
    """The table, the advice and the flags."""
    table = Table(
        "drafter", "k", "at once", "predicted", "95 %", "tokens/pass", "break-even", "texts that lose", "pays up to",
        title="Predicted speed-up over plain decoding with exactly k drafted tokens", title_justify="left",
    )  # fmt: skip
    shown = _SHOWN * len({one.batch for one in predictions})
    for one, told in list(zip(predictions, record["candidates"], strict=True))[:shown]:
        interval = "-" if one.low is None or one.high is None else f"[{one.low:.2f}, {one.high:.2f}]"
        numbers = [f"{value:.2f}" for value in (one.predicted, one.tokens_per_pass, one.break_even)]
        losing = f"{100 * one.losing_share:.0f} %"
        until = str(told["pays_up_to"] or "-")
        table.add_row(one.draft, str(one.k), str(one.batch), numbers[0], interval, *numbers[1:], losing, until)
    show_table(table, output)
    if record["foreign_texts"]:
        remark = f"{record['foreign_texts']} logged answers are not this model's; it answered those prompts itself."
        messages.print(remark, soft_wrap=True)
    for one in record["validation"] or ():
        measured = f"not measured, {one['why']}" if one["measured"] is None else f"measured {one['measured']:.2f}"
        text = f"{one['draft']} k={one['k']}, {one['batch']} at once: predicted {one['predicted']:.2f}, {measured}"
        output.print(text, soft_wrap=True)
    output.print(record["advice"], soft_wrap=True)
    if (regret := record["regret"]) is not None:
        against = f"{regret['against']} is at the upper end of its interval and the advice at the lower end of its own"
        text = f"The advice loses {100 * regret['share']:.0f} % of the best speed if {against}."
        output.print(text, soft_wrap=True)
    for engine, told in record["flags"].items():
        text = told["flags"] or "cannot express this drafter"
        output.print(f"{engine}: {text}  ({told['source']}) {told['remark']}".rstrip(), soft_wrap=True)
