"""Checks that every drafter gives the tokens of plain decoding, on every prompt of a file.

All prompts of a method run together, so prefill chunks, decodes and draft trees of many requests share passes; plain
decoding runs one request at a time, undrafted. Greedy by default; with ``--temperature`` use ``--rule coupled``, whose
sampled text is that of plain sampling with the same seed.

    python benchmarks/same_text.py --prompts prompts.jsonl --drafts ngram suffix
    python benchmarks/same_text.py --prompts prompts.jsonl --temperature 0.8 --top-p 0.95

Exits with 1 when a text differs. The last line of standard output is one JSON object.
"""

import argparse
import sys
import time
from pathlib import Path

from common import console, finish, read_prompts, show
from rich.progress import track

from paceline import LLM, RequestOutput, SamplingParams


def main() -> None:
    args = parse()
    prompts = read_prompts(args.prompts)[: args.limit]
    base = LLM(args.model, speculative=None, dtype=args.dtype, num_threads=args.threads, max_num_seqs=args.max_num_seqs)
    ids = [base.chat_prompt([{"role": "user", "content": prompt["text"]}]) for prompt in prompts]
    params = [
        SamplingParams(temperature=args.temperature, top_p=args.top_p, seed=args.seed + i, max_tokens=args.max_tokens)
        for i in range(len(ids))
    ]
    one_by_one = base.drafting_with({"method": "plain", "num_draft_tokens": 0, "rule": args.rule})
    drafting = {name: with_drafter(name, base, args) for name in args.drafts}  # a wrong name fails before the long part
    plain = plain_outputs(one_by_one, ids, params, args.batch_plain)
    results = {name: compare(name, llm, ids, params, plain) for name, llm in drafting.items()}
    rows = [
        [n, f"{r['identical']}/{r['prompts']}", r["tokens"], r["acceptance_length"], r["seconds"]]
        for n, r in results.items()
    ]
    header = ["method", "same text", "tokens", "tokens/pass", "seconds"]
    show(f"{args.model}, {args.dtype}, temperature {args.temperature}, rule {args.rule}", header, rows)
    finish(
        {
            "model": args.model,
            "dtype": args.dtype,
            "temperature": args.temperature,
            "rule": args.rule,
            "methods": results,
        }
    )
    sys.exit(any(r["identical"] < r["prompts"] for r in results.values()))


def plain_outputs(
    llm: LLM, ids: list[list[int]], params: list[SamplingParams], in_one_batch: bool
) -> list[RequestOutput]:
    """Outputs of plain decoding, one request at a time unless `in_one_batch`."""
    if in_one_batch:
        return llm.generate(ids, params, progress=True)
    pairs = list(zip(ids, params, strict=True))
    return [llm.generate(prompt, own)[0] for prompt, own in track(pairs, "plain, one by one", console=console)]


def with_drafter(name: str, base: LLM, args: argparse.Namespace) -> LLM:
    """`base` with the drafter of that name."""
    spec = {"method": name, "num_draft_tokens": args.num_draft_tokens, "rule": args.rule, "policy": args.policy}
    return base.drafting_with(spec | ({"model": args.draft_model or args.model} if name == "draft_model" else {}))


def compare(
    name: str, llm: LLM, ids: list[list[int]], params: list[SamplingParams], plain: list[RequestOutput]
) -> dict:
    """All prompts through one drafter, in one batch."""
    console.print(f"{name}, {len(ids)} requests together")
    started = time.perf_counter()
    outputs = llm.generate(ids, params)
    seconds = time.perf_counter() - started
    differing = [i for i, (a, b) in enumerate(zip(outputs, plain, strict=True)) if a.token_ids != b.token_ids]
    console.print(f"{name}: {len(ids) - len(differing)} of {len(ids)} texts are the same, {seconds:.0f} s")
    for i in differing[:5]:
        console.print(f"prompt {i} differs:\n  plain   {plain[i].text!r}\n  drafted {outputs[i].text!r}")
    lengths = [o.stats.acceptance_length for o in outputs if o.stats.acceptance_length]
    return {
        "prompts": len(ids),
        "identical": len(ids) - len(differing),
        "tokens": sum(len(o.token_ids) for o in outputs),
        "drafted_tokens_accepted": sum(o.stats.num_accepted_tokens for o in outputs),
        "acceptance_length": sum(lengths) / len(lengths) if lengths else None,
        "seconds": seconds,
        "differing": differing,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="a .jsonl file")
    parser.add_argument("--limit", type=int, help="most prompts")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--drafts", nargs="*", default=["ngram", "suffix"])
    parser.add_argument("--draft-model", help="for the drafter draft_model; default: the model itself")
    parser.add_argument("--num-draft-tokens", type=int, default=8)
    parser.add_argument("--rule", default="auto")
    parser.add_argument("--policy", default="fixed")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-num-seqs", type=int, default=16, help="requests in flight together")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-plain", action="store_true", help="plain decoding in one batch too: faster")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
