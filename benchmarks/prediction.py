"""Compares speed-ups that `paceline advise` predicts with those that a bench measures.

A configuration is a target, a weight type, a drafter, a length, a number of requests at once and a family of prompts.
All configurations of one target and type are predicted from replayed answers and rehearsed rounds, and then measured in
one interleaved bench against plain decoding, which answers twice. Everything is kept in a folder, and the same command
continues from it, so it can be run in pieces. Each piece begins with a few turns of the rehearsal and continues with
the bench, so that both run under the same conditions. Replays need no quiet machine, the rest does:

    python benchmarks/prediction.py predictions --replay
    python benchmarks/prediction.py predictions --minutes 20
    python benchmarks/prediction.py predictions --target smollm2-135m=ngram,suffix,head \
        --target big.gguf=ngram,suffix,draft_model:small.gguf --prompts spec-bench:spec_bench.jsonl --minutes 60
    python benchmarks/prediction.py predictions --report --plot predictions.svg

Printed: median and 95th percentile of the error, coverage of the predicted intervals, share of right signs outside
+-3 %, advice with a measured speed-up under 0.97, loss by following the advice, the largest errors, and the noise
between the two runs of plain decoding and between rounds of the bench. The last line of standard output is one JSON
object.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from common import console, finish, show

from paceline import LLM, SamplingParams
from paceline.config import EngineConfig
from paceline.evaluation.advise.candidates import Candidate, profile_of, replayed, wanted_of
from paceline.evaluation.advise.predict import Prediction, best_of
from paceline.evaluation.advise.rehearsal import PLAIN, TURNS, Opening, Rehearsal, Timed
from paceline.evaluation.advise.rehearsal import joined as further
from paceline.evaluation.advise.replay import Rounds, Text
from paceline.evaluation.advise.run import predictions_of, rehearsed
from paceline.evaluation.advise.texts import texts_of
from paceline.evaluation.bench.own_arms import AGAIN, own_arms
from paceline.evaluation.bench.record import BenchFile, Measurement
from paceline.evaluation.bench.run import Plan, cells_of, run_bench
from paceline.evaluation.bench.summary import ALL, pairs_of
from paceline.evaluation.prompts import load_prompts
from paceline.evaluation.stats import Interval, Pairs, time_ratio
from paceline.scheduling.profile import Profile
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

    def predictions(self, batch: int, kept: set[int]) -> list[dict]:
        """A `Prediction` with its family for every configuration, over the texts in `kept`."""
        if not (self.file("replays.json").exists() and self.file("times.json").exists()):
            return []
        texts, candidates = self.replays()
        profile, timed = self.times()
        return [
            asdict(one) | {"family": family}
            for family in (ALL, *sorted({text.family for number, text in enumerate(texts) if number in kept}))
            for one in predictions_of(*of_family(candidates, texts, family, kept), profile, [batch], self.dtype, timed)
        ]

    def keep_replays(self, texts: list[Text], candidates: list[Candidate]) -> None:
        kept = [
            {
                "draft": one.draft, "k": one.k, "spec": one.spec, "has_model": one.has_model,
                "rounds": {size: [asdict(each) for each in rounds] for size, rounds in rounds_of_all(one).items()},
            }
            for one in candidates
        ]  # fmt: skip
        found = {"texts": [asdict(text) for text in texts], "candidates": kept}
        self.file("replays.json").write_text(json.dumps(found))

    def replays(self) -> tuple[list[Text], list[Candidate]]:
        """Texts, and candidates over them."""
        found = json.loads(self.file("replays.json").read_text())
        texts = [Text(**text) for text in found["texts"]]
        return texts, [
            candidate_of(one | {"rounds": {int(size): own for size, own in one["rounds"].items()}})
            for one in found["candidates"]
        ]

    def keep_times(self, profile: Profile, timed: Rehearsal) -> None:
        profile.write(self.file("profile.json"))
        self.file("times.json").write_text(json.dumps(asdict(timed)))

    def times(self) -> tuple[Profile, Rehearsal]:
        """What was timed before the bench."""
        found = json.loads(self.file("times.json").read_text())
        rounds = {name: [Timed(**one) for one in some] for name, some in found["rounds"].items()}
        openings = {name: [Opening(**one) for one in some] for name, some in found["openings"].items()}
        return Profile.read(self.file("profile.json")), Rehearsal(rounds, openings, found["seconds"])


def rounds_of_all(one: Candidate) -> dict[int, list[Rounds]]:
    """Requests at once to the rounds of each text; 1 is always there."""
    return {1: list(one.rounds)} | {size: list(rounds) for size, rounds in one.in_company.items()}


def candidate_of(values: dict) -> Candidate:
    """From a file."""
    rounds = {size: [rounds_of(each) for each in own] for size, own in values.pop("rounds").items()}
    return Candidate(**values, rounds=rounds.pop(1), in_company=rounds)


def rounds_of(values: dict) -> Rounds:
    """From a file, whose keys are texts."""
    sizes = {int(size): count for size, count in values["sizes"].items()}
    return Rounds(**values | {"sizes": sizes, "certain": [tuple(each) for each in values["certain"]]})


def main() -> None:
    args = parse()
    args.folder.mkdir(parents=True, exist_ok=True)
    pieces = [Piece(target, drafts, dtype, args.folder) for target, drafts in args.target for dtype in args.dtypes]
    deadline = time.monotonic() + 60 * args.minutes
    for number, piece in enumerate(pieces):
        if args.replay or (not args.report and time.monotonic() < deadline):
            now = time.monotonic()
            measure(piece, args, now + (deadline - now) / (len(pieces) - number))
    records = [record for piece in pieces for record in joined(piece, args)]
    if args.replay:
        return
    if not records:
        raise SystemExit("nothing is measured yet: give it --minutes")
    report(records)
    if args.plot:
        console.print(f"wrote {draw(chart(records), args.plot)}")
    finish({"summary": summarise(records), "configurations": records})


def measure(piece: Piece, args: argparse.Namespace, deadline: float) -> None:
    """Make missing predictions, then measure until `deadline`, continuing an earlier run."""
    llm = LLM(piece.target, speculative=None, dtype=piece.dtype, num_threads=args.threads)
    prompts = load_prompts(args.prompts, per_family=args.per_family)
    wanted = wanted_of(piece.drafts, args.lengths)
    config = EngineConfig(dtype=piece.dtype, num_threads=args.threads)
    params = SamplingParams(temperature=0, max_tokens=args.max_tokens)
    if not piece.file("replays.json").exists():
        texts, _ = texts_of(llm, prompts, params)
        guess = Profile.read(args.profile) if args.profile else profile_of(llm.loaded, config, lambda *_: None)
        piece.keep_replays(texts, replayed(llm, wanted, texts, params, config, guess, batches=args.batches))
    if args.replay:
        return
    texts, candidates = piece.replays()
    before = piece.times() if piece.file("times.json").exists() else None
    profile = before[0] if before else profile_of(llm.loaded, config, lambda *_: None)
    first = 1 + max(one.turn for one in before[1].rounds[PLAIN]) if before else 0
    how = {"turns": args.turns, "first_turn": first}
    timed = rehearsed(llm, wanted, candidates, texts, params, args.batches, **how) if args.turns or not before else None
    if timed is not None:
        piece.keep_times(profile, further(before[1], timed) if before else timed)
        console.print(f"rehearsed in {timed.seconds:.0f} s")
    arms, skipped = own_arms(llm, {f"{one.draft} k={one.k}": one.spec for one in wanted})
    if skipped:
        raise SystemExit(f"cannot be measured: {skipped}")
    settings = vars(args) | {"arms": [arm.label for arm in arms], "model": piece.target, "dtype": piece.dtype}
    file = BenchFile(
        piece.file("bench.jsonl"), {name: settings[name] for name in ("arms", "model", "dtype", "max_tokens")}
    )
    cells = cells_of(prompts, [0.0], args.batches, max_tokens=args.max_tokens)
    name = f"{piece.target} {piece.dtype}"
    minutes = (deadline - time.monotonic()) / 60
    if minutes <= 0:
        return
    ended = run_bench(
        arms, Plan(cells, args.rounds, minutes), file, lambda what, i, n: console.print(f"{name} {i}/{n}")
    )
    console.print(f"{name}: {ended}")


def of_family(
    candidates: list[Candidate], texts: list[Text], family: str, some: set[int]
) -> tuple[list[Candidate], list[Text]]:
    """Candidates and texts, those of `some` that are of one family."""
    kept = [number for number, text in enumerate(texts) if number in some and family in (ALL, text.family)]
    own = [
        replace(
            one, rounds=[one.rounds[i] for i in kept],
            in_company={size: [rounds[i] for i in kept] for size, rounds in one.in_company.items()},
        )
        for one in candidates
    ]  # fmt: skip
    return own, [texts[i] for i in kept]


def joined(piece: Piece, args: argparse.Namespace) -> Iterator[dict]:
    """Predicted and measured, for every configuration of a piece that was measured at all, both of the same texts."""
    path = piece.file("bench.jsonl")
    if not path.exists():
        return
    file = BenchFile(path, json.loads(path.read_text().splitlines()[0])["settings"])
    prompts = load_prompts(args.prompts, per_family=args.per_family)
    number_of = {prompt.text: number for number, prompt in enumerate(prompts)}
    done = {cell for _, cell in file.done()}
    asked = [cell for cell in cells_of(prompts, [0.0], args.batches) if cell.number in done]
    texts_at = {
        batch: {number_of[text] for cell in asked if len(cell.prompts) == batch for text in cell.prompts}
        for batch in args.batches
    }
    for one in [one for batch in args.batches for one in piece.predictions(batch, texts_at[batch])]:
        own = [m for m in file.measurements if m.concurrency == one["batch"] and one["family"] in (ALL, m.family)]
        rounds = sorted({m.round for m in own})
        label = f"{one['draft']} k={one['k']}"
        interval = measured(own, label)
        if interval is None:
            continue
        passes = [answer for m in own if m.arm == label and m.round == rounds[0] for answer in m.answers]
        yield one | {
            "target": piece.target, "measured": interval.ratio, "measured_low": interval.low,
            "measured_high": interval.high, "cells": interval.num_prompts,
            "error": one["predicted"] / interval.ratio - 1, "measured_sum": sums(own, label),
            "by_round": by_round(own, rounds, label),
            "plain_again": time_ratio(pairs_of(own, AGAIN, PLAIN, decode=True)).ratio,
            "measured_tokens_per_pass": sum(a.tokens - 1 for a in passes) / sum(a.passes or 0 for a in passes),
        }  # fmt: skip


def by_round(own: list[Measurement], rounds: list[int], label: str) -> list[float]:
    """The ratio in each round, of the cells that were measured in all of them."""
    shared = set.intersection(*({m.cell for m in own if m.round == number} for number in rounds))
    each = [measured([m for m in own if m.round == number and m.cell in shared], label) for number in rounds]
    return [found.ratio for found in each if found]


def measured(some: list[Measurement], label: str) -> Interval | None:
    """Decoding speed of an arm over plain decoding's, both times that it answered; of a prompt's rounds the median."""
    both = [replace(m, arm=PLAIN) if m.arm == AGAIN else m for m in some]
    own, base = usual(both, label), usual(both, PLAIN)
    cells = sorted(own.keys() & base.keys())
    if not cells:
        return None
    columns = np.array([(*base[cell], *own[cell]) for cell in cells]).T
    families = {m.cell: m.family for m in some}
    return time_ratio(Pairs(*columns, strata=[families[cell] for cell in cells]))


def sums(some: list[Measurement], label: str) -> float:
    """The same ratio from the sums over all rounds, disturbed ones included."""
    return time_ratio(
        pairs_of([replace(m, arm=PLAIN) if m.arm == AGAIN else m for m in some], label, PLAIN, True)
    ).ratio


def usual(some: list[Measurement], arm: str) -> dict[int, tuple[float, float]]:
    """Cell to (median seconds of decoding, tokens) of an arm, whose text is the same in every round.

    Two answers in one round count as their mean: a median over twice as many values would leave out more of the
    machine's disturbances, and so favour that arm.
    """
    seconds: defaultdict[int, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    tokens: dict[int, float] = {}
    for one in some:
        if one.arm == arm and one.decoded_tokens:
            seconds[one.cell][one.round].append(one.decode_seconds)
            tokens[one.cell] = one.decoded_tokens
    return {
        cell: (statistics.median(map(statistics.mean, rounds.values())), tokens[cell])
        for cell, rounds in seconds.items()
    }


def summarise(records: list[dict]) -> dict:
    """Error statistics; families are configurations, all prompts together are not counted again."""
    some = [record for record in records if record["family"] != ALL]
    errors = sorted(abs(record["error"]) for record in some)
    known = [r for r in some if r["low"] is not None]
    clear = [r for r in some if abs(r["measured"] - 1) > 0.03]
    losses = regret(some)
    again = {tuple(r[name] for name in WORKLOAD): abs(r["plain_again"] - 1) for r in some}
    apart = sorted(abs(r["by_round"][1] / r["by_round"][0] - 1) for r in some if len(r["by_round"]) > 1)
    return {
        "configurations": len(some),
        "median_error": statistics.median(errors),
        "error_95": errors[min(len(errors) - 1, int(0.95 * len(errors)))],
        "median_error_of_sums": statistics.median(abs(r["predicted"] / r["measured_sum"] - 1) for r in some),
        "within_3_percent": share(error <= 0.03 for error in errors),
        "within_10_percent": share(error <= 0.1 for error in errors),
        "within_interval": share(r["low"] <= r["measured"] <= r["high"] for r in known),
        "signs_right": share((r["predicted"] > 1) == (r["measured"] > 1) for r in clear),
        "advised_below": [one for one in losses if one["measured"] < WRONG],
        "regret_within_3_percent": share(one["regret"] <= 0.03 for one in losses),
        "plain_from_itself": statistics.median(again.values()),
        "round_from_round": statistics.median(apart) if apart else None,
        "round_from_round_95": apart[int(0.95 * len(apart))] if apart else None,
        "largest_regret": max((one["regret"] for one in losses), default=None),
    }


def share(found: Iterator[bool]) -> float | None:
    kept = list(found)
    return sum(kept) / len(kept) if kept else None


def regret(records: list[dict]) -> list[dict]:
    """Per workload the loss of the advised configuration against the best measured one, plain decoding included."""
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
    """A point for every configuration, beside the diagonal and what is within 10 % of it."""
    some = [record for record in records if record["family"] != ALL]
    pieces = sorted({(record["target"], record["dtype"]) for record in some})
    points = []
    for target, dtype in pieces:
        own = [record for record in some if (record["target"], record["dtype"]) == (target, dtype)]
        label = f"{Path(target).stem} {dtype}: {len(own)} configurations"
        points.append(Series(label, [r["measured"] for r in own], [r["predicted"] for r in own], loose=True))
    ends = [min(record["measured"] for record in some), max(record["measured"] for record in some)]
    equal = Series("equal, within 10 %", ends, ends, [(0.9 * end, 1.1 * end) for end in ends])
    return Chart("Predicted speed-up", "measured", "predicted", (*points, equal))


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
    parser.add_argument("--replay", action="store_true", help="only answer and replay, which nothing disturbs")
    parser.add_argument("--profile", type=Path, help="prices that hybrids replay by; measured when left out")
    parser.add_argument("--report", action="store_true", help="only tell what was measured")
    parser.add_argument("--prompts", default="builtin", help="as paceline bench takes them")
    parser.add_argument("--per-family", type=int, default=6)
    parser.add_argument("--lengths", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--batches", type=numbers, default=[1, 3])
    parser.add_argument("--dtypes", type=names, default=["w8a8", "bfloat16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--turns", type=int, default=TURNS, help="of the rehearsal, each time that it goes on")
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    args.target = args.target or default
    return args


if __name__ == "__main__":
    main()
