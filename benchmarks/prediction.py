"""Predicted against measured speed-ups: what `paceline advise` says of configurations, and what a bench finds.

A configuration is a target, a weight type, a drafter, a length, a number of requests at once and a family of prompts.
All of one target and type are predicted from replayed answers and a profile, and then measured in one interleaved
bench. Everything is kept in a folder, and the same command goes on where it ended, so it can be run in pieces:

    python benchmarks/prediction.py predictions --minutes 20
    python benchmarks/prediction.py predictions --target smollm2-135m=ngram,suffix,head \
        --target big.gguf=ngram,suffix,draft_model:small.gguf --prompts spec-bench:spec_bench.jsonl --minutes 60
    python benchmarks/prediction.py predictions --report --plot predictions.svg

Printed: median and 95th percentile of the error, how often the measured ratio lies in the predicted interval, signs
that are right outside +-3 %, advice that measures under 0.97, what following the advice loses, and the largest misses.
Run it on a quiet machine. The last line of standard output is one JSON object.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from common import console, finish, show

from paceline import LLM, SamplingParams
from paceline.config import EngineConfig
from paceline.evaluation.advise.candidates import Candidate, profile_of, replayed, wanted_of
from paceline.evaluation.advise.predict import Prediction, best_of
from paceline.evaluation.advise.run import predictions_of
from paceline.evaluation.advise.texts import texts_of
from paceline.evaluation.bench.own_arms import own_arms
from paceline.evaluation.bench.record import BenchFile
from paceline.evaluation.bench.run import Plan, cells_of, run_bench
from paceline.evaluation.bench.summary import ALL, tables_of
from paceline.evaluation.prompts import load_prompts
from paceline.theory.curves import Chart, Series
from paceline.theory.plots import draw

WRONG = 0.97
"""Advice that measures below this is wrong."""


@dataclass(frozen=True)
class Piece:
    """All configurations of one target and weight type, and the files they are kept in."""

    target: str
    drafts: tuple[str, ...]
    dtype: str
    folder: Path

    def file(self, kind: str) -> Path:
        return self.folder / f"{Path(self.target).stem}-{self.dtype}.{kind}"

    def predictions(self) -> list[dict]:
        """What was predicted: a `Prediction` with its family for every configuration."""
        path = self.file("predictions.json")
        return json.loads(path.read_text()) if path.exists() else []


def main() -> None:
    args = parse()
    args.folder.mkdir(parents=True, exist_ok=True)
    pieces = [Piece(target, drafts, dtype, args.folder) for target, drafts in args.target for dtype in args.dtypes]
    deadline = time.monotonic() + 60 * args.minutes
    for number, piece in enumerate(pieces):
        if not args.report and time.monotonic() < deadline:
            measure(piece, args, (deadline - time.monotonic()) / 60 / (len(pieces) - number))
    records = [record for piece in pieces for record in joined(piece)]
    if not records:
        raise SystemExit("nothing is measured yet: give it --minutes")
    report(records)
    if args.plot:
        console.print(f"wrote {draw(chart(records), args.plot)}")
    finish({"summary": summarise(records), "configurations": records})


def measure(piece: Piece, args: argparse.Namespace, minutes: float) -> None:
    """Predict what is not predicted yet, then measure for so many minutes, from where an earlier run ended."""
    llm = LLM(piece.target, speculative=None, dtype=piece.dtype, num_threads=args.threads)
    prompts = load_prompts(args.prompts, per_family=args.per_family)
    wanted = wanted_of(piece.drafts, args.lengths)
    if not piece.predictions():
        config = EngineConfig(dtype=piece.dtype, num_threads=args.threads)
        params = SamplingParams(temperature=0, max_tokens=args.max_tokens)
        profile = profile_of(llm.loaded, config, lambda *_: None)
        profile.write(piece.file("profile.json"))
        texts, _ = texts_of(llm, prompts, params)
        candidates = replayed(llm, wanted, texts, params, config, profile)
        found = [
            asdict(one) | {"family": family}
            for family in (ALL, *sorted({text.family for text in texts}))
            for one in predictions_of(*of_family(candidates, texts, family), profile, args.batches, piece.dtype)
        ]
        piece.file("predictions.json").write_text(json.dumps(found))
    arms, skipped = own_arms(llm, {f"{one.draft} k={one.k}": one.spec for one in wanted})
    if skipped:
        raise SystemExit(f"cannot be measured: {skipped}")
    settings = vars(args) | {"arms": [arm.label for arm in arms], "model": piece.target, "dtype": piece.dtype}
    file = BenchFile(
        piece.file("bench.jsonl"), {name: settings[name] for name in ("arms", "model", "dtype", "max_tokens")}
    )
    cells = cells_of(prompts, [0.0], args.batches, max_tokens=args.max_tokens)
    name = f"{piece.target} {piece.dtype}"
    ended = run_bench(
        arms, Plan(cells, args.rounds, minutes), file, lambda what, i, n: console.print(f"{name} {i}/{n}")
    )
    console.print(f"{name}: {ended}")


def of_family(candidates: list[Candidate], texts: list, family: str) -> tuple[list[Candidate], list]:
    """Candidates and texts, those of one family."""
    kept = [number for number, text in enumerate(texts) if family in (ALL, text.family)]
    some = [
        Candidate(one.draft, one.k, one.spec, [one.rounds[i] for i in kept], one.how, one.profile, one.has_model)
        for one in candidates
    ]
    return some, [texts[i] for i in kept]


def joined(piece: Piece) -> Iterator[dict]:
    """Predicted and measured, for every configuration of a piece that was measured at all."""
    path = piece.file("bench.jsonl")
    if not path.exists():
        return
    settings = json.loads(path.read_text().splitlines()[0])["settings"]
    file = BenchFile(path, settings)
    bases, again = {label: "plain" for label in settings["arms"]}, {"plain": "plain (again)"}
    if not file.measurements:
        return
    tables = {(table.concurrency, table.family): table for table in tables_of(file.measurements, bases, again)}
    for one in piece.predictions():
        table = tables.get((one["batch"], one["family"]))
        arm = next((a for a in table.arms if a.arm == f"{one['draft']} k={one['k']}"), None) if table else None
        if arm is not None and arm.decode.num_prompts:
            interval = arm.decode
            yield one | {
                "target": piece.target, "measured": interval.ratio, "measured_low": interval.low,
                "measured_high": interval.high, "cells": interval.num_prompts, "noise_floor": table.noise_floor,
                "error": one["predicted"] / interval.ratio - 1, "measured_tokens_per_pass": arm.tokens_per_pass,
            }  # fmt: skip


def summarise(records: list[dict]) -> dict:
    """Error statistics; families are configurations, all prompts together are not counted again."""
    some = [record for record in records if record["family"] != ALL]
    errors = sorted(abs(record["error"]) for record in some)
    known = [r for r in some if r["low"] is not None]
    clear = [r for r in some if abs(r["measured"] - 1) > 0.03]
    losses = regret(some)
    return {
        "configurations": len(some),
        "median_error": statistics.median(errors),
        "error_95": errors[min(len(errors) - 1, int(0.95 * len(errors)))],
        "within_10_percent": share(error <= 0.1 for error in errors),
        "within_interval": share(r["low"] <= r["measured"] <= r["high"] for r in known),
        "signs_right": share((r["predicted"] > 1) == (r["measured"] > 1) for r in clear),
        "advised_below": [one for one in losses if one["measured"] < WRONG],
        "regret_within_3_percent": share(one["regret"] <= 0.03 for one in losses),
        "largest_regret": max((one["regret"] for one in losses), default=None),
    }


def share(found: Iterator[bool]) -> float | None:
    kept = list(found)
    return sum(kept) / len(kept) if kept else None


def regret(records: list[dict]) -> list[dict]:
    """For every workload, what following the advice loses against the best measured, plain decoding among them."""
    names, found = Prediction.__dataclass_fields__, []
    for key in sorted({tuple(r[name] for name in WORKLOAD) for r in records}):
        some = [r for r in records if tuple(r[name] for name in WORKLOAD) == key]
        best = best_of([Prediction(**{name: r[name] for name in names}) for r in some], some[0]["batch"])
        taken = next((r["measured"] for r in some if best and (r["draft"], r["k"]) == (best.draft, best.k)), 1.0)
        most = max(1.0, *(r["measured"] for r in some))
        advised = f"{best.draft} k={best.k}" if best else "plain"
        workload = dict(zip(WORKLOAD, key, strict=True))
        found.append(workload | {"advised": advised, "measured": taken, "best": most, "regret": 1 - taken / most})
    return found


WORKLOAD = ("target", "dtype", "batch", "family")


def report(records: list[dict]) -> None:
    """The figures, and the largest misses with what the replay and the clock say of them."""
    summary = summarise(records)
    show("predicted against measured", ["", ""], [[name, str(value)] for name, value in summary.items()])
    worst = sorted(records, key=lambda r: -abs(r["error"]))[:12]
    header = [*WORKLOAD, "drafter", "k", "predicted", "measured", "error", "tokens/pass: replayed", "measured", "cells"]
    rows = [
        [*(r[name] for name in WORKLOAD), r["draft"], r["k"], r["predicted"], r["measured"], r["error"],
         r["tokens_per_pass"], r["measured_tokens_per_pass"], r["cells"]]
        for r in worst
    ]  # fmt: skip
    show("largest misses", header, rows)


def chart(records: list[dict]) -> Chart:
    """A point for every configuration beside the diagonal."""
    some = [record for record in records if record["family"] != ALL]
    order = sorted(some, key=lambda record: record["measured"])
    ends = [order[0]["measured"], order[-1]["measured"]]
    points = Series(f"{len(order)} configurations", [r["measured"] for r in order], [r["predicted"] for r in order])
    return Chart("Predicted speed-up", "measured", "predicted", (points, Series("equal", ends, ends)), discrete=True)


def parse() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(each) for each in text.split(",")]

    def target(text: str) -> tuple[str, tuple[str, ...]]:
        name, _, drafts = text.partition("=")
        return name, tuple(names(drafts)) if drafts else ("ngram", "suffix")

    default = [("smollm2-135m", ("ngram", "suffix", "head"))]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="everything is kept here; the same command goes on")
    parser.add_argument("--target", "-m", type=target, action="append", help="MODEL=DRAFTER,DRAFTER; repeatable")
    parser.add_argument("--minutes", type=float, default=0.0, help="after which nothing new is measured")
    parser.add_argument("--report", action="store_true", help="only tell what was measured")
    parser.add_argument("--prompts", default="builtin", help="as paceline bench takes them")
    parser.add_argument("--per-family", type=int, default=6)
    parser.add_argument("--lengths", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--batches", type=numbers, default=[1, 3])
    parser.add_argument("--dtypes", type=names, default=["w8a8", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    args.target = args.target or default
    return args


if __name__ == "__main__":
    main()
