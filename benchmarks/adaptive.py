"""Does an adaptive draft length cost anything? Goodput against plain decoding and every fixed length, by batch size.

At each batch size every method decodes the same prompts. The method with the fewest tokens so far takes the next step,
so a machine that slows down slows all of them alike. Rates are those of the window in which all requests decode
together. Every round has new prompts as long as the file lasts, so that no drafter remembers them. Small batches have
more rounds, up to 16: two engines of the same kind differ by 1.5 % in one round (standard deviation, 8 requests).
Ratios are taken within a round; their median over rounds is reported. Every method has its own engine, and a policy
learns costs from its own passes only (and from the profile, after `paceline tune`).

    paceline tune
    python benchmarks/adaptive.py
    python benchmarks/adaptive.py --prompts prompts.jsonl --policies goodput cascade --plot adaptive.png
    python benchmarks/adaptive.py --quick --json

The last line of standard output is one JSON object; `never_slower` and `near_best` say whether the first policy is at
most 3 % slower than plain decoding, and within 5 % of the best fixed length, at every batch size.
"""

import argparse
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

from common import console, finish, median, read_prompts, show
from rich.progress import Progress
from window import Window, decode_windows, same_as_far_as_both_go

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.loop.engine import Engine
from paceline.engine.setup.build import build_engine
from paceline.engine.setup.load import load
from paceline.models.loaded import LoadedModel
from paceline.theory.curves import Chart, Series
from paceline.theory.plots import draw
from paceline.types import SamplingParams

SLOWER, OFF_BEST = 0.03, 0.05
ANSWERS, MOST_ROUNDS = 64, 16
PROMPTS = (
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "List the numbers from one to forty in words, separated by commas.",
    "def double(x):\n    return 2 * x\n\n\ndef triple(x):\n    return 3 * x\n\n\ndef quadruple(x):\n",
    "Repeat after me, three times: the quick brown fox jumps over the lazy dog.",
    "Explain to a child why the sky is blue and why sunsets are red.",
    "Alice: How was your trip?\nBob: It was long but good.\nAlice: Where did you go?\nBob:",
    "Translate into French: The library opens at nine, and the museum next door opens at ten.",
    '{"name": "Ada", "born": 1815}\n{"name": "Alan", "born": 1912}\n{"name": "Grace", "born":',
)


def main() -> None:
    args = parse()
    config = EngineConfig(
        dtype=args.dtype, num_threads=args.threads, profile=args.profile, kv_cache_memory_bytes=args.cache_bytes
    )
    loaded = load(args.model, config)
    texts = [record["text"] for record in read_prompts(args.prompts)] if args.prompts else list(PROMPTS)
    prompts = [loaded.source.tokenizer.encode(text)[: args.max_prompt] for text in texts]
    methods = make_methods(loaded, config, args)
    params = SamplingParams(temperature=args.temperature, seed=0, max_tokens=args.max_tokens, ignore_eos=True)
    results = {}
    with Progress(console=console, transient=True) as bars:
        numbers = {size: num_rounds(size, args) for size in args.batch}
        task, stream = bars.add_task("decoding", total=sum(numbers.values()) * len(methods)), cycle(prompts)
        for size in args.batch:
            rounds = []
            for _ in range(numbers[size]):
                rounds.append(decode_windows(methods, list(islice(stream, size)), params))
                bars.advance(task, len(methods))
            results[str(size)] = summarise(rounds, args)
    report(results, args)


