"""`paceline generate`: one prompt, one answer, streamed, with what drafting gained."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.show import LEGEND, TokenPrinter, closing_table, is_identical, verdict, why_short
from paceline.cli.terminal import messages, output, show_table
from paceline.errors import InvalidParameter
from paceline.types import SamplingParams


def generate(
    prompt: Annotated[str, typer.Argument(help="The prompt; '-' reads it from standard input.")],
    model: o.Model = o.DEFAULT_MODEL,
    draft: o.Draft = o.DEFAULT_DRAFT,
    draft_model: o.DraftModel = None,
    num_draft_tokens: o.NumDraft = None,
    rule: o.Rule = o.DEFAULT_RULE,
    policy: o.Policy = "auto",
    draft_option: o.DraftOption = None,
    policy_option: o.PolicyOption = None,
    max_tokens: o.MaxTokens = o.DEFAULT_MAX_TOKENS,
    temperature: o.Temperature = o.DEFAULT_TEMPERATURE,
    top_p: o.TopP = 1.0,
    top_k: o.TopK = 0,
    min_p: o.MinP = 0.0,
    seed: o.Seed = None,
    stop: Annotated[
        list[str] | None, o.option(o.SAMPLING, "--stop", help="String that ends the text; repeatable.")
    ] = None,
    ignore_eos: Annotated[
        bool, o.option(o.SAMPLING, "--ignore-eos", help="Go on after the end-of-sequence token.")
    ] = False,
    json_schema: Annotated[
        Path | None, o.option(o.SAMPLING, "--json-schema", help="The answer is JSON that follows this schema's file.")
    ] = None,
    regex: Annotated[str | None, o.option(o.SAMPLING, "--regex", help="The answer matches this expression.")] = None,
    raw: o.Raw = False,
    chat: o.Chat = False,
    compare: Annotated[bool, o.option(o.OUTPUT, "--compare", help="Run plain decoding too and compare.")] = False,
    dtype: o.Dtype = o.DEFAULT_DTYPE,
    threads: o.Threads = None,
    executor: o.ExecutorName = "auto",
    tensor_parallel_size: o.TensorParallel = 1,
    pipeline_parallel_size: o.PipelineParallel = 1,
    kv_cache_memory_bytes: o.CacheBytes = None,
    kv_cache_dtype: o.CacheDtype = "auto",
    as_json: o.Json = False,
) -> None:
    """Generate text, drafting ahead; the text is what the model alone would have said.

    A model with a chat template gets the prompt as a user's message in it; --raw leaves the prompt as it is.

    Examples:

        paceline generate "Explain why the sky is blue."

        paceline generate --raw "The capital of France is"

        paceline generate --draft suffix --compare "List ten rivers of Europe."

        paceline generate --temperature 0.8 --top-p 0.95 --seed 7 --rule coupled --compare "Once upon a time"

        paceline generate -m target.gguf --draft draft_model --draft-model small.gguf --compare "def fibonacci(n):"

        paceline generate --dtype w8a8 --draft suffix --compare "Say it again: the quick brown fox."

        paceline generate --pipeline-parallel-size 2 --dtype float32 "The capital of France is"

        paceline generate --json-schema person.json "Invent a person. Answer in JSON."

        paceline generate --draft ngram --max-tokens 64 --compare --json "1, 2, 3," | jq .stats
    """
    from paceline.evaluation.report import describe, run_once

    params = SamplingParams(
        temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed, max_tokens=max_tokens,
        stop=tuple(stop or ()), ignore_eos=ignore_eos, structured_outputs=_grammar(json_schema, regex),
    )  # fmt: skip
    text = sys.stdin.read() if prompt == "-" else prompt
    if not text:
        raise InvalidParameter("prompt", "is empty", "give at least one character")
    if compare and seed is None and not params.is_greedy:
        raise InvalidParameter("seed", "is missing", "sampled texts can only be compared under one seed")
    speculative = o.speculative_config(draft, draft_model, num_draft_tokens, rule, policy, draft_option, policy_option)
    llm = o.load_llm(
        model, speculative, dtype=dtype, num_threads=threads, executor=executor,
        tensor_parallel_size=tensor_parallel_size, pipeline_parallel_size=pipeline_parallel_size,
        kv_cache_memory_bytes=kv_cache_memory_bytes, kv_cache_dtype=kv_cache_dtype,
    )  # fmt: skip
    if not as_json:
        o.say_dtype(llm, dtype)
    token_ids = llm.user_prompt(text, raw)
    plain = run_once(llm.drafting_with(None), token_ids, params) if compare else None
    if as_json:
        run = run_once(llm, token_ids, params)
        print(json.dumps(_record(run, plain, describe(run, plain))))
        return
    printer = TokenPrinter(output)
    run = run_once(llm, token_ids, params, printer)
    printer.finish()
    if remark := why_short(run.output):
        messages.print(remark, soft_wrap=True)
    messages.print(LEGEND)
    show_table(closing_table(run, plain, o.drafter_of(llm)))
    if plain is not None:
        messages.print(verdict(describe(run, plain)["speedup"], is_identical(run, plain)), soft_wrap=True)


def _grammar(json_schema: Path | None, regex: str | None) -> dict[str, str] | None:
    """What the answer must follow."""
    if json_schema is None:
        return None if regex is None else {"regex": regex}
    if regex is not None:
        raise InvalidParameter("regex", "is given beside --json-schema", "leave one of the two out")
    try:
        return {"json": json_schema.read_text(encoding="utf-8")}
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter("json_schema", f"{json_schema} cannot be read ({error})", "give a JSON file") from None


def _record(run, plain, stats: dict) -> dict:
    """The JSON object of the command."""
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
