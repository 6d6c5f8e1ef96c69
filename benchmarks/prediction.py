"""Predicted against measured speed-ups: what `paceline advise` says of configurations, and what a bench finds.

Every drafter x length x number of requests at once x weight type is predicted from replayed answers and a profile, and
then measured in one interleaved bench. Printed: the median and 95th percentile of the error, how often the measured
ratio lies in the predicted interval, signs that are right outside +-3 %, and what following the advice would lose.

    python benchmarks/prediction.py --prompts spec_bench.jsonl --per-family 4 --dtypes bfloat16,w8a8 --json
    python benchmarks/prediction.py -m big.gguf --drafts ngram,suffix,draft_model:small.gguf --batches 1,4 --plot p.svg

Run it on a quiet machine: a configuration takes about as long as its answers. The last line of standard output is one
JSON object.
"""

import argparse
import statistics
from dataclasses import asdict
from pathlib import Path

from common import console, finish, show

from paceline import LLM, SamplingParams
from paceline.config import EngineConfig
from paceline.evaluation.advise.predict import Prediction, best_of
from paceline.evaluation.advise.run import predictions_of, profile_of, replayed
from paceline.evaluation.advise.texts import texts_of
from paceline.evaluation.bench.own_arms import bases_of, own_arms
from paceline.evaluation.bench.record import BenchFile
from paceline.evaluation.bench.run import Plan, cells_of, run_bench
from paceline.evaluation.bench.summary import ALL, tables_of
from paceline.evaluation.prompts import load_prompts
from paceline.theory.curves import Chart, Series
from paceline.theory.plots import draw


def main() -> None:
    args = parse()
    records = [record for dtype in args.dtypes for record in compare(dtype, args)]
    rows = [[r["draft"], r["k"], r["batch"], r["dtype"], r["predicted"], r["measured"], r["error"]] for r in records]
    show("predicted and measured", ["drafter", "k", "at once", "dtype", "predicted", "measured", "error"], rows)
    summary = summarise(records)
    console.print(summary)
    if args.plot:
        console.print(f"wrote {draw(chart(records), args.plot)}")
    finish({"summary": summary, "configurations": records})


def compare(dtype: str, args: argparse.Namespace) -> list[dict]:
    """All configurations of one weight type."""
    llm = LLM(args.model, speculative=None, dtype=dtype, num_threads=args.threads)
    config = EngineConfig(dtype=dtype, num_threads=args.threads)
    prompts = load_prompts(args.prompts, per_family=args.per_family)
    params = SamplingParams(temperature=0, max_tokens=args.max_tokens)
    profile = profile_of(llm.loaded, config, lambda *_: None)
    texts, _ = texts_of(llm, prompts, params)
    candidates = replayed(llm, args.drafts, args.lengths, texts, params, config)
    predictions = predictions_of(candidates, texts, profile, args.batches, dtype)
    specs = {label(p): spec_of(p) for p in predictions if p.batch == args.batches[0]}
    arms, _ = own_arms(llm, specs)
    file = BenchFile(None, {"arms": [arm.label for arm in arms]})
    cells = cells_of(prompts, [0.0], args.batches, max_tokens=args.max_tokens)
    run_bench(arms, Plan(cells, args.rounds), file, lambda what, done, total: console.print(f"{dtype} {done}/{total}"))
    whole = [table for table in tables_of(file.measurements, *bases_of(arms)) if table.family == ALL]
    measured = {(one.arm, table.concurrency): one.decode for table in whole for one in table.arms}
    return [joined(p, measured[label(p), p.batch]) for p in predictions if (label(p), p.batch) in measured]


def label(one: Prediction) -> str:
    return f"{one.draft} k={one.k}"


def spec_of(one: Prediction) -> dict:
    method, _, model = one.draft.partition(":")
    return {"method": method, "num_draft_tokens": one.k, "policy": "fixed"} | ({"model": model} if model else {})


def joined(one: Prediction, interval) -> dict:
    found = {"measured": interval.ratio, "measured_low": interval.low, "measured_high": interval.high}
    return asdict(one) | found | {"error": one.predicted / interval.ratio - 1}


def summarise(records: list[dict]) -> dict:
    errors = sorted(abs(record["error"]) for record in records)
    known = [r for r in records if r["low"] is not None]
    clear = [r for r in records if abs(r["measured"] - 1) > 0.03]
    return {
        "configurations": len(records),
        "median_error": statistics.median(errors),
        "error_95": errors[min(len(errors) - 1, int(0.95 * len(errors)))],
        "within_interval": sum(r["low"] <= r["measured"] <= r["high"] for r in known) / len(known) if known else None,
        "signs_right": sum((r["predicted"] > 1) == (r["measured"] > 1) for r in clear) / len(clear) if clear else None,
        "regret": regret(records),
    }


def regret(records: list[dict]) -> dict[str, float]:
    """What following the advice loses against the best measured, plain decoding among them."""
    found = {}
    for dtype, batch in sorted({(r["dtype"], r["batch"]) for r in records}):
        some = [r for r in records if (r["dtype"], r["batch"]) == (dtype, batch)]
        names = Prediction.__dataclass_fields__
        best = best_of([Prediction(**{name: r[name] for name in names}) for r in some], batch)
        taken = next((r["measured"] for r in some if best and (r["draft"], r["k"]) == (best.draft, best.k)), 1.0)
        found[f"{dtype}, {batch} at once"] = 1 - taken / max(1.0, *(r["measured"] for r in some))
    return found


def chart(records: list[dict]) -> Chart:
    """A point for every configuration beside the diagonal."""
    measured = [record["measured"] for record in records]
    ends = [min(measured), max(measured)]
    order = sorted(records, key=lambda record: record["measured"])
    points = Series("predicted", [r["measured"] for r in order], [r["predicted"] for r in order])
    return Chart("Predicted speed-up", "measured", "predicted", (points, Series("equal", ends, ends)), discrete=True)


def parse() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return text.split(",")

    def numbers(text: str) -> list[int]:
        return [int(each) for each in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", "-m", default="smollm2-135m")
    parser.add_argument("--prompts", default="builtin", help="as paceline bench takes them")
    parser.add_argument("--per-family", type=int, default=6)
    parser.add_argument("--drafts", type=names, default=["ngram", "suffix"])
    parser.add_argument("--lengths", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--batches", type=numbers, default=[1, 4])
    parser.add_argument("--dtypes", type=names, default=["bfloat16", "w8a8"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
