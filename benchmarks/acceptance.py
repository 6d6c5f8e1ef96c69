"""Tokens per pass of drafters over many prompts decoded together: counts with standard errors, not times.

At temperature 1 two drafters lead to different texts, and with a few dozen passes tokens per pass vary by a tenth. Here
all prompts are decoded in one batch, so thousands of passes take minutes. For speed use `paceline bench`.

    python benchmarks/acceptance.py --prompts spec-bench:spec_bench.jsonl --families math_reasoning,qa --per-family 16 \
        -m big.gguf --drafts draft_model:small.gguf -k 4 \
        --spec 'tree={"method":"draft_model","model":"small.gguf","num_draft_tokens":8,"options":{"tree":"dynamic"}}'

Prompts, drafters and configurations are written as for `paceline bench`.

The last line of standard output is one JSON object.
"""

import argparse
from collections.abc import Sequence
from math import sqrt
from pathlib import Path

from common import console, finish, show

from paceline import LLM, SamplingParams
from paceline.evaluation.bench.own_arms import specs_of
from paceline.evaluation.prompts import load_prompts
from paceline.theory.acceptance import estimate_acceptance_rate
from paceline.types import RequestStats

HEADER = ["way of drafting", "passes", "tokens/pass", "+-", "acceptance"]


def main() -> None:
    args = parse()
    memory = int(args.kv_cache_memory * 2**30)
    model = LLM(args.model, speculative=None, dtype=args.dtype, num_threads=args.threads, kv_cache_memory_bytes=memory)
    asked = load_prompts(args.prompts, args.families, args.per_family)
    prompts = [model.user_prompt(prompt.text, args.raw) for prompt in asked]
    params = [
        SamplingParams(temperature=args.temperature, seed=args.seed + number, max_tokens=args.max_tokens)
        for number in range(len(prompts))
    ]
    found = {}
    shared = {"rule": args.rule, "policy": args.policy}
    for label, config in specs_of(args.drafts, args.num_draft_tokens, args.spec, **shared).items():
        console.print(f"{label}: {len(prompts)} prompts, {args.max_tokens} tokens each")
        llm = model.drafting_with(config)
        found[label] = summary([output.outputs[0].stats for output in llm.generate(prompts, params, progress=True)])
    rows = [[label, s["passes"], s["tokens_per_pass"], s["error"], s["acceptance_rate"]] for label, s in found.items()]
    show(f"{Path(args.model).name}, {args.dtype}, temperature {args.temperature:g}", HEADER, rows)
    finish({"drafters": found})


def summary(stats: Sequence[RequestStats]) -> dict:
    """Sums over requests; the error is the standard error of the ratio, with requests taken as independent."""
    passes = [one.num_target_passes for one in stats]
    tokens = [sum((i + 1) * count for i, count in enumerate(one.accepted_per_pass)) for one in stats]
    ratio = sum(tokens) / sum(passes)
    spread = sum((t - ratio * p) ** 2 for t, p in zip(tokens, passes, strict=True))
    accepted, rejected = sum(one.num_accepted_tokens for one in stats), sum(one.num_rejected_tokens for one in stats)
    return {
        "passes": sum(passes),
        "tokens_per_pass": ratio,
        "error": sqrt(spread) / sum(passes),
        "acceptance_rate": estimate_acceptance_rate(accepted, rejected),
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", default="builtin", help="as for paceline bench")
    parser.add_argument("--families", type=names, default=[], help="a,b,c of them; default all there are")
    parser.add_argument("--per-family", type=int, default=16, help="prompts per family")
    parser.add_argument("--drafts", type=names, default=[], help="a,b,c; NAME:MODEL lends a draft model")
    parser.add_argument("--spec", action="append", default=[], help='LABEL={"method": ...}, a drafter with options')
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("-k", "--num-draft-tokens", type=lengths, default=[], help="2,4: default each method's own")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--raw", action="store_true", help="no chat template")
    parser.add_argument("--rule", default="p/q")
    parser.add_argument("--policy", default="fixed", help="how long drafts are")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-cache-memory", type=float, default=1.0, help="GiB for keys and values")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def lengths(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]


if __name__ == "__main__":
    main()
