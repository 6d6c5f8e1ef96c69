"""What a pass of the target costs: t(M) for M rows, at several context lengths and thread counts.

A pass reads every weight once whatever M is, so at few rows its cost is the reading and t(4) is close to t(1): that gap
is where speculation lives. Each round measures every M once, in turn, and the medians of many rounds are reported, so a
machine that slows down for a while slows all of them.

    python benchmarks/cost_curve.py
    python benchmarks/cost_curve.py --dtype int8 --context 128 1024 --threads 1 2 --json

The last line of standard output is one JSON object; ``rows`` is the curve at the first context and thread count.
"""

import argparse
import time

import numpy as np
from common import console, finish, median, show

from paceline.models.base import PAGE_SIZE
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import resolve_model
from paceline.models.rows import Part, build_rows

ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)


def main() -> None:
    args = parse()
    source = resolve_model(args.model)
    curves = []
    for threads in args.threads:
        model = NumbaModel(source.checkpoint, args.dtype, threads)
        curves += [curve(model, context, args) for context in args.context]
        model.close()
    first = curves[0]["rows"]
    header = ["rows", *(f"ctx {c['context']}, {c['threads']} thr (ms)" for c in curves), "t(M)/t(1)"]
    body = [[m, *(c["rows"][str(m)] for c in curves), first[str(m)] / first["1"]] for m in args.rows]
    show(f"t(M), {args.model}, {args.dtype}", header, body)
    finish({"model": args.model, "dtype": args.dtype, "rows": first, "curves": curves})


def curve(model: NumbaModel, context: int, args: argparse.Namespace) -> dict:
    """Median milliseconds per number of rows after `context` tokens."""
    rng = np.random.default_rng(0)
    pages = range((context + max(args.rows)) // PAGE_SIZE + 1)
    cache = model.new_cache(len(pages))
    vocab = model.config.vocab_size
    model.forward(build_rows([Part(pages, 0, rng.integers(0, vocab, max(context, 1)).tolist(), logits="last")]), cache)
    batches = {m: build_rows([Part(pages, context, rng.integers(0, vocab, m).tolist())]) for m in args.rows}
    times: dict[int, list[float]] = {m: [] for m in args.rows}
    for number in range(args.rounds + 1):
        for m, rows in batches.items():
            start = time.perf_counter()
            model.forward(rows, cache)
            if number:  # the first round warms up
                times[m].append((time.perf_counter() - start) * 1000)
    console.print(f"context {context}, {model.num_threads} threads: {args.rounds} rounds done")
    return {
        "context": context,
        "threads": model.num_threads,
        "rows": {str(m): round(median(t), 3) for m, t in times.items()},
        "fastest": {str(m): round(min(t), 3) for m, t in times.items()},
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="as for `paceline generate`")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32", "int8", "w8a8", "gguf"])
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), help="numbers of rows; must include 1")
    parser.add_argument("--context", type=int, nargs="+", default=[128], help="tokens already in the cache")
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    args = parser.parse_args()
    if 1 not in args.rows:
        parser.error("--rows must include 1, the others are compared with it")
    return args


if __name__ == "__main__":
    main()
