"""Checks that requests under load give the same tokens as alone, on a real model with mixed requests.

Requests of mixed lengths, penalties, truncations, samples and priorities arrive while others run; every eighth is
cancelled; the cache is so small that some requests are preempted and computed again. There are two checks per drafter,
both with the default rule and any length policy:

    greedy    against plain decoding alone
    seeded    sampled with seeds, against plain sampling alone

    python benchmarks/load_exactness.py --requests 200
    python benchmarks/load_exactness.py --requests 24 --drafts ngram --max-tokens 24 --json

Exits with 1 when a text differs. The last line of standard output is one JSON object.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from common import console, finish, read_prompts, show
from rich.progress import Progress, track

from paceline import LLM, RequestOutput
from paceline.evaluation.load import LoadRequest, differences, make_load, run_alone, run_together

TEXTS = [
    "Write down the days of the week, then write them down backwards.",
    "Translate into French: The train leaves at seven. The train arrives at nine.",
    "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n",
    "A farmer has 17 sheep, buys 5 and sells 9. How many are left? Explain step by step.",
    "Summarise: The museum opens at ten. On Mondays the museum is closed. On Sundays nobody pays in the museum.",
    "Repeat the word seagull ten times.",
    "What is the capital of Portugal?",
    "Continue: 1, 4, 9, 16, 25,",
]


def main() -> None:
    args = parse()
    plain = LLM(
        args.model, speculative=None, dtype=args.dtype, num_threads=args.threads, max_num_seqs=args.max_num_seqs,
        max_model_len=args.max_model_len, kv_cache_memory_bytes=args.cache_mb << 20, progress=lambda *_: None,
    )  # fmt: skip
    texts = [prompt["text"] for prompt in read_prompts(args.prompts)] if args.prompts else TEXTS
    prompts = [plain.chat_prompt([{"role": "user", "content": text}]) for text in texts]
    records = list(prove(plain, prompts, args))
    header = ["drafter", "proof", "same", "cancelled", "preemptions", "tokens/draft", "seconds"]
    rows = [
        [r["drafter"], r["proof"], f"{r['same']}/{r['samples']}", r["cancelled"], r["preemptions"],
         r["acceptance_length"], r["seconds"]]
        for r in records
    ]  # fmt: skip
    show(f"{args.model}, {args.dtype}, {args.requests} requests, cache {args.cache_mb} MB", header, rows)
    finish({"model": args.model, "requests": args.requests, "proofs": records})
    sys.exit(any(r["same"] < r["samples"] for r in records))


def prove(plain: LLM, prompts: list[list[int]], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One record per drafter and check; the texts of plain decoding alone are computed once."""
    greedy = make_load(prompts, args.requests, args.max_tokens, args.seed, greedy=True)
    sampled = make_load(prompts, args.requests, args.max_tokens, args.seed)
    greedy_alone, sampled_alone = alone(plain, greedy, "plain greedy"), alone(plain, sampled, "plain sampled")
    for name in args.drafts:
        spec = {"method": name} | ({"model": args.draft_model or args.model} if name == "draft_model" else {})
        spec |= {"policy": args.policy}
        yield compare(name, "greedy", plain.drafting_with(spec), greedy, greedy_alone)
        yield compare(name, "seeded", plain.drafting_with(spec), sampled, sampled_alone)


def alone(llm: LLM, requests: list[LoadRequest], what: str) -> list[RequestOutput]:
    outputs: Iterable[RequestOutput] = run_alone(llm.engine, requests)
    return list(track(outputs, f"{what}, alone", total=len(requests), console=console))


def compare(
    drafter: str, proof: str, llm: LLM, requests: list[LoadRequest], expected: list[RequestOutput]
) -> dict[str, Any]:
    """Run the requests together and count the samples with the expected text."""
    started = time.perf_counter()
    with Progress(console=console) as bar:
        task = bar.add_task(f"{drafter} {proof}, together", total=len(requests))
        together = run_together(llm.engine, requests, lambda done: bar.update(task, completed=done))
    llm.engine.scheduler.check_integrity()
    wrong = differences(together, expected)
    for number, index in wrong[:5]:
        console.print(f"[red]request {number}, sample {index} differs[/]: {requests[number].params}")
    metrics = llm.engine.metrics
    emitted = sum(tokens * count for tokens, count in metrics.emitted_per_draft.items())
    samples = sum(len(output.outputs) for output in together)
    return {
        "drafter": drafter,
        "proof": proof,
        "samples": samples,
        "same": samples - len(wrong),
        "cancelled": metrics.finished["abort"],
        "preemptions": metrics.num_preemptions,
        "acceptance_length": emitted / metrics.spec_decode_num_drafts if metrics.spec_decode_num_drafts else 1.0,
        "seconds": time.perf_counter() - started,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--prompts", type=Path, help="a .jsonl file; a few of its own when left out")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--drafts", nargs="+", default=["ngram", "suffix"])
    parser.add_argument("--draft-model", help="for the drafter draft_model; the model itself when left out")
    parser.add_argument("--policy", default="goodput", help="length policy of the coupled proof")
    parser.add_argument("--max-tokens", type=int, default=64, help="longest output")
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--max-model-len", type=int, default=256)
    parser.add_argument(
        "--cache-mb", type=int, default=16, help="keys and values; small, so that requests are preempted"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
