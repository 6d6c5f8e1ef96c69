"""Drafts beside prompts: what requests that decode get while long prompts are read one after another.

Requests decode chat prompts; then prompts of random tokens come, and each chunk fills its step. Plain decoding and each
method take turns, so a machine that slows down slows all alike; medians over the rounds are reported. What a token
costs is the time that the prompts took longer than beside plain decoding, over the tokens that were gained, relative to
the time of a token where no prompt is read: below 1 it is faster to draft beside prompts than after them.

Then a request reads one long prompt beside another that decodes, and both draft at every step: the longest step is what
the other waits for, and the seconds of the tokens after the first are what the drafter's reading of the prompt costs.

    python benchmarks/drafts_beside.py
    python benchmarks/drafts_beside.py --dtypes w8a8 --drafts suffix --requests 1 8 --prompts prompts.jsonl --json

A line of the prompts file is {"prompt": ...} or {"turns": [...]}. The last line of standard output is one JSON object.
"""

import argparse
import time
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from common import console, finish, median, prompt_ids, read_prompts, show

from paceline import LLM, SamplingParams
from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.loop.engine import Engine
from paceline.engine.setup.build import build_engine
from paceline.engine.setup.load import load
from paceline.models.loaded import LoadedModel

CHATS = (
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "List the numbers from one to forty in words, separated by commas.",
    "Explain to a child how a bicycle stays upright.",
    "Write a Python function that counts the words of a text, and explain each line.",
)
DECODED, ALONE_SECONDS, FIRST = 30, 2.0, 24
"""Tokens of each request before the prompts come, seconds of decoding after them, and tokens after a long prompt."""


def main() -> None:
    args = parse()
    texts = [one["text"] for one in read_prompts(args.prompts)] if args.prompts else CHATS
    with LLM(args.model) as llm:
        chats = [prompt_ids(llm, text, raw=False) for text in texts]
    results, longest = {}, {}
    for dtype in args.dtypes:
        config = EngineConfig(dtype=dtype, num_threads=args.threads, prefix_caching=False, max_model_len=8192)
        loaded = load(args.model, config)
        results[dtype] = measure(loaded, config, chats, args)
        longest[dtype] = measure_first(loaded, config, chats[0], args)
        loaded.close()
    rows = [
        [dtype, size, method, *figures.values()]
        for dtype, sizes in results.items() for size, methods in sizes.items() for method, figures in methods.items()
    ]  # fmt: skip
    header = [
        "dtype",
        "requests",
        "method",
        "prompts, s",
        "tokens meanwhile",
        "p99 of a step, ms",
        "alone, tokens/s",
        "cost",
    ]
    show(f"{args.num_long} prompts of {args.long} tokens beside requests that decode", header, rows)
    rows = [[dtype, method, *one.values()] for dtype, methods in longest.items() for method, one in methods.items()]
    header = ["dtype", "method", "first token, s", f"{FIRST - 1} more, s", "longest step, ms"]
    show(f"a prompt of {args.first} tokens whose request drafts at once", header, rows)
    finish({"long": args.long, "num_long": args.num_long, "beside": results, "first": longest})


def measure(
    loaded: LoadedModel, config: EngineConfig, chats: list[list[int]], args: argparse.Namespace
) -> dict[int, dict[str, dict[str, float | None]]]:
    """By number of requests and method: medians over the rounds."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, 8000, (args.num_long, args.long)).tolist()
    found: dict[int, dict[str, dict[str, float | None]]] = {}
    for size in args.requests:
        runs: dict[str, list[dict[str, float]]] = {method: [] for method in ("plain", *args.drafts)}
        for number in range(args.rounds + 1):
            for method, figures in runs.items():
                spec = None if method == "plain" else SpeculativeConfig(method)
                engine = build_engine(loaded, config, spec)
                one = beside(engine, list(islice(cycle(chats), size)), prompts)
                if number:  # the first round warms up
                    figures.append(one)
            console.print(f"{config.dtype}, {size} requests: round {number} of {args.rounds} done")
        found[size] = {
            method: {name: median(one[name] for one in figures) for name in figures[0]}
            for method, figures in runs.items()
        }
        plain = found[size]["plain"]
        for method, one in found[size].items():
            longer, gained = one["seconds"] - plain["seconds"], one["tokens"] - plain["tokens"]
            one["cost"] = None if method == "plain" else longer / max(1, gained) * one["alone"]
    return found


def measure_first(
    loaded: LoadedModel, config: EngineConfig, chat: list[int], args: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """By method, in the second of two rounds: the first tokens after a prompt of `args.first` tokens."""
    prompt = np.random.default_rng(1).integers(0, 8000, args.first).tolist()
    found = {}
    for method in args.drafts * 2:
        engine = build_engine(loaded, config, SpeculativeConfig(method, policy="fixed"))
        engine.add_request("chat", chat, SamplingParams(temperature=0, max_tokens=6000, ignore_eos=True))
        while engine.state_of("chat").num_output_tokens < DECODED:
            engine.step()
        engine.add_request("long", prompt, SamplingParams(temperature=0, max_tokens=FIRST, ignore_eos=True))
        state, times, num_before = engine.state_of("long"), [], 0
        while state.finish_reason is None:
            began = time.perf_counter()
            engine.step()
            times.append(time.perf_counter() - began)
            num_before += not state.num_output_tokens
        first = sum(times[: num_before + 1])
        found[method] = {"first": first, "more": sum(times) - first, "longest": 1000 * max(times)}
    return found


def beside(engine: Engine, chats: list[list[int]], prompts: list[list[int]]) -> dict[str, float]:
    """Seconds in which the prompts are read one after another, and the tokens of the others meanwhile."""
    for number, chat in enumerate(chats):
        engine.add_request(f"chat {number}", chat, SamplingParams(temperature=0, max_tokens=4000, ignore_eos=True))
    states = [engine.state_of(f"chat {number}") for number in range(len(chats))]
    while any(state.num_output_tokens < DECODED for state in states):
        engine.step()
    first, times = said(states), []
    for number, prompt in enumerate(prompts):
        engine.add_request(f"long {number}", prompt, SamplingParams(temperature=0, max_tokens=1))
        is_read = False
        while not is_read:
            began = time.perf_counter()
            is_read = any(output.finished and output.request_id.startswith("long") for output in engine.step())
            times.append(time.perf_counter() - began)
    meanwhile, began = said(states), time.perf_counter()
    while time.perf_counter() - began < ALONE_SECONDS:
        engine.step()
    alone = (said(states) - meanwhile) / (time.perf_counter() - began)
    for number in range(len(chats)):
        engine.abort(f"chat {number}")
    p99 = 1000 * float(np.quantile(times, 0.99))
    return {"seconds": sum(times), "tokens": meanwhile - first, "p99": p99, "alone": alone}


def said(states: list) -> int:
    return sum(state.num_output_tokens for state in states)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "w8a8"])
    parser.add_argument("--drafts", nargs="+", default=["eagle3"], help="methods beside plain decoding")
    parser.add_argument("--requests", nargs="+", type=int, default=[1, 4], help="that decode")
    parser.add_argument("--long", type=int, default=1500, help="tokens of each prompt")
    parser.add_argument("--num-long", type=int, default=6, help="prompts that are read")
    parser.add_argument("--first", type=int, default=6000, help="tokens of the prompt whose request drafts at once")
    parser.add_argument("--prompts", type=Path, help="of the requests that decode")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
