"""Measures the coverage of `paceline bench`'s intervals, and how often it detects an arm that is 3 % slower.

Simulated arms answer at known rates, on a machine with jitter, drift and disturbances that outlast an answer
(`tests/evaluation/bench/simulated.py`). The loop, the orders, the file and the statistics are those of the command. No
model is run. With ``--real`` a model runs on this machine: each run is a separate bench, and the slower arm waits after
every answer so that it is 3 % slower. Measurements are kept in a file, and the same command continues from it. Run it
on a quiet machine.

    python benchmarks/bench_coverage.py --runs 200
    python benchmarks/bench_coverage.py --runs 30 --real smollm2-135m --keep real.jsonl --minutes 5

The last line of standard output is one JSON object.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from common import console, finish, show
from rich.progress import track

from paceline import LLM
from paceline.evaluation.bench.arms import Answer, Cell, EngineArm
from paceline.evaluation.bench.own_arms import own_arms
from paceline.evaluation.bench.record import BenchFile, Measurement
from paceline.evaluation.bench.run import Plan, cells_of, run_bench
from paceline.evaluation.bench.summary import pairs_of
from paceline.evaluation.prompts import load_prompts
from paceline.evaluation.stats import Interval, time_ratio

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.evaluation.bench.simulated import arms, cells

SLOWDOWN = 1 / 0.97 - 1
"""Added time of the slower arm, as a share of an answer's time."""


def main() -> None:
    args = parse()
    if args.real:
        finish(on_a_model(args))
        return
    rows, found = [], {}
    for jitter, lasting in ((0.02, 0.0), (0.04, 0.0), (0.02, 0.05)):
        for prompts in (12, 24, 60):
            seeds = range(len(rows) * args.runs, (len(rows) + 1) * args.runs)
            some = [interval(seed, prompts, jitter, lasting) for seed in track(seeds, f"{prompts} prompts")]
            equal = np.mean([holds_1(again) for again, _ in some])
            slow = np.mean([is_slower(slower) for _, slower in some])
            width = np.median([again.half_width for again, _ in some])
            rows.append([f"{jitter:.0%}", f"{lasting:.0%}", prompts, f"{equal:.1%}", f"{slow:.1%}", f"{width:.2%}"])
            found[f"{jitter} {lasting} {prompts}"] = {"covers": equal, "finds_3_percent": slow, "half_width": width}
    show(
        f"{args.runs} simulated benches each",
        ["jitter", "lasting", "prompts", "A/A holds 1", "3 % slower is found", "+-"],
        rows,
    )
    finish({"runs": args.runs, "found": found})


def interval(seed: int, prompts: int, jitter: float, lasting: float) -> tuple[Interval, Interval]:
    """Intervals of plain decoding against itself, and of an arm that is 3 % slower."""
    some = arms(seed, speedup=0.97, jitter=jitter, lasting=lasting)
    file = BenchFile(None, {"arms": [each.label for each in some]})
    run_bench(some, Plan(cells(prompts, families=4)), file)
    return compared(file.measurements, "fast")


def compared(measurements: list[Measurement], slower: str) -> tuple[Interval, Interval]:
    """Intervals of plain decoding against itself, and of the arm `slower`."""
    again, slow = (time_ratio(pairs_of(measurements, arm, "plain", decode=True)) for arm in ("plain (again)", slower))
    return again, slow


def holds_1(one: Interval) -> bool:
    """Whether the interval contains 1; False where there is no interval."""
    return one.low is not None and one.high is not None and one.low <= 1 <= one.high


def is_slower(one: Interval) -> bool:
    """Whether the whole interval lies below 1."""
    return one.high is not None and one.high < 1


class SlowedArm(EngineArm):
    """Plain decoding that waits after every answer, for `SLOWDOWN` of its time."""

    def answer(self, cell: Cell) -> tuple[float, list[Answer]]:
        """See `Arm`."""
        started = time.perf_counter()
        seconds, answers = super().answer(cell)
        time.sleep(SLOWDOWN * (time.perf_counter() - started))
        return seconds * (1 + SLOWDOWN), [
            replace(
                each,
                seconds=each.seconds * (1 + SLOWDOWN),
                first_token_seconds=each.first_token_seconds * (1 + SLOWDOWN),
            )
            for each in answers
        ]


def on_a_model(args: argparse.Namespace) -> dict:
    """Evaluate each round of one bench separately, and the slower arm over all rounds."""
    llm = LLM(args.real, speculative=None, num_threads=args.threads)
    some = [*own_arms(llm, {})[0], SlowedArm(llm, "slowed", "plain", {"method": "plain", "num_draft_tokens": 0})]
    asked = cells_of(load_prompts("builtin", per_family=args.per_family), max_tokens=args.max_tokens, ignore_eos=True)
    settings = {"arms": [arm.label for arm in some], "model": args.real, "cells": len(asked)}
    file = BenchFile(args.keep, settings | {"max_tokens": args.max_tokens})
    ended = run_bench(
        some, Plan(asked, args.runs, args.minutes), file, lambda what, i, n: console.print(f"{what}: {i}/{n}")
    )
    whole = [number for number in range(args.runs) if sum(n == number for n, _ in file.done()) == len(asked)]
    found = [compared([m for m in file.measurements if m.round == number], "slowed") for number in whole]
    every, slow = compared([m for m in file.measurements if m.round in whole], "slowed")
    return {
        "model": args.real, "ended": ended, "runs": len(whole), "prompts": len(asked),
        "covers": sum(holds_1(again) for again, _ in found),
        "intervals": [[again.low, again.ratio, again.high] for again, _ in found],
        "half_width": float(np.median([again.half_width for again, _ in found])),
        "finds_3_percent_alone": sum(is_slower(slower) for _, slower in found),
        "all_runs": {"again": [every.low, every.ratio, every.high], "slowed": [slow.low, slow.ratio, slow.high]},
        "minutes": sum(m.seconds for m in file.measurements if m.round in whole) / 60,
    }  # fmt: skip


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--real", metavar="MODEL", help="run this model, in place of simulated machines")
    parser.add_argument("--keep", type=Path, help="of --real: keep every answer in this file, and go on from it")
    parser.add_argument("--minutes", type=float, help="of --real: after which no prompt begins")
    parser.add_argument("--per-family", type=int, default=2, help="of --real: prompts of each of four families")
    parser.add_argument("--max-tokens", type=int, default=24, help="of --real")
    parser.add_argument("--threads", type=int, default=2, help="of --real")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
