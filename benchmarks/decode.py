"""Tokens per second of this engine and of other engines, on the same token ids of a file of prompts.

For engines that run as libraries on the same weights. To compare drafters or servers use `paceline bench`.

Every prompt is decoded by every method before the next prompt begins, in an order that rotates from prompt to prompt,
so that a machine that slows down slows all of them alike; speed-ups are ratios of decoding rates on the same prompt.
Texts are compared with plain decoding's, token for token. A peer (``--peer``) decodes the same prompts with the same
number of new tokens on the same threads in the same rotation, when it is installed.

    python benchmarks/decode.py --prompts prompts.jsonl --drafts ngram suffix
    python benchmarks/decode.py --prompts prompts.jsonl --limit 3 --max-tokens 128 --ignore-eos --peer transformers
    python benchmarks/decode.py --prompts prompts.jsonl --temperature 0.8 --top-p 0.95 --rule coupled --json

A line of the prompts file is {"prompt": ...} or {"turns": [...], "category": ...}; with a "suffix" (`gaps.py` writes
such) a model of code fills the gap before it. The last line of standard output is
one JSON object. Rates count from the first token; time to first token is reported apart.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

from common import console, figures, finish, median, prompt_ids, read_prompts, rotated, show, summarise
from peers import PEERS, Peer, make_peer
from rich.progress import track

from paceline import LLM, SamplingParams
from paceline.evaluation.report import Run, run_once

_WITH_A_MODEL = ("draft_model", "hybrid")


def main() -> None:
    args = parse()
    prompts = read_prompts(args.prompts)[args.first :: args.every][: args.limit]
    llms = methods(args)
    peers = [make_peer(name, args, PEERS) for name in args.peer]
    records = []
    for number, prompt in enumerate(track(prompts, "decoding", console=console)):
        records.append(measure(number, prompt, llms, peers, args))
        if args.save:
            with args.save.open("a") as file:
                file.write(json.dumps(records[-1]) + "\n")
    report(records, list(llms), args)


def methods(args: argparse.Namespace) -> dict[str, LLM]:
    """Plain decoding and one LLM per drafter, all on the same loaded weights."""
    plain = LLM(
        args.model,
        speculative=None,
        dtype=args.dtype,
        num_threads=args.threads,
        max_num_batched_tokens=args.batched_tokens,
    )
    llms = {"plain": plain.drafting_with({"method": "plain", "num_draft_tokens": 0, "rule": args.rule})}
    for name in args.drafts:
        spec = {"method": name, "num_draft_tokens": args.num_draft_tokens, "rule": args.rule, "policy": args.policy}
        llms[name] = plain.drafting_with(
            spec | ({"model": args.draft_model} if name in _WITH_A_MODEL and args.draft_model else {})
        )
    return llms


def measure(number: int, prompt: dict, llms: dict[str, LLM], peers: list[Peer], args: argparse.Namespace) -> dict:
    """One prompt through every method and peer."""
    params = SamplingParams(
        temperature=args.temperature, top_p=args.top_p, seed=args.seed, max_tokens=args.max_tokens,
        ignore_eos=args.ignore_eos,
    )  # fmt: skip
    gap = {"prompt": prompt["text"], "suffix": prompt["suffix"]}
    if prompt["suffix"]:
        ids, params = llms["plain"].token_ids_of(gap), llms["plain"].params_for(gap, params)
    else:
        ids = prompt_ids(llms["plain"], prompt["text"], args.raw)
    runs: dict[str, Run] = {}
    record = {"category": prompt["category"], "prompt_tokens": len(ids), "methods": {}, "peers": {}}
    for method in rotated([*llms, *peers], number):
        if isinstance(method, str):
            runs[method] = run_once(llms[method], ids, params)
        else:
            record["peers"][method.name] = method.run(ids, params)
    for name, run in runs.items():
        record["methods"][name] = figures(run, runs["plain"])
    return record


def report(records: list[dict], names: list[str], args: argparse.Namespace) -> None:
    """Tables per method and per category, then the JSON line."""
    summary = {name: summarise([r["methods"][name] for r in records]) for name in names}
    header = ["method", "tok/s", "speed-up", "tokens/pass", "acceptance", "same text", "first token (s)"]
    rows = [
        [n, s["tokens_per_second"], s["speedup"], s["acceptance_length"], s["acceptance_rate"] or "-",
         f"{s['identical']}/{s['prompts']}", s["first_token_seconds"]]
        for n, s in summary.items()
    ]  # fmt: skip
    peers = {name: [r["peers"][name] for r in records] for name in args.peer}
    peer_summary = {
        name: {key: median(r[key] for r in runs) for key in ("tokens_per_second", "first_token_seconds")}
        for name, runs in peers.items()
    }
    rows += [[n, s["tokens_per_second"], "-", "-", "-", "-", s["first_token_seconds"]] for n, s in peer_summary.items()]
    show(f"{args.model}, {args.dtype}, temperature {args.temperature}, {len(records)} prompts", header, rows)
    by_category: dict[str, list[dict]] = defaultdict(list)
    for record in records:
        by_category[record["category"]].append(record)
    categories = {
        c: {n: summarise([r["methods"][n] for r in rs]) for n in names} for c, rs in sorted(by_category.items())
    }
    drafted = [n for n in names if n != "plain"]
    body = [
        [c, *(s[n]["speedup"] for n in drafted), *(s[n]["acceptance_length"] for n in drafted)]
        for c, s in categories.items()
    ]
    show("by category", ["category", *(f"{n} speed-up" for n in drafted), *(f"{n} tokens/pass" for n in drafted)], body)
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    finish({"settings": settings, "methods": summary, "categories": categories, "peers": peer_summary})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="a .jsonl file")
    parser.add_argument("--first", type=int, default=0, help="first prompt of the file to take")
    parser.add_argument("--every", type=int, default=1, help="take every n-th prompt")
    parser.add_argument("--limit", type=int, help="most prompts")
    parser.add_argument("--raw", action="store_true", help="no chat template")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafts", nargs="*", default=["ngram", "suffix"])
    parser.add_argument("--draft-model", help="for draft_model and hybrid, and the peer llama-cpp-draft")
    parser.add_argument("--num-draft-tokens", type=int, help="most drafted tokens per pass; default: each method's own")
    parser.add_argument("--rule", default="auto")
    parser.add_argument("--policy", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batched-tokens", type=int, default=512, help="most rows of a pass (prefill chunk)")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--ignore-eos", action="store_true")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peer", nargs="*", default=[], choices=sorted(PEERS), help="run peers beside")
    parser.add_argument("--save", type=Path, help="append a JSON line per prompt here, so that nothing is lost")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
