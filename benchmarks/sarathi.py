"""Prompt chunks that share passes with decodes: SARATHI's experiments on this machine (Agrawal et al. 2023 and 2024).

Four parts, each after an experiment of the papers:

- passes: time per token of a chunk alone, of decodes alone, and of decodes that ride on a chunk, by context;
- sweep: tokens per second by prompt-to-output ratio and chunk, measured, and modelled from the passes' times;
- trace: time between tokens, time to first token and throughput when a trace is replayed under each policy, measured,
  and modelled on a longer piece of it;
- pipeline: bubbles of a simulated pipeline under whole prompts and under chunks (modelled only).

    python benchmarks/sarathi.py --json
    python benchmarks/sarathi.py --quick --parts passes trace
    python benchmarks/sarathi.py --trace AzureLLMInferenceTrace_conv.csv --plot plots

Without --trace a synthetic trace of conversations is used. Time is stretched until the trace keeps this machine busy
for --load of the time, and tokens are scaled by --token-factor. The last line of standard output is one JSON object.
"""

import argparse
from pathlib import Path

import bubbles
import replay
import riding
from common import console, finish, show

from paceline.config import EngineConfig
from paceline.engine.setup.load import load
from paceline.evaluation.tune import TunePlan, measure
from paceline.models.loaded import LoadedModel
from paceline.placement.pipeline_bubbles import measured_stage
from paceline.placement.traces import read_arrivals
from paceline.speculation import CostProfile
from paceline.theory.curves import Chart, Series
from paceline.theory.piggyback import aligned_chunk
from paceline.theory.plots import draw

PARTS = ("passes", "sweep", "trace", "pipeline")
POLICIES = ("stall_free", "orca", "request_level")
COST_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
COST_CONTEXTS = (32, 512)
LOCAL_STAGES = 4


def main() -> None:
    args = parse()
    config = EngineConfig(dtype=args.dtype, num_threads=args.threads, profile="none")
    loaded = load(args.model, config)
    console.print("measuring the cost of passes")
    rows = COST_ROWS[:-1] if args.quick else COST_ROWS
    plan = TunePlan(rows, COST_CONTEXTS, args.rounds, seconds_per_point=0.5)
    cost = CostProfile.by_context(measure(loaded.model, plan))
    parts = {"passes": passes_part, "sweep": sweep_part, "trace": trace_part, "pipeline": pipeline_part}
    found = {name: parts[name](loaded, config, cost, args) for name in args.parts}
    if args.plot:
        plot(found, args.plot)
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    finish({"settings": settings, "summary": summary(found), **found})


def passes_part(loaded: LoadedModel, _config: EngineConfig, _cost: CostProfile, args: argparse.Namespace) -> list[dict]:
    """After table 2 of SARATHI."""
    chunk = aligned_chunk(args.rows[-1], args.batch)
    passes = riding.Passes(loaded.model, args.batch, max(args.contexts), max(args.rows))
    found = [riding.describe(passes.times(c, chunk, args.rounds), c) for c in args.contexts]
    header = ["context", "prefill-only", "decode-only", "decode-maximal, per decode", "decode speed-up"]
    keys = ("context", "prefill_only_ms", "decode_only_ms", "decode_maximal_decode_ms", "decode_speedup")
    title = f"ms per token, measured: chunk of {chunk}, {args.batch} decodes or {args.batch - 1} beside the chunk"
    show(title, header, [[row[key] for key in keys] for row in found])
    return found


def sweep_part(loaded: LoadedModel, config: EngineConfig, _cost: CostProfile, args: argparse.Namespace) -> list[dict]:
    """After the throughput of SARATHI by P:D ratio."""
    passes = riding.Passes(loaded.model, args.batch, args.length, args.length)
    found = riding.sweep(
        loaded, config, passes, args.rows, args.ratios, args.length, args.requests_per_run, args.rounds
    )
    header = ["P:D", "chunk", "C/(B-1)", "tok/s", "tok/s apart", "gain", "tok/s (modelled)", "gain (modelled)"]
    keys = ("ratio", "chunk", "best_ratio", "measured", "measured_separate", "measured_gain", "modelled",
            "modelled_gain")  # fmt: skip
    title = f"requests of {args.length} tokens, {args.batch} at once; apart: whole prompts, decodes by themselves"
    show(title, header, [[row[key] for key in keys] for row in found])
    return found


