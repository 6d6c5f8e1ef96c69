"""Tokens per second of all requests together by number of requests: plain, with adaptive draft lengths, and peers.

Every size is run by every method and every peer before the next round or size begins, in rotating order, so a machine
that slows down slows all of them alike. The median round is reported; each has new prompts as long as the file lasts.
All requests are there at the start and have the same number of output tokens; rates count from the first request to the
last token, prompts included. With `--max-num-seqs` below a size requests wait in the queue, so that prompts are read
during decoding all the time, as in a busy server.

    python benchmarks/throughput.py
    python benchmarks/throughput.py --dtypes int8 --sizes 16 64 --prompts prompts.jsonl --json
    python benchmarks/throughput.py --dtypes w8a8 --sizes 40 --max-num-seqs 16 --max-tokens 40 --rounds 3
    python benchmarks/throughput.py --dtypes w8a8 --sizes 1 16 --temperature 1 --drafts suffix
    python benchmarks/throughput.py --dtypes int8 --sizes 16 --rounds 3 --peer openvino-genai llama-cpp-server vllm

A line of the prompts file is {"prompt": ...} or {"turns": [...]}. The last line of standard output is one JSON object.
"""

import argparse
import signal
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from common import console, finish, read_prompts, rotated, show
from peers import LOAD_PEERS, LoadPeer, make_peer
from rich.progress import track

from paceline import LLM, SamplingParams

ASKED = (
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "List the planets of the solar system with one fact about each of them.",
    "Explain to a child how a bicycle stays upright.",
    "Write a Python function that counts the words of a text, and explain each line.",
    "What should a small bakery watch out for when it begins to sell online?",
    "Compare trains and aeroplanes for a journey of 600 kilometres.",
    "Give me a recipe for a simple vegetable soup, step by step.",
    "Summarise the rules of chess for somebody who has never played it.",
)


Engine = Callable[[list[list[int]], int], dict]
"""Prompts and how many tokens each is answered with, to figures."""


def main() -> None:
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that peers' servers end with us
    with ExitStack() as stack:
        peers = {name: stack.enter_context(closing(make_peer(name, args, LOAD_PEERS))) for name in args.peer}
        figures = {dtype: measure_dtype(dtype, peers, args) for dtype in args.dtypes}
    for dtype, methods in figures.items():
        drafted = [name for name in args.drafts if name in methods]
        header = ["requests", *methods, *(f"{name} tokens/pass" for name in drafted)]
        body = [
            [size, *(found[size]["tokens_per_second"] for found in methods.values()),
             *(methods[name][size]["acceptance_length"] for name in drafted)]
            for size in args.sizes
        ]  # fmt: skip
        show(f"{args.model}, {dtype}, {args.max_tokens} new tokens each: tokens per second in all", header, body)
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    finish({"settings": settings, "tokens_per_second": figures})


def measure_dtype(dtype: str, peers: dict[str, LoadPeer], args: argparse.Namespace) -> dict[str, dict[int, dict]]:
    """Method or peer to size to figures; a peer's weights are its own, whatever `dtype` is."""
    plain = LLM(
        args.model,
        speculative=None,
        dtype=dtype,
        num_threads=args.threads,
        max_num_seqs=args.max_num_seqs or max(args.sizes),
        prefix_caching=False,
    )
    llms = {"plain": plain} | {
        name: plain.drafting_with({"method": name, "policy": args.policy, "num_draft_tokens": args.num_draft_tokens})
        for name in args.drafts
    }
    law = {"temperature": args.temperature, "top_p": args.top_p}
    engines: dict[str, Engine] = {name: partial(run, llm, law) for name, llm in llms.items()}
    engines |= {name: partial(run_peer, peer) for name, peer in peers.items()}
    texts = [prompt["text"] for prompt in read_prompts(args.prompts)] if args.prompts else ASKED
    prompts = [plain.chat_prompt([{"role": "user", "content": text}]) for text in texts]
    try:
        return measure(dtype, engines, prompts, args)
    finally:
        plain.close()


def measure(title: str, engines: dict[str, Engine], prompts: list[list[int]], args: argparse.Namespace) -> dict:
    """Engine to size to the figures of its median round."""
    figures: dict[str, dict[int, dict]] = {name: {} for name in engines}
    for engine in engines.values():
        engine(list(islice(cycle(prompts), max(args.sizes))), 8)  # warms up
    stream = cycle(prompts)
    for number, size in enumerate(track(args.sizes, title, console=console)):
        rounds: dict[str, list[dict]] = {name: [] for name in engines}
        for turn in range(args.rounds):
            asked = list(islice(stream, size))
            for name in rotated(list(engines), number + turn):
                rounds[name].append(engines[name](asked, args.max_tokens))
        for name, runs in rounds.items():
            figures[name][size] = median_round(runs)
    return figures


def median_round(runs: list[dict]) -> dict:
    """The round of median rate (the slower of two), with every round's rate."""
    rates = [run["tokens_per_second"] for run in runs]
    return {**runs[rates.index(statistics.median_low(rates))], "rounds": rates}


def run(llm: LLM, law: dict[str, float], prompts: list[list[int]], max_tokens: int) -> dict:
    """All prompts at once, each with a seed of its own."""
    asked = [SamplingParams(**law, seed=n, max_tokens=max_tokens, ignore_eos=True) for n in range(len(prompts))]
    started = time.perf_counter()
    outputs = llm.generate(prompts, asked)
    seconds = time.perf_counter() - started
    tokens = sum(len(output.token_ids) for output in outputs)
    passes = sum(output.stats.num_target_passes for output in outputs)
    return {
        "tokens_per_second": tokens / seconds,
        "seconds": seconds,
        "acceptance_length": (tokens - len(outputs)) / passes if passes else None,
    }


def run_peer(peer: LoadPeer, prompts: list[list[int]], max_tokens: int) -> dict:
    """All prompts at once through another engine."""
    started = time.perf_counter()
    tokens = peer.run_many(prompts, max_tokens)
    seconds = time.perf_counter() - started
    if tokens != len(prompts) * max_tokens:
        raise SystemExit(f"{type(peer).__name__} said {tokens} tokens, {len(prompts)} x {max_tokens} were asked for")
    return {"tokens_per_second": tokens / seconds, "seconds": seconds}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="as for `paceline generate`")
    parser.add_argument(
        "--dtypes", nargs="+", default=["bfloat16", "int8"], choices=["bfloat16", "float32", "int8", "w8a8", "gguf"]
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], help="requests at once")
    parser.add_argument("--max-num-seqs", type=int, help="of them, how many run at once; all when left out")
    parser.add_argument("--drafts", nargs="*", default=["ngram", "suffix"], help="methods beside plain decoding")
    parser.add_argument("--policy", default="goodput", help="how long drafts are")
    parser.add_argument("--num-draft-tokens", type=int, default=8, help="longest draft")
    parser.add_argument("--prompts", type=Path, help="a .jsonl file, taken in turn; a few of its own otherwise")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0, help="of our engines; peers decode greedily")
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=1, help="times every size is run; the median counts")
    parser.add_argument("--peer", nargs="*", default=[], choices=sorted(LOAD_PEERS), help="run peers beside")
    parser.add_argument("--context", type=int, default=2048, help="tokens of a request that a peer makes room for")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
