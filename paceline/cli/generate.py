"""`paceline generate`: one prompt, one answer, streamed, with what drafting gained."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli.options import model as o
from paceline.cli.options.groups import Devices, Drafting, Sampling, grouped
from paceline.cli.options.prompts import argument_text, read_standard_input, read_text
from paceline.cli.terminal.runs import LEGEND, TokenPrinter, closing_table, is_identical, verdict, why_cut, why_short
from paceline.cli.terminal.streams import messages, output, show_table, tell_waiting, warnings_later
from paceline.errors import InvalidParameter, PromptTooLong
from paceline.types import SamplingParams

if TYPE_CHECKING:
    from paceline.engine.llm import LLM

_LONG_PROMPT = 256
"""Prompts of that many tokens take a while to read."""


@dataclass(frozen=True, slots=True)
class Answer(Sampling):
    """How the answer is drawn, where it ends, and what it must follow."""

    stop: Annotated[list[str] | None, o.option(o.SAMPLING, "--stop", help="String that ends the text; repeatable.")] = (
        None
    )
    ignore_eos: Annotated[bool, o.option(o.SAMPLING, "--ignore-eos", help="Go on after the end-of-sequence token.")] = (
        False
    )
    json_schema: Annotated[
        str | None,
        o.option(o.SAMPLING, "--json-schema", help="The answer is JSON that follows this schema: a file, or itself."),
    ] = None
    regex: Annotated[str | None, o.option(o.SAMPLING, "--regex", help="The answer matches this expression.")] = None

    def params(self, **more: Any) -> SamplingParams:
        """See `Sampling`."""
        grammar = _grammar(self.json_schema, self.regex)
        stop = tuple(self.stop or ())
        return Sampling.params(self, stop=stop, ignore_eos=self.ignore_eos, structured_outputs=grammar, **more)


@grouped
def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; '-' reads it from standard input.")],
    model: o.Model = o.DEFAULT_MODEL,
    *,
    drafting: Drafting,
    answer: Answer,
    system: o.System = None,
    raw: o.Raw = False,
    suffix: Annotated[
        str | None,
        o.option(o.SAMPLING, "--suffix", help="Text after the gap to fill; for models of code."),
    ] = None,
    chat_template: o.ChatTemplate = None,
    compare: Annotated[bool, o.option(o.OUTPUT, "--compare", help="Run plain decoding too and compare.")] = False,
    devices: Devices,
    as_json: o.Json = False,
) -> None:
    """Generate text, drafting ahead; the text is what the model alone would have said.

    A model with a chat template, or one that is given a template, gets the prompt as a user's message in it; --raw
    leaves the prompt as it is.

    Examples:

        paceline generate "Explain why the sky is blue."

        paceline generate --raw "The capital of France is"

        paceline generate --draft suffix --compare "List ten rivers of Europe."

        paceline generate --temperature 0.8 --top-p 0.95 --seed 7 --rule coupled --compare "Once upon a time"

        paceline generate -m target.gguf --draft draft_model --draft-model small.gguf --compare "def fibonacci(n):"

        paceline generate --dtype w8a8 --draft suffix --compare "Say it again: the quick brown fox."

        paceline generate --pipeline-parallel-size 2 --dtype float32 "The capital of France is"

        paceline generate -m coder.gguf --suffix "    return total" "def mean(values):"

        paceline generate --json-schema person.json "Invent a person. Answer in JSON."

        paceline generate --json-schema '{"type": "object"}' "Invent a person. Answer in JSON."

        paceline generate --draft ngram --max-tokens 64 --compare --json "1, 2, 3," | jq .stats
    """
    params = answer.params()
    text = read_standard_input() if prompt == "-" else argument_text("prompt", prompt)
    system = None if system is None else argument_text("system", system)
    suffix = argument_text("suffix", suffix) if suffix else None
    if not (text or suffix):
        raise InvalidParameter("prompt", "is empty", "give at least one character")
    for option, is_given in (("--chat-template", chat_template), ("--system", system)):
        if is_given and (raw or suffix is not None):
            problem = f"is given beside {option}"
            raise InvalidParameter("raw" if suffix is None else "suffix", problem, "leave one of the two out")
    if compare and answer.seed is None and not params.is_greedy:
        raise InvalidParameter("seed", "is missing", "sampled texts can only be compared under one seed")
    speculative = drafting.config()
    if compare and speculative is None:
        raise InvalidParameter("compare", "--draft none is plain decoding itself", "name a drafter, or leave one out")
    if compare and speculative is not None and speculative.num_draft_tokens == 0:
        raise InvalidParameter("compare", "-k 0 is plain decoding itself", "give 1 or more, or leave one out")
    llm = o.load_llm(model, speculative, chat_template=chat_template, **devices.engine())
    if not as_json:
        o.say_dtype(llm, devices.dtype)
    if suffix is None and not raw and not llm.tokenizer.has_chat_template:
        if system is not None:
            remedy = "give the model a template with --chat-template, or leave it out"
            raise InvalidParameter("system", "the model has no chat template to put it into", remedy)
        said = "the model has no chat template, so the prompt is used as it is; --chat-template gives it one"
        messages.print(said, style="dim", soft_wrap=True)
    try:
        if suffix is None:
            token_ids = _prompt_ids(llm, system, text, raw)
        else:
            gap = {"prompt": text, "suffix": suffix}
            token_ids, params = llm.token_ids_of(gap), llm.params_for(gap, params)
        _answer(llm, token_ids, params, compare, as_json)
    except PromptTooLong as error:
        raise error.about("prompt") from None  # the engine was given token ids
    except InvalidParameter as error:
        if error.field != "structured_outputs":
            raise
        name, kind = ("regex", "regex") if answer.json_schema is None else ("json_schema", "json")
        raise InvalidParameter(name, error.problem.removeprefix(f"{kind}: "), error.remedy) from None


def _prompt_ids(llm: "LLM", system: str | None, text: str, raw: bool) -> list[int]:
    if system is None:
        return llm.user_prompt(text, raw)
    told = {"role": "system", "content": system}
    return llm.chat_prompt([told, {"role": "user", "content": text}])


def _answer(llm: "LLM", token_ids: list[int], params: SamplingParams, compare: bool, as_json: bool) -> None:
    """Print the answer, streamed with a table at the end or as one JSON object."""
    from paceline.evaluation.report import Run, describe, is_plausible, run_once, speedup_of, warm_up

    plain: Run | None = None
    if compare:
        tell_waiting("plain decoding first ...")
        plain_llm = llm.drafting_with(None)
        warm_up(plain_llm, llm, token_ids=token_ids)
        plain = run_once(plain_llm, token_ids, params)
    if len(token_ids) >= _LONG_PROMPT:
        tell_waiting(f"reading the prompt, {len(token_ids)} tokens ...")
    if as_json:
        run = run_once(llm, token_ids, params)
        print(json.dumps(_record(run, plain, describe(run, plain))))
        return
    printer = TokenPrinter(output)
    with warnings_later():
        run = run_once(llm, token_ids, params, printer)
        printer.finish()
    if remark := why_short(run.output):
        messages.print(remark, soft_wrap=True)
    elif remark := why_cut(run.output, params.max_tokens):
        messages.print(remark, style="dim", soft_wrap=True)
    messages.print(LEGEND)
    show_table(closing_table(run, plain, o.drafter_of(llm)))
    if plain is not None:
        said = verdict(speedup_of(run, plain), is_identical(run, plain), run.output.lossy, is_plausible(run, plain))
        messages.print(said, soft_wrap=True)


def _grammar(json_schema: str | None, regex: str | None) -> dict[str, str] | None:
    """What the answer must follow."""
    if json_schema is None:
        return None if regex is None else {"regex": regex}
    if regex is not None:
        raise InvalidParameter("regex", "is given beside --json-schema", "leave one of the two out")
    is_schema = json_schema.lstrip()[:1] in ("{", "")
    text = argument_text("json_schema", json_schema) if is_schema else read_text("json_schema", Path(json_schema))
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        problem = f"{'the schema' if is_schema else json_schema} is no JSON ({error})"
        remedy = """write e.g. '{"type": "object"}', or name a file that holds it"""
        raise InvalidParameter("json_schema", problem, remedy) from None
    return {"json": text}


def _record(run, plain, stats: dict) -> dict:
    """The JSON object."""
    output = run.output
    record = {
        "text": output.text,
        "token_ids": list(output.token_ids),
        "provenance": list(output.provenance),
        "finish_reason": output.finish_reason,
        "lossy": output.lossy,
        "stats": stats,
    }
    if plain is not None:
        record["plain"] = {
            "text": plain.output.text,
            "token_ids": list(plain.output.token_ids),
            "tokens_per_second": plain.tokens_per_second,
        }
        record["identical"] = is_identical(run, plain)
    return record