def trace_part(loaded: LoadedModel, config: EngineConfig, cost: CostProfile, args: argparse.Namespace) -> dict:
    """After the tail latencies of Sarathi-Serve."""
    trace = read_arrivals(args.trace) if args.trace else replay.synthetic_trace(args.modelled_requests)
    context = int(700 * args.token_factor)
    passes = riding.Passes(loaded.model, args.seats // 2, context, args.budget)
    times = passes.times(context, aligned_chunk(args.budget, args.seats // 2), args.rounds)
    piece = replay.scale(trace, args.trace_requests, args.token_factor, args.load, times)
    longer = replay.scale(trace, args.modelled_requests, args.token_factor, args.load, times)
    found = {"time_factor": piece.time_factor, "token_factor": piece.token_factor, "load": piece.load,
             "requests": len(piece.requests), "modelled_requests": len(longer.requests)}  # fmt: skip
    common = (args.budget, args.seats)
    found["measured"] = {p: replay.measured(loaded, config, p, *common, piece.requests) for p in POLICIES}
    found["modelled"] = {p: replay.modelled(cost, p, *common, longer.requests) for p in POLICIES}
    found["modelled_all_at_once"] = {p: replay.modelled(cost, p, *common, longer.at_once) for p in POLICIES}
    keys = ("tbt_p50_ms", "tbt_p99_ms", "ttft_p50_ms", "ttft_p99_ms", "tokens_per_second")
    kinds = {name: found[name] for name in ("measured", "modelled", "modelled_all_at_once")}
    body = [[kind.replace("_", " "), p, *(row[k] for k in keys)] for kind, by in kinds.items() for p, row in by.items()]
    title = f"trace at load {args.load}, {args.budget} rows a pass, {args.seats} seats, time x {piece.time_factor:.2f}"
    show(title, ["", "policy", *(key.removesuffix("_ms") for key in keys)], body)
    return found


def pipeline_part(_loaded: LoadedModel, _config: EngineConfig, cost: CostProfile, args: argparse.Namespace) -> dict:
    """After SARATHI's simulated pipeline; and the same on this machine's own cost curve, with shorter requests."""
    own = bubbles.zipf_lengths(args.pipeline_requests, bubbles.SHORTEST // 4, bubbles.LONGEST // 4)
    lengths = bubbles.zipf_lengths(args.pipeline_requests, bubbles.SHORTEST, bubbles.LONGEST)
    found = {
        "gpt3_a100": bubbles.compare(
            bubbles.gpt3_stage(), lengths, bubbles.STAGES, bubbles.BATCH, bubbles.ROWS, bubbles.TILE
        ),
        "this_machine": bubbles.compare(
            measured_stage(cost, LOCAL_STAGES), own, LOCAL_STAGES, args.seats, args.budget, tile=16
        ),
    }
    header = ["pipeline", "policy", "idle share", "median bubble (s)", "PB1 (s)", "PB2 (s)", "PB3 (s)", "tok/s"]
    kinds = ("prefill_lengths", "prefill_decode", "contexts")
    body = [
        [name, policy, row["bubble_share"], row["median_request_bubble_seconds"],
         *(row["bubble_seconds"][kind] for kind in kinds), row["tokens_per_second"]]
        for name, compared in found.items()
        for policy, row in compared["policies"].items()
    ]  # fmt: skip
    show("bubbles of a pipeline, modelled; seconds are summed over stages", header, body)
    return found


def summary(found: dict) -> dict:
    """The key figures of all parts."""
    told = {}
    if "passes" in found:
        told["decode_speedup_by_context"] = {str(row["context"]): row["decode_speedup"] for row in found["passes"]}
    if "sweep" in found:
        best = max(found["sweep"], key=lambda row: row["measured_gain"])
        told["sweep"] = {"best_measured_gain": best["measured_gain"], "at_ratio": best["ratio"],
                         "at_chunk": best["chunk"], "its_perfect_coverage": best["best_ratio"]}  # fmt: skip
    for kind in ("measured", "modelled", "modelled_all_at_once") if "trace" in found else ():
        ours, orca = found["trace"][kind]["stall_free"], found["trace"][kind]["orca"]
        told[f"trace_{kind}"] = {
            "orca_tbt_p99_over_stall_free": orca["tbt_p99_ms"] / ours["tbt_p99_ms"],
            "stall_free_throughput_over_orca": ours["tokens_per_second"] / orca["tokens_per_second"],
        }
    for name, compared in found.get("pipeline", {}).items():
        told[f"pipeline_{name}"] = {key: compared[key] for key in ("median_bubble_ratio", "throughput_ratio")}
    return told


def plot(found: dict, folder: Path) -> None:
    """One chart per part that has one."""
    folder.mkdir(parents=True, exist_ok=True)
    if "sweep" in found:
        series = []
        for chunk in sorted({row["chunk"] for row in found["sweep"]}):
            rows = sorted((row for row in found["sweep"] if row["chunk"] == chunk), key=lambda row: row["ratio"])
            for kind in ("measured", "modelled"):
                points = [row["ratio"] for row in rows], [row[f"{kind}_gain"] for row in rows]
                series.append(Series(f"chunk {chunk}, {kind}", *points))
        chart = Chart("Decode-maximal against separate passes", "prompt tokens per output token", "gain",
                      tuple(series), discrete=True)  # fmt: skip
        console.print(f"wrote {draw(chart, folder / 'sarathi-sweep.png')}")
    if "trace" in found:
        shares = [q / 100 for q in range(0, 101, 2)]
        measured = found["trace"]["measured"]
        series = tuple(Series(policy, row["tbt_quantiles_ms"], shares) for policy, row in measured.items())
        chart = Chart("Time between tokens, measured", "milliseconds", "share of gaps that are shorter", series)
        console.print(f"wrote {draw(chart, folder / 'sarathi-time-between-tokens.png')}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="as for `paceline generate`")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32", "int8", "w8a8", "gguf"])
    parser.add_argument("--threads", type=int, help="default: all processors")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--batch", type=int, default=4, help="requests of a pass in passes and sweep, B")
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 512, 1024], help="tokens before a decode")
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 64, 128], help="rows of a pass, chunk and decodes")
    parser.add_argument("--ratios", type=float, nargs="+", default=[3, 10, 20, 40], help="P:D, prompt to output")
    parser.add_argument("--length", type=int, default=256, help="tokens of a request in the sweep")
    parser.add_argument("--requests-per-run", type=int, default=16, help="requests of one run of the sweep")
    parser.add_argument("--rounds", type=int, default=9, help="times each pass is measured")
    parser.add_argument("--trace", type=Path, help="a CSV of TIMESTAMP,ContextTokens,GeneratedTokens")
    parser.add_argument("--trace-requests", type=int, default=80, help="first requests of the trace, in real time")
    parser.add_argument("--modelled-requests", type=int, default=400, help="first requests of the trace, simulated")
    parser.add_argument("--token-factor", type=float, default=0.25, help="what the trace's token counts are scaled by")
    parser.add_argument("--load", type=float, default=0.6, help="share of the time the trace keeps the machine busy")
    parser.add_argument("--budget", type=int, default=48, help="rows of a pass in the trace, for every policy")
    parser.add_argument("--seats", type=int, default=16, help="requests that may run at once in the trace")
    parser.add_argument("--pipeline-requests", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="small sizes: to see that it works, not to quote")
    parser.add_argument("--plot", type=Path, help="write charts to this folder")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    args = parser.parse_args()
    if args.batch < 2 or min(args.rows) <= args.batch or args.seats < 4 or args.budget <= args.seats:
        parser.error("--batch must be 2 or more, --seats 4 or more, --rows and --budget larger than these")
    if args.quick:
        small = {"contexts": [128, 256], "rows": [32], "ratios": [3, 11], "length": 96, "requests_per_run": 8,
                 "rounds": 3, "trace_requests": 10, "modelled_requests": 60, "token_factor": 0.1,
                 "pipeline_requests": 300}  # fmt: skip
        vars(args).update(small)
    return args


if __name__ == "__main__":
    main()
