"""Structured output on a real model: validity of answers, equality with and without drafts, and the grammar's cost.

Three hundred random schemas (tests/schemas.py), greedy and sampled with a seed, plain and with drafts. Every answer
must be complete and valid for a validator that is not the one in use here, and the same token for token with drafts.

Speed: the same number of tokens for the same prompts, one request at a time and in turns: plain decoding without a
grammar, with one and no drafts at all, with the tokens that the grammar forces as drafts, and with the model's drafter
too. Ratios are over the first; they are of tokens per second of the clock, which wants a quiet machine, and of the
process's own processors, which others do not disturb.

    python benchmarks/structured.py
    python benchmarks/structured.py --count 40 --timed 10 --threads 1 --json

Exits with 1 when an answer is not valid or differs. The last line of standard output is one JSON object.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import console, finish, rotated, show

from paceline import LLM, RequestOutput, SamplingParams

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.schemas import is_valid, schemas

_AT_ONCE = 16
Ask = tuple[list[int], dict[str, Any]]
"""Token ids of a prompt, and the schema that the answer must follow."""


def asks_of(llm: LLM, count: int) -> list[Ask]:
    found = []
    for schema in schemas(count):
        text = f"Invent an example that follows this JSON schema. Answer in JSON only.\n{json.dumps(schema)}"
        found.append((llm.chat_prompt([{"role": "user", "content": text}]), schema))
    return found


def params_of(schema: dict[str, Any] | None, number: int, temperature: float, **more: Any) -> SamplingParams:
    wanted = None if schema is None else {"json": schema}
    given = {"temperature": temperature, "seed": number, "max_tokens": 400, "structured_outputs": wanted}
    return SamplingParams(**(given | more))


def answers(llm: LLM, asks: Sequence[Ask], temperature: float, **more: Any) -> list[RequestOutput]:
    found: list[RequestOutput] = []
    for start in range(0, len(asks), _AT_ONCE):
        part = asks[start : start + _AT_ONCE]
        params = [params_of(schema, start + i, temperature, **more) for i, (_, schema) in enumerate(part)]
        found += llm.generate([prompt for prompt, _ in part], params)
    return found


def check(llm: LLM, asks: Sequence[Ask], temperature: float) -> dict[str, Any]:
    """How many answers are complete and valid, and how many are the same with drafts."""
    plain = answers(llm, asks, temperature, speculative=False)
    drafted = answers(llm, asks, temperature)
    valid = [
        each.finish_reason == "stop" and is_valid(each.text, ask[1]) for each, ask in zip(plain, asks, strict=True)
    ]
    for each, ask, good in zip(plain, asks, valid, strict=True):
        if not good:
            console.print(f"not valid: {each.text[:200]!r} ({each.finish_reason}) for {json.dumps(ask[1])[:300]}")
    return {
        "temperature": temperature,
        "schemas": len(asks),
        "valid": sum(valid),
        "identical": sum(a.token_ids == b.token_ids for a, b in zip(plain, drafted, strict=True)),
        "tokens": sum(len(each.token_ids) for each in drafted),
        "forced_tokens": sum(each.outputs[0].num_forced_tokens for each in drafted),
        "accepted_drafts": sum(each.stats.num_accepted_tokens for each in drafted),
        "passes": sum(each.stats.num_target_passes for each in drafted),
    }


WAYS = ("plain", "grammar", "grammar, forced tokens", "grammar, drafts")


def timed(llm: LLM, asks: Sequence[Ask], temperature: float) -> dict[str, Any]:
    """Seconds and tokens of each way, the way that goes first changing from prompt to prompt."""
    forced = llm.drafting_with(None)
    seconds: dict[str, list[float]] = {way: [0.0, 0.0] for way in WAYS}
    tokens: dict[str, int] = dict.fromkeys(WAYS, 0)
    for number, (prompt, schema) in enumerate(asks):
        [known] = llm.generate([prompt], params_of(schema, number, temperature, speculative=False))
        size = len(known.token_ids)
        free = params_of(
            None, number, temperature, speculative=False, max_tokens=size, min_tokens=size, ignore_eos=True
        )
        bound = params_of(schema, number, temperature)
        runs = [
            ("plain", llm, free), ("grammar", llm, params_of(schema, number, temperature, speculative=False)),
            ("grammar, forced tokens", forced, bound), ("grammar, drafts", llm, bound),
        ]  # fmt: skip
        forced.generate([prompt], params_of(None, number, temperature, max_tokens=1))  # the prompt is in both caches
        for way, engine, params in rotated(runs, number):
            began, used = time.perf_counter(), time.process_time()
            [output] = engine.generate([prompt], params)
            seconds[way][0] += time.perf_counter() - began
            seconds[way][1] += time.process_time() - used
            tokens[way] += len(output.token_ids)
    base = [tokens["plain"] / each for each in seconds["plain"]]
    ratios = {way: [tokens[way] / spent / base[i] for i, spent in enumerate(seconds[way])] for way in WAYS}
    return {"temperature": temperature, "tokens": tokens, "clock": {way: r[0] for way, r in ratios.items()},
            "processor": {way: r[1] for way, r in ratios.items()}, "plain_tokens_per_second": base[0]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--count", type=int, default=300, help="schemas whose answers are checked")
    parser.add_argument("--timed", type=int, default=40, help="schemas whose answers are timed")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", action="store_true", help="no table")
    args = parser.parse_args()
    llm = LLM(args.model, speculative=args.draft, num_threads=args.threads)
    asks = asks_of(llm, max(args.count, args.timed))
    checks = [check(llm, asks[: args.count], temperature) for temperature in (0.0, 1.0)] if args.count else []
    times = [timed(llm, asks[: args.timed], temperature) for temperature in (0.0, 1.0)] if args.timed else []
    if not args.json:
        header = ["temperature", "schemas", "valid", "identical", "tokens", "forced", "passes"]
        names = ("temperature", "schemas", "valid", "identical", "tokens", "forced_tokens", "passes")
        show("Answers that must follow a schema", header, [[each[name] for name in names] for each in checks])
        rows = [
            [way, each["temperature"], each["clock"][way], each["processor"][way]] for each in times for way in WAYS
        ]
        show("Tokens per second over plain decoding", ["way", "temperature", "clock", "processor"], rows)
    finish({"benchmark": "structured", "model": args.model, "draft": args.draft, "checks": checks, "times": times})
    good = all(each["valid"] == each["identical"] == each["schemas"] for each in checks)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
