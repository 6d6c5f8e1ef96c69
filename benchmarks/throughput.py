"""Tokens per second of all requests together, by how many there are: plain, and with drafts as long as pays.

Every size is run once by every method before the next size begins, in an order that rotates, so that a machine that
slows down slows all of them alike. All requests are there at the start and say the same number of tokens; rates count
from the first request to the last token, prompts included.

    python benchmarks/throughput.py
    python benchmarks/throughput.py --dtypes int8 --sizes 16 64 --prompts prompts.jsonl --json

A line of the prompts file is {"prompt": ...} or {"turns": [...]}. The last line of standard output is one JSON object.
"""

import argparse
import time
from itertools import cycle, islice
from pathlib import Path

from common import console, finish, read_prompts, show
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


def main() -> None:
    args = parse()
    figures = {dtype: measure_dtype(dtype, args) for dtype in args.dtypes}
    for dtype, methods in figures.items():
        header = ["requests", *methods, *(f"{name} tokens/pass" for name in methods if name != "plain")]
        body = [
            [size, *(found[size]["tokens_per_second"] for found in methods.values()),
             *(found[size]["acceptance_length"] for name, found in methods.items() if name != "plain")]
            for size in args.sizes
        ]  # fmt: skip
        show(f"{args.model}, {dtype}, {args.max_tokens} new tokens each: tokens per second in all", header, body)
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    finish({"settings": settings, "tokens_per_second": figures})


def measure_dtype(dtype: str, args: argparse.Namespace) -> dict[str, dict[int, dict]]:
    """Method to size to figures."""
    plain = LLM(args.model, dtype=dtype, num_threads=args.threads, max_num_seqs=max(args.sizes), prefix_caching=False)
    llms = {"plain": plain} | {
        name: plain.drafting_with({"method": name, "policy": args.policy, "num_draft_tokens": args.num_draft_tokens})
        for name in args.drafts
    }
    texts = [prompt["text"] for prompt in read_prompts(args.prompts)] if args.prompts else ASKED
    prompts = [plain.chat_prompt([{"role": "user", "content": text}]) for text in texts]
    figures: dict[str, dict[int, dict]] = {name: {} for name in llms}
    for llm in llms.values():
        run(llm, prompts[:1], 8)  # warms up
    for number, size in enumerate(track(args.sizes, dtype, console=console)):
        order = list(llms)
        for name in order[number % len(order) :] + order[: number % len(order)]:
            figures[name][size] = run(llms[name], list(islice(cycle(prompts), size)), args.max_tokens)
    plain.close()
    return figures


def run(llm: LLM, prompts: list[list[int]], max_tokens: int) -> dict:
    """All prompts at once."""
    started = time.perf_counter()
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True))
    seconds = time.perf_counter() - started
    tokens = sum(len(output.token_ids) for output in outputs)
    passes = sum(output.stats.num_target_passes for output in outputs)
    return {
        "tokens_per_second": tokens / seconds,
        "seconds": seconds,
        "acceptance_length": (tokens - len(outputs)) / passes if passes else None,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="as for `paceline generate`")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "int8"], choices=["bfloat16", "float32", "int8"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], help="requests at once")
    parser.add_argument("--drafts", nargs="*", default=["ngram", "suffix"], help="methods beside plain decoding")
    parser.add_argument("--policy", default="goodput", help="how long drafts are")
    parser.add_argument("--num-draft-tokens", type=int, default=8, help="longest draft")
    parser.add_argument("--prompts", type=Path, help="a .jsonl file, taken in turn; a few of its own otherwise")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
