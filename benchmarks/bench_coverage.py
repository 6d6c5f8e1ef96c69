"""Whether `paceline bench` may be believed: how often its intervals hold the truth, and how soon it finds 3 %.

Arms answer by arithmetic at known rates, on a machine that jitters and drifts (`tests/evaluation/bench/simulated.py`);
the loop, the orders, the file and the statistics are those of the command. No model is run.

    python benchmarks/bench_coverage.py --runs 200

The last line of standard output is one JSON object.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from common import finish, show
from rich.progress import track

from paceline.evaluation.bench.record import BenchFile
from paceline.evaluation.bench.run import Plan, run_bench
from paceline.evaluation.bench.summary import pairs_of
from paceline.evaluation.stats import Interval, time_ratio

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.evaluation.bench.simulated import arms, cells


def main() -> None:
    args = parse()
    rows, found = [], {}
    for jitter in (0.02, 0.04):
        for prompts in (12, 24, 60):
            some = [interval(seed, prompts, jitter) for seed in track(range(args.runs), f"{prompts} prompts")]
            equal = np.mean([again.low <= 1 <= again.high for again, _ in some])
            slow = np.mean([slower.high < 1 for _, slower in some])
            width = np.median([again.half_width for again, _ in some])
            rows.append([f"{jitter:.0%}", prompts, f"{equal:.1%}", f"{slow:.1%}", f"{width:.2%}"])
            found[f"{jitter} {prompts}"] = {"covers": equal, "finds_3_percent": slow, "half_width": width}
    show(f"{args.runs} simulated benches each", ["jitter", "prompts", "A/A holds 1", "3 % slower is found", "+-"], rows)
    finish({"runs": args.runs, "found": found})


def interval(seed: int, prompts: int, jitter: float) -> tuple[Interval, Interval]:
    """(of plain decoding against itself, of an arm that is 3 % slower)."""
    some = arms(seed, speedup=0.97, jitter=jitter)
    file = BenchFile(None, {"arms": [each.label for each in some]})
    run_bench(some, Plan(cells(prompts, families=4)), file)
    again, slower = (
        time_ratio(pairs_of(file.measurements, arm, "plain", decode=True), draws=1000)
        for arm in ("plain (again)", "fast")
    )
    return again, slower


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
