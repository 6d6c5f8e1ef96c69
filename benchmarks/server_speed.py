"""Speed of the server relative to the library: the same prompts through `LLM.generate` and over HTTP, in one run.

Both have their own engine on the same weights and take turns; every round has new prompts. Clients stream, all at once,
from another process. Two ratios are reported: of tokens per second of wall time, which needs a quiet machine, and of
tokens per second of this process's CPU time, which other programs do not disturb, but which counts HTTP's work in full
even where a free core did it. The texts must be the same.

    python benchmarks/server_speed.py
    python benchmarks/server_speed.py --clients 1 16 --draft none --rounds 2 --json

The last line of standard output is one JSON object.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from common import console, finish, median, show
from served import NAME, ask_all, elsewhere, served

from paceline import LLM, SamplingParams

TOPICS = ["rivers", "bread", "clocks", "bridges", "tea", "maps", "snow", "wool", "ships", "bees", "glass", "paper"]


def prompts_of(round_number: int, count: int) -> list[str]:
    """As many prompts as there are clients, new ones each round."""
    return [
        f"{round_number}.{i} Write a short text about {TOPICS[i % len(TOPICS)]} and then about {TOPICS[(i + 5) % 12]}."
        for i in range(count)
    ]


def by_library(llm: LLM, prompts: list[str], params: SamplingParams) -> tuple[list[str], int, float]:
    began = time.perf_counter()
    outputs = llm.generate(prompts, params)
    seconds = time.perf_counter() - began
    return [output.text for output in outputs], sum(len(output.token_ids) for output in outputs), seconds


def by_server(ask: Callable[..., Any], prompts: list[str], params: SamplingParams) -> tuple[list[str], int, float]:
    body: dict[str, Any] = {"model": NAME, "temperature": 0, "max_tokens": params.max_tokens, "ignore_eos": True}
    return ask([body | {"prompt": prompt} for prompt in prompts])


def compare(llm: LLM, ask: Callable[..., Any], clients: int, rounds: int, params: SamplingParams) -> dict[str, Any]:
    """Both ways `rounds` times, in turns; medians of the ratios of each round."""
    clock, processor, last = [], [], {}
    for number in range(rounds):
        prompts, found = prompts_of(number + 100 * clients, clients), {}
        for way in ("library", "server") if number % 2 else ("server", "library"):
            used = time.process_time()
            texts, tokens, seconds = (
                by_library(llm, prompts, params) if way == "library" else by_server(ask, prompts, params)
            )
            found[way] = texts, tokens / seconds, tokens / (time.process_time() - used)
        if found["library"][0] != found["server"][0]:
            raise SystemExit("the server says something else than the library")
        clock.append(found["server"][1] / found["library"][1])
        processor.append(found["server"][2] / found["library"][2])
        last = {way: round(found[way][1], 1) for way in found}
    return {"clients": clients, "ratio": median(clock), "processor_ratio": median(processor), "rounds": clock, **last}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft", default="auto", help="how both draft; none for plain decoding")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", action="store_true", help="no table")
    args = parser.parse_args()
    draft = None if args.draft == "none" else args.draft
    llm = LLM(args.model, speculative=draft, num_threads=args.threads)
    params = SamplingParams(temperature=0, max_tokens=args.max_tokens, ignore_eos=True)
    results = []
    with served(llm.drafting_with(draft)) as server, elsewhere() as work:
        ask = partial(work, ask_all, server.address, "/v1/completions")
        by_server(ask, prompts_of(0, 2), params)
        by_library(llm, prompts_of(0, 2), params)
        for clients in args.clients:
            console.print(f"{clients} clients")
            results.append(compare(llm, ask, clients, args.rounds, params))
    if not args.json:
        rows = [[r["clients"], r["library"], r["server"], r["ratio"], r["processor_ratio"]] for r in results]
        header = ["clients", "library tokens/s", "server", "ratio", "by processor time"]
        show("Server over library, the same prompts and texts", header, rows)
    finish({"benchmark": "server_speed", "model": args.model, "draft": args.draft, "results": results})
    sys.exit(0)


if __name__ == "__main__":
    main()
