"""Cost of splitting a model over processes: seconds and bytes of every stage, and of a whole pass.

Stages are measured one at a time, so that they do not disturb each other. A whole pass is measured alternately as one
batch, which the stages process one after the other, and in micro-batches, which keep several stages busy.

    python benchmarks/parallel.py
    python benchmarks/parallel.py --grids 1x1 3x1 1x2 --tokens 256 --batch-sizes 1 2 4 --case profiles.json

Grids are tensor x pipeline degrees. The last line of standard output is one JSON object; its ``profiles``, which
``--case`` writes to a file of their own, are those of a case of `paceline.placement`.
"""

import argparse
import json
import time
from pathlib import Path

from common import console, finish, median, show

from paceline.models.resolve import resolve_model
from paceline.models.torch_executor.parallel import ParallelModel, launch_model, prefill_rows, profile_stages


def main() -> None:
    args = parse()
    found = [measure(tensor, pipeline, args) for tensor, pipeline in args.grids]
    header = ["tensor x pipeline", "stages (ms)", "weights (MB)", "pass, one batch (ms)", "pass, micro-batches (ms)"]
    show(f"{args.model}, {args.dtype}, prefill of {args.tokens} tokens", header, [table_row(entry) for entry in found])
    profiles = {args.model: [entry["profile"] for entry in found]}
    if args.case:
        args.case.write_text(json.dumps({"profiles": profiles}, indent=2) + "\n")
    passes = [{key: entry[key] for key in ("grid", "one_batch_ms", "micro_batches_ms")} for entry in found]
    finish({"model": args.model, "dtype": args.dtype, "tokens": args.tokens, "profiles": profiles, "passes": passes})


def measure(tensor: int, pipeline: int, args: argparse.Namespace) -> dict:
    """One grid: its profile, and milliseconds of a whole pass with and without micro-batches."""
    checkpoint = resolve_model(args.model).checkpoint
    with launch_model(
        checkpoint, tensor, pipeline, dtype=args.dtype, device=args.device, num_threads=args.threads
    ) as model:
        profile = profile_stages(model, args.tokens, args.batch_sizes, args.rounds)
        one, several = whole_passes(model, args)
    console.print(f"{tensor} x {pipeline}: done")
    return {
        "grid": f"{tensor}x{pipeline}",
        "profile": profile.to_json(),
        "one_batch_ms": round(one, 3),
        "micro_batches_ms": round(several, 3),
    }


def whole_passes(model: ParallelModel, args: argparse.Namespace) -> tuple[float, float]:
    """Median milliseconds of a pass as one batch, and in one micro-batch per stage."""
    rows = prefill_rows(model, args.tokens)
    cache = model.new_cache(int(rows.page_tables.max()) + 1)
    times: dict[int, list[float]] = {args.tokens + 1: [], 1: []}
    for number in range(args.rounds + 1):
        for least_rows, own in times.items():
            model.microbatch_rows = least_rows
            start = time.perf_counter()
            model.forward(rows, cache)
            if number:  # the first round warms up
                own.append((time.perf_counter() - start) * 1000)
    one, several = (median(own) for own in times.values())
    return one, several


def table_row(entry: dict) -> list[object]:
    profile = entry["profile"]
    stages = " + ".join(f"{1000 * seconds:.1f}" for seconds in profile["latency"])
    weights = " + ".join(f"{size / 1e6:.0f}" for size in profile["weight_mem"])
    return [entry["grid"], stages, weights, entry["one_batch_ms"], entry["micro_batches_ms"]]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="as for `paceline generate`")
    parser.add_argument("--dtype", default="float32", choices=["bfloat16", "float32"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--grids", type=grid, nargs="+", default=[(1, 1), (1, 2)], metavar="TxP")
    parser.add_argument("--tokens", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1], help="prompts per pass, for the profiles")
    parser.add_argument("--threads", type=int, help="of all processes together; default all processors")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--case", type=Path, help="write the profiles to this file")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


def grid(text: str) -> tuple[int, int]:
    tensor, pipeline = text.split("x")
    return int(tensor), int(pipeline)


if __name__ == "__main__":
    main()
