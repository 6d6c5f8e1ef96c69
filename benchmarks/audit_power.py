"""Measures how many drafted tokens `paceline audit` needs to find each planted fault, and its false alarms.

Faults are those of the tests, on random laws that share about two thirds of their mass. No model is run, so the results
do not depend on the machine. With ``--real`` a model answers through the whole engine with a sampling drafter, the
fault replaces the verification rule, and the audit's law check reads the answers; time is reported too. With ``--keep``
each fault is appended to a file, and the same command continues from it.

    python benchmarks/audit_power.py --runs 5 --exact 1000 --json
    python benchmarks/audit_power.py --real smollm2-135m --keep faults.jsonl

The last line of standard output is one JSON object.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from math import log
from pathlib import Path
from unittest.mock import patch

import numpy as np
from common import console, finish, show
from rich.progress import track

from paceline import LLM, SamplingParams
from paceline.evaluation.audit.betting import Bets
from paceline.evaluation.audit.law import answers_without_end, bet
from paceline.evaluation.prompts import load_prompts
from paceline.sampling import ROOT, RULES, Rule, TokenTree, Verdict

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.evaluation.audit.faults import FAULTS, exact
from tests.evaluation.audit.test_betting import stream

Fault = Callable[[np.random.Generator, np.ndarray, np.ndarray], int]
"""Maps (random generator, target's and draft's probabilities over the same tokens) to the index of the output token."""
PLANTED = "planted"


def main() -> None:
    args = parse()
    if args.real:
        finish(on_a_model(args))
        return
    found = {name: runs_of(fault, args) for name, fault in track(FAULTS.items(), "faults", console=console)}
    alarms = [peak_of(seed, args.exact_tokens) for seed in track(range(args.exact), "exact texts", console=console)]
    rows = [[name, *summary(runs)] for name, runs in found.items()]
    show(f"drafted tokens until found at p < {args.alpha:g}", ["fault", "median", "worst", "found"], rows)
    false = sum(peak >= -log(args.alpha) for peak in alarms)
    console.print(f"{false} of {args.exact} exact texts accused; largest wealth {np.exp(max(alarms, default=0)):.1f}")
    finish(
        {"faults": found, "exact": args.exact, "false_alarms": false, "largest_log_wealth": max(alarms, default=0.0)}
    )


def on_a_model(args: argparse.Namespace) -> dict:
    """Run every fault in place of the verification rule, each until it is found or its time is up."""
    done = [json.loads(line) for line in args.keep.read_text().splitlines()] if args.keep and args.keep.exists() else []
    plain = LLM(args.real, speculative=None, num_threads=args.threads)
    prompts = [plain.user_prompt(prompt.text, raw=False) for prompt in load_prompts("builtin")]
    for name, fault in reversed(FAULTS.items()):  # the hardest come last
        if name in {one["fault"] for one in done}:
            continue
        done.append({"fault": name} | found_in(plain, prompts, fault, args))
        console.print(done[-1])
        if args.keep:
            with args.keep.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
    rows = [[one["fault"], one["found"], one["drafted"], one["tokens"], one["seconds"], one["likeliest_cause"]]
            for one in done]  # fmt: skip
    header = ["fault", "found", "drafted tokens", "tokens", "seconds", "likeliest cause"]
    show(f"{args.real}, {args.draft}, p < {args.alpha:g}", header, rows)
    return {"model": args.real, "faults": done, "found": sum(one["found"] for one in done)}


def found_in(plain: LLM, prompts: list[list[int]], fault: Fault, args: argparse.Namespace) -> dict:
    """Result and cost of the law check on answers in which `fault` replaces the verification rule."""
    spec = {"method": args.draft, "num_draft_tokens": 2, "policy": "fixed", "rule": PLANTED}

    def clock() -> float:
        return time.process_time() / args.threads  # a busy machine must not make a fault look hard to find

    with patch.dict(RULES, {PLANTED: Rule(planted(fault, np.random.default_rng(0)))}):
        llm = plain.drafting_with(spec)
        began, wall = clock(), time.monotonic()
        batches = answers_without_end(llm, prompts, SamplingParams(temperature=1.0, max_tokens=64))
        bets = bet(batches, Bets(), log(args.alpha), began + args.seconds, clock=clock)
    return {
        "found": bets.peak >= -log(args.alpha), "drafted": bets.num_drafted, "tokens": bets.num_tokens,
        "seconds": clock() - began, "wall_seconds": time.monotonic() - wall,
        "p": bets.p_value, "likeliest_cause": bets.favourite,
    }  # fmt: skip


def planted(fault: Fault, rng: np.random.Generator) -> Callable[..., Verdict]:
    """A verification rule that draws every token by `fault` where something was drafted."""

    def verify_planted(tree: TokenTree, target, randomness, position: int) -> Verdict:
        path: list[int] = []
        node = ROOT
        while children := tree.children(node):
            p, q = target(node), tree.draft_law(children[0])
            is_alike = np.array_equal(p.tokens, q.tokens)
            either = p.tokens if is_alike else np.union1d(p.tokens, q.tokens)
            laws = (p.probs, q.probs) if is_alike else (p.on(either), q.on(either))
            with np.errstate(divide="ignore", over="ignore"):
                token = int(either[fault(rng, *laws)])
            same = [child for child in children if tree.tokens[child] == token]
            if not same:
                return Verdict(tuple(path), token, "recovered", 1)
            node = same[0]
            path.append(node)
        token = randomness.draw(target(node), position + len(path), "target", ROOT)
        return Verdict(tuple(path), token, "bonus" if path else "target", 0)

    return verify_planted


def runs_of(fault, args: argparse.Namespace) -> list[int | None]:
    return [until_found(fault, seed, args.most, args.alpha) for seed in range(args.runs)]


def until_found(fault, seed: int, most: int, alpha: float) -> int | None:
    """Drafted tokens until the bets find the fault at level `alpha`; None when `most` tokens are not enough."""
    bets = Bets()
    for p, q, token in stream(fault, seed, most):
        bets.feed(p, q, token)
        if bets.peak >= -log(alpha):
            return bets.num_drafted
    return None


def peak_of(seed: int, count: int) -> float:
    """Largest log wealth against an exact text."""
    bets = Bets()
    for p, q, token in stream(exact, 10_000 + seed, count):
        bets.feed(p, q, token)
    return bets.peak


def summary(runs: list[int | None]) -> list[object]:
    known = [run for run in runs if run is not None]
    return [statistics.median(known) if known else "-", max(known, default="-"), f"{len(known)}/{len(runs)}"]  # type: ignore[type-var]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="of each fault")
    parser.add_argument("--most", type=int, default=60_000, help="tokens after which a fault counts as missed")
    parser.add_argument("--exact", type=int, default=100, help="exact texts")
    parser.add_argument("--exact-tokens", type=int, default=300, help="of each")
    parser.add_argument("--alpha", type=float, default=1e-6)
    parser.add_argument("--real", metavar="MODEL", help="faults in the engine of this model, in place of random laws")
    parser.add_argument("--draft", default="head", help="of --real: a drafter that draws")
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="of --real: of all threads, until a fault is missed"
    )
    parser.add_argument("--threads", type=int, default=2, help="of --real")
    parser.add_argument("--keep", type=Path, help="of --real: a file with a line per fault")
    parser.add_argument("--json", action="store_true", help="accepted for symmetry: the last line is always JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
