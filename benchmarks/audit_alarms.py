"""Measures the false alarm rate of `paceline audit`: whole audits of an exact engine with a small random model.

Every audit has a new engine, drafter and seeds; lookups and a draft model alternate. Only the verdict LOSSY is a false
alarm. Texts are short, so that many audits fit into an hour. An audit's time is counted in readings of its clock, so
that it bets on as many answers on a slow machine as on a fast one. With ``--keep`` each audit is appended to a file,
and the same command continues from it.

    python benchmarks/audit_alarms.py --audits 1000 --minutes 60 --keep alarms.jsonl

The last line of standard output is one JSON object.
"""

import argparse
import json
import sys
import time
from collections import Counter
from itertools import count
from pathlib import Path
from unittest.mock import patch

import numpy as np
from common import console, finish

from paceline.config import EngineConfig
from paceline.engine.llm import LLM
from paceline.engine.setup import build
from paceline.evaluation.audit.run import AuditPlan, audit

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.engine.conftest import load_random

SPECS = (
    {"method": "ngram", "num_draft_tokens": 4, "policy": "fixed", "options": {"prompt_lookup_min": 1}},
    {"method": "suffix", "num_draft_tokens": 6, "policy": "fixed"},
    {"method": "draft_model", "model": "random-1", "num_draft_tokens": 3, "policy": "fixed"},
    {"method": "draft_model", "model": "random-1", "num_draft_tokens": 3, "policy": "fixed", "rule": "block"},
)
CHECKS = ("rows", "rule", "greedy", "coupled", "load", "accounting", "law")
READINGS = 12
"""Readings of an audit's clock until its time is over; between the last ones it bets on an answer to each prompt."""


def main() -> None:
    args = parse()
    done = [json.loads(line) for line in args.keep.read_text().splitlines()] if args.keep and args.keep.exists() else []
    target, deadline = load_random(0), time.monotonic() + 60 * args.minutes
    config = EngineConfig(kv_cache_memory_bytes=1 << 22, profile="none")
    with patch.object(build, "load", lambda name, config, progress: load_random(int(name.removeprefix("random-")))):
        plain = LLM.from_loaded(target, config)
        for number in range(len(done), args.audits):
            if time.monotonic() > deadline:
                break
            try:
                done.append(one_audit(plain, number))
            except KeyboardInterrupt:  # the audits so far are reported
                break
            if args.keep:
                with args.keep.open("a") as file:
                    file.write(json.dumps(done[-1]) + "\n")
    finish(summarise(done))


def one_audit(plain: LLM, number: int) -> dict:
    """Audit number `number`: its verdict, the checks that were lossy, and how near the bets came to that."""
    spec = SPECS[number % len(SPECS)]
    plan = AuditPlan(spec, READINGS / 60, CHECKS, max_tokens=16)
    found = audit(plain, prompts(number), plan, clock=count().__next__)
    law = next(check for check in found.checks if check.name == "law")
    return {
        "number": number,
        "drafter": spec["method"],
        "verdict": found.verdict,
        "lossy": [[check.name, check.says] for check in found.checks if check.verdict == "LOSSY"],
        "drafted_tokens": law.evidence["drafted_tokens"],
        "peak_log_wealth": law.evidence["peak_log_e"],
    }


def summarise(done: list[dict]) -> dict:
    verdicts = dict(Counter(one["verdict"] for one in done))
    drafted = sum(one["drafted_tokens"] for one in done)
    console.print(f"{len(done)} audits: {verdicts}; drafted tokens bet on: {drafted}")
    return {
        "audits": len(done),
        "verdicts": verdicts,
        "false_alarms": [one for one in done if one["lossy"]],
        "drafted_tokens": drafted,
        "largest_peak_log_wealth": max((one["peak_log_wealth"] for one in done), default=0.0),
    }


def prompts(number: int) -> list[list[int]]:
    """Three repetitive prompts, so that lookups draft."""
    rng = np.random.default_rng(number)
    return [rng.integers(3, 100, int(rng.integers(2, 6))).tolist() * 4 for _ in range(3)]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--audits", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no audit begins")
    parser.add_argument("--keep", type=Path, help="a file with a line per audit; the same command goes on")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