def num_rounds(size: int, args: argparse.Namespace) -> int:
    """Rounds for 64 answers in all, at most 16 and at least ``--rounds``; exactly ``--rounds`` with ``--quick``."""
    return args.rounds if args.quick else max(args.rounds, min(MOST_ROUNDS, -(-ANSWERS // size)))


def make_methods(loaded: LoadedModel, config: EngineConfig, args: argparse.Namespace) -> dict[str, Engine]:
    spec = SpeculativeConfig(args.draft, args.max_length, args.draft_model, policy="fixed")
    methods = {}
    for length in args.lengths:
        methods[f"fixed {length}"] = build_engine(loaded, config, replace(spec, num_draft_tokens=length))
    for policy in args.policies:
        methods[policy] = build_engine(loaded, config, replace(spec, policy=policy))
    return methods


def summarise(rounds: list[dict[str, Window]], args: argparse.Namespace) -> dict:
    """Median rates, and per policy the medians of its ratios within a round."""
    rates = {name: median(r[name].tokens_per_second for r in rounds) for name in rounds[0]}
    fixed = [name for name in rates if name.startswith("fixed")]
    vs_plain = {name: median(r[name].tokens_per_second / rate_of_plain(r) for r in rounds) for name in rates}
    best = max(fixed, key=vs_plain.__getitem__)
    summary = {
        "tokens_per_second": rates, "vs_plain": vs_plain, "best_fixed": int(best.split()[1]),
        "best_fixed_vs_plain": vs_plain[best], "policies": {},
    }  # fmt: skip
    for policy in args.policies:
        summary["policies"][policy] = {
            "vs_plain": vs_plain[policy],
            "vs_best_fixed": median(r[policy].tokens_per_second / r[best].tokens_per_second for r in rounds),
            "draft_length": median(r[policy].draft_length for r in rounds),
        }
    if args.temperature == 0:
        plain = [r["fixed 0"] for r in rounds]
        summary["same_text"] = all(
            same_as_far_as_both_go(w, p) for r, p in zip(rounds, plain, strict=True) for w in r.values()
        )
    return summary


def rate_of_plain(windows: dict[str, Window]) -> float:
    return windows["fixed 0"].tokens_per_second


def report(results: dict[str, dict], args: argparse.Namespace) -> None:
    first = args.policies[0]
    lengths = [f"fixed {length}" for length in args.lengths]
    header = ["batch", *lengths, *args.policies, f"{first} / plain", f"{first} / best fixed", "drafts", "best fixed"]
    body = []
    for size, r in results.items():
        own = r["policies"][first]
        rates = [r["tokens_per_second"][name] for name in (*lengths, *args.policies)]
        body.append([size, *rates, own["vs_plain"], own["vs_best_fixed"], own["draft_length"], r["best_fixed"]])
    show(f"tokens/s, {args.model}, {args.dtype}, {args.draft}, {args.max_tokens} tokens", header, body)
    if args.plot:
        draw(chart(results, args), args.plot)
    worst = {
        policy: {
            key: min(r["policies"][policy][key] for r in results.values()) for key in ("vs_plain", "vs_best_fixed")
        }
        for policy in args.policies
    }
    finish({
        "model": args.model, "dtype": args.dtype, "draft": args.draft, "threads": args.threads, "batch": results,
        "worst": worst,
        "never_slower": worst[first]["vs_plain"] >= 1 - SLOWER,
        "near_best": worst[first]["vs_best_fixed"] >= 1 - OFF_BEST,
    })  # fmt: skip


def chart(results: dict[str, dict], args: argparse.Namespace) -> Chart:
    """Speed against plain decoding by batch size, one line per method."""
    sizes = [int(size) for size in results]

    def line(name: str) -> Series:
        return Series(name, sizes, [r["vs_plain"][name] for r in results.values()])

    names = [f"fixed {length}" for length in args.lengths if length] + args.policies
    title = f"{args.model}, {args.draft}: speed against plain decoding"
    return Chart(title, "requests at once", "times plain", tuple(map(line, names)), True, doubling=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, help="a .jsonl file; a few of its own without one")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--draft", default="ngram", help="drafter")
    parser.add_argument("--draft-model", help="for the drafter draft_model")
    parser.add_argument("--policies", nargs="+", default=["goodput"], help="the first one is judged")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(range(9)), help="fixed lengths; must include 0")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], help="requests at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--max-prompt", type=int, default=256, help="tokens a prompt is cut to")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32", "int8", "w8a8", "gguf"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--profile", default="auto", help="auto, none, or a file of `paceline tune`")
    parser.add_argument("--cache-bytes", type=int, default=1 << 31, help="room for keys and values of each engine")
    parser.add_argument("--plot", type=Path, help="draw ratios here (.png, .svg or .pdf)")
    parser.add_argument("--quick", action="store_true", help="few sizes, lengths and tokens: a minute or two")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    args = parser.parse_args()
    if args.quick:
        args.batch, args.lengths, args.rounds, args.max_tokens = [1, 4, 16], [0, 2, 4, 8], 1, 32
    if 0 not in args.lengths:
        parser.error("--lengths must include 0, plain decoding, which the others are compared with")
    args.max_length = max(args.lengths)
    return args


if __name__ == "__main__":
    main()
