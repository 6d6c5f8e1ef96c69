"""Checks and measures the cuda executor on this machine's GPU; needs no network and no weights, prints one JSON object.

    python benchmarks/gpu.py --minutes 8 > gpu.json
    python benchmarks/gpu.py --model smollm2-135m.gguf   # with a model that people use besides
    python benchmarks/gpu.py --device cpu --quick        # everything once on a tiny model, to see that it runs

It imports numpy, PyTorch, Triton if installed, and this checkout, which need not be installed. Placeholders replace
tokenizers and safetensors if they are missing; parts that need transformers or Triton report their absence. Weights are
random, in the shape of Qwen2.5-1.5B, because speed does not depend on their values. Drafts come from a drafter that
knows the answers and errs on one token in five. A part that fails is reported with its error, and the others continue.

Parts, in order: bandwidth, kernels, draws, parity, row_invariance, identity, families, passes, blocks, mixtures,
decoding, lookups, larger, drafting, heads, real, transformers, head_training. Those for which no time is left are
skipped by name. `targets` says which of the figures that were set beforehand were reached; docs/gpu.md tells how to
read them.
"""

import argparse
import json
import platform
import sys
import time
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import torch  # noqa: E402
from gpu_parts import checks, drafts, families, real, speeds, training  # noqa: E402
from gpu_parts.bench import Bench  # noqa: E402
from gpu_parts.stand_ins import fill_in  # noqa: E402

PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "bandwidth": speeds.bandwidth,
    "kernels": checks.kernels,
    "draws": checks.draws,
    "parity": checks.parity,
    "row_invariance": checks.row_invariance,
    "identity": checks.identity,
    "families": families.families,
    "passes": speeds.passes,
    "blocks": speeds.blocks,
    "mixtures": speeds.mixtures,
    "decoding": speeds.decoding,
    "lookups": speeds.lookups,
    "larger": speeds.larger,
    "drafting": drafts.drafting,
    "heads": drafts.heads,
    "real": real.real,
    "transformers": speeds.transformers,
    "head_training": training.head_training,
}
PACKAGES = ("torch", "triton", "numpy", "transformers", "tokenizers", "safetensors", "paceline")


def main() -> None:
    args = parse()
    print(json.dumps(measure(args.device, args.quick, args.minutes, args.parts, args.model)))


def measure(
    device: str, quick: bool, minutes: float, parts: list[str] | None = None, model: Path | None = None
) -> dict[str, Any]:
    """Run `parts`, by default all, and return the report."""
    placeholders = fill_in()
    began = time.perf_counter()
    bench = Bench(device, quick, began + 60 * minutes, model_path=model)
    for name in parts or PARTS:
        started = time.perf_counter()
        bench.results[name] = run(name, bench)
        bench.results[name]["seconds"] = round(time.perf_counter() - started, 2)
        say(f"{name}: {json.dumps(bench.results[name])}")
    own = {"argv": sys.argv, "device": described(bench), "versions": versions(), "placeholders": placeholders}
    seconds = round(time.perf_counter() - began, 1)
    return own | {"seconds": seconds, "targets": reached(bench.results), "parts": bench.results}


def reached(results: dict[str, dict[str, Any]]) -> dict[str, bool | None]:
    """Which targets were reached; None where the part was not run."""
    parity, rows, decoding = (results.get(name, {}) for name in ("parity", "row_invariance", "decoding"))
    on_device = {name: results.get(name, {}).get(way, {}) for name, way in (("lookups", "ahead"), ("heads", "early"))}
    exact, one, most = rows.get("deterministic", {}), decoding.get("1", {}), decoding.get("64", {})
    figures = {
        "parity within 1e-2 deviations on average": (parity.get("mean_difference_in_deviations"), lambda x: x <= 1e-2),
        "same argmax on 95 % of positions": (parity.get("same_argmax"), lambda x: x >= 0.95),
        "deterministic chunks bitwise": (exact.get("chunk_is_bitwise"), bool),
        "deterministic trees bitwise": (exact.get("tree_is_bitwise"), bool),
        "plain at 1 request: 70 % of the bandwidth limit": (
            decoding.get("plain_of_bandwidth_limit"), lambda x: x >= 0.7),
        "prompt lookup at 1 request: 90 % of theory": (on_device["lookups"].get("of_theory"), lambda x: x >= 0.9),
        "a head at 1 request: 90 % of theory": (on_device["heads"].get("of_theory"), lambda x: x >= 0.9),
        "drafts made on the host at 1 request: 90 % of theory": (one.get("of_theory"), lambda x: x >= 0.9),
        "adaptive at 64 requests: no slower than plain": (most.get("adaptive_speedup"), lambda x: x >= 1),
    }  # fmt: skip
    return {name: None if value is None else bool(test(value)) for name, (value, test) in figures.items()}


def run(name: str, bench: Bench) -> dict[str, Any]:
    """The result of one part, or the reason why there is none."""
    if time.perf_counter() > bench.deadline:
        return {"skipped": "no time left"}
    try:
        return PARTS[name](bench)
    except Exception as error:
        say(traceback.format_exc())
        return {"failed": f"{type(error).__name__}: {error}"}
    finally:
        bench.tidy()


def described(bench: Bench) -> dict[str, Any]:
    """The machine."""
    if bench.on.type != "cuda":
        return {"name": platform.processor() or platform.machine(), "attention": bench.attention}
    found = torch.cuda.get_device_properties(bench.on)
    return {
        "name": found.name, "memory_gb": found.total_memory / 1e9, "capability": [found.major, found.minor],
        "cuda": torch.version.cuda, "attention": bench.attention,
    }  # fmt: skip


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages among `PACKAGES`."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=8, help="no part begins after so long")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="a tiny model, few repetitions")
    parser.add_argument("--model", type=Path, help="a folder or GGUF file of a chat model, for the part 'real'")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="these only, in this order")
    args = parser.parse_args()
    try:
        torch.empty(0, device=args.device)
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        reason = str(error).partition("\n")[0]
        parser.error(f"argument --device: {args.device!r} cannot be used ({reason}); try --device cpu --quick")
    if args.model is not None and not args.model.exists():
        parser.error(f"argument --model: there is no {args.model}")
    return args


if __name__ == "__main__":
    main()
