"""After how many drafted tokens `paceline audit` finds each planted fault, and whether exact texts are accused.

Faults are those of the tests, on random laws that agree on about two thirds of their mass; no model is run, so the
figures depend on no machine.

    python benchmarks/audit_power.py --runs 5 --exact 1000 --json

The last line of standard output is one JSON object.
"""

import argparse
import statistics
import sys
from math import log
from pathlib import Path

import numpy as np
from common import console, finish, show
from rich.progress import track

from paceline.evaluation.audit.betting import Bets

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.evaluation.audit.faults import FAULTS, exact
from tests.evaluation.audit.test_betting import stream


def main() -> None:
    args = parse()
    found = {name: runs_of(fault, args) for name, fault in track(FAULTS.items(), "faults", console=console)}
    alarms = [peak_of(seed, args.exact_tokens) for seed in track(range(args.exact), "exact texts", console=console)]
    rows = [[name, *summary(runs)] for name, runs in found.items()]
    show(f"drafted tokens until found at p < {args.alpha:g}", ["fault", "median", "worst", "found"], rows)
    false = sum(peak >= -log(args.alpha) for peak in alarms)
    console.print(f"{false} of {args.exact} exact texts accused; largest wealth {np.exp(max(alarms, default=0)):.1f}")
    finish(
        {"faults": found, "exact": args.exact, "false_alarms": false, "largest_log_wealth": max(alarms, default=0.0)}
    )


def runs_of(fault, args: argparse.Namespace) -> list[int | None]:
    return [until_found(fault, seed, args.most, args.alpha) for seed in range(args.runs)]


def until_found(fault, seed: int, most: int, alpha: float) -> int | None:
    """Drafted tokens until the bets find it; None when they do not."""
    bets = Bets()
    for p, q, token in stream(fault, seed, most):
        bets.feed(p, q, token)
        if bets.peak >= -log(alpha):
            return bets.num_drafted
    return None


def peak_of(seed: int, count: int) -> float:
    """Largest log wealth against an exact text."""
    bets = Bets()
    for p, q, token in stream(exact, 10_000 + seed, count):
        bets.feed(p, q, token)
    return bets.peak


def summary(runs: list[int | None]) -> list[object]:
    known = [run for run in runs if run is not None]
    return [statistics.median(known) if known else "-", max(known, default="-"), f"{len(known)}/{len(runs)}"]  # type: ignore[type-var]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of each fault")
    parser.add_argument("--most", type=int, default=60_000, help="tokens after which a fault counts as missed")
    parser.add_argument("--exact", type=int, default=100, help="exact texts")
    parser.add_argument("--exact-tokens", type=int, default=300, help="of each")
    parser.add_argument("--alpha", type=float, default=1e-6)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
