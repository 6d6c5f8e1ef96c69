"""Time of a target pass, t(M) for M rows, at several context lengths and thread counts.

A pass reads every weight once whatever M is. With few rows, reading takes most of the time, so t(4) is close to t(1);
that is why speculation pays. Each round measures every M once, and the medians of many rounds are reported, so a
machine that slows down for a while slows all M alike.

    python benchmarks/cost_curve.py
    python benchmarks/cost_curve.py --dtype int8 --context 128 1024 --threads 1 2 --json
    python benchmarks/cost_curve.py -m model-Q4_K_M.gguf --dtype gguf --threads 1 --clock processor

``--clock processor`` is for a busy machine: it reports the lower quartile of this process's CPU time, divided by the
threads. The bandwidth printed last is that of summing up all weights that a pass over one row reads, with as many
threads and by the same clock; the roofline is the share of it that such a pass reaches.

The last line of standard output is one JSON object; ``rows`` is the curve at the first context and thread count.
"""

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from common import console, finish, show
from numba import njit

from paceline.models.base import PAGE_SIZE
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import resolve_model
from paceline.models.rows import Part, build_rows

CLOCKS = {"wall": (time.perf_counter, 0.5), "processor": (time.process_time, 0.25)}
"""Clock function and reported quantile of the times."""
MATRICES = ("qkv", "output", "gate_up", "down", "head")
"""Weights that every pass of a dense model multiplies."""
ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)


def main() -> None:
    args = parse()
    source = resolve_model(args.model)
    curves = []
    for threads in args.threads:
        model = NumbaModel(source.checkpoint, args.dtype, threads)
        curves += [curve(model, context, args) for context in args.context]
        curves[-1] |= roofline(model, curves[-1]["rows"]["1"], args)
        model.close()
    first = curves[0]["rows"]
    header = ["rows", *(f"ctx {c['context']}, {c['threads']} thr (ms)" for c in curves), "t(M)/t(1)"]
    body = [[m, *(c["rows"][str(m)] for c in curves), first[str(m)] / first["1"]] for m in args.rows]
    show(f"t(M), {args.model}, {args.dtype}, {args.clock} time", header, body)
    for c in (c for c in curves if "bandwidth" in c):
        console.print(f"{c['threads']} threads: {c['bandwidth'] / 1e9:.1f} GB/s, roofline {c['roofline']:.0%}")
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
            took = seconds(lambda rows=rows: model.forward(rows, cache), model.num_threads, args.clock)
            if number:  # the first round warms up
                times[m].append(took * 1000)
    quantile = CLOCKS[args.clock][1]
    console.print(f"context {context}, {model.num_threads} threads: {args.rounds} rounds done")
    return {
        "context": context,
        "threads": model.num_threads,
        "rows": {str(m): round(float(np.quantile(t, quantile)), 3) for m, t in times.items()},
        "fastest": {str(m): round(min(t), 3) for m, t in times.items()},
    }


def seconds(run: Callable[[], object], threads: int, clock: str) -> float:
    """How long `run` takes by the clock."""
    read = CLOCKS[clock][0]
    start = read()
    run()
    return (read() - start) / (threads if clock == "processor" else 1)


def roofline(model: NumbaModel, milliseconds: float, args: argparse.Namespace) -> dict:
    """Read bandwidth of the threads in bytes per second, and the share of it that a pass over one row reaches."""
    flat = [getattr(model.shared_weights, name) for name in MATRICES]
    flat = [np.asarray(w if isinstance(w, np.ndarray) else w.data).view(np.uint8) for w in flat]
    arrays = [w[: len(w) // 8 * 8].view(np.int64) for w in flat]
    shares = [[part for w in arrays for part in np.array_split(w, model.num_threads)[i : i + 1]]
              for i in range(model.num_threads)]  # fmt: skip

    with ThreadPoolExecutor(model.num_threads) as pool:

        def read() -> None:
            list(pool.map(lambda parts: [_total(part) for part in parts], shares))

        times = [seconds(read, model.num_threads, args.clock) for _ in range(args.rounds // 2 + 2)]
    size = sum(w.nbytes for w in arrays)
    bandwidth = size / float(np.quantile(times[1:], CLOCKS[args.clock][1]))
    return {"bytes": size, "bandwidth": bandwidth, "roofline": size / (milliseconds / 1000) / bandwidth}


@njit(error_model="numpy", fastmath=True, nogil=True)
def _total(numbers):
    total = np.int64(0)
    for i in range(len(numbers)):
        total += numbers[i]
    return total


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="smollm2-135m", help="as for `paceline generate`")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32", "int8", "w8a8", "gguf"])
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), help="numbers of rows; must include 1")
    parser.add_argument("--context", type=int, nargs="+", default=[128], help="tokens already in the cache")
    parser.add_argument("--threads", type=int, nargs="+", default=[2])
    parser.add_argument("--clock", default="wall", choices=sorted(CLOCKS))
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    args = parser.parse_args()
    if 1 not in args.rows:
        parser.error("--rows must include 1, the others are compared with it")
    return args


if __name__ == "__main__":
    main()
