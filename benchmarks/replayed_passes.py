"""Compares the passes of a replay with those of a real run, and measures the time of replays.

Every prompt is answered with each drafter at its full length, and the answers are replayed. Greedy drafts must take
exactly the passes of the run. For sampled answers without a seed the replay gives expected passes given the text; their
sum is compared with the run's, with the standard deviation of the random acceptances.

    python benchmarks/replayed_passes.py --drafts ngram,suffix,head
    python benchmarks/replayed_passes.py --drafts head --temperature 1 --rounds 10
    python benchmarks/replayed_passes.py --recorded conversations/ --limit 1000 --max-tokens 200

With ``--recorded`` no model is run: answers of as many tokens are replayed through `ngram` and `suffix`, one after the
other as in a log, and timed. The last line of standard output is one JSON object.
"""

import argparse
import time
from math import sqrt
from pathlib import Path

import numpy as np
from common import console, finish, show
from rich.progress import track

from paceline import LLM, RequestOutput, SamplingParams
from paceline.config import EngineConfig
from paceline.drafters.registry import make_drafter
from paceline.evaluation.advise.candidates import Wanted, profile_of, replayed, wanted_of
from paceline.evaluation.advise.replay import Text
from paceline.evaluation.advise.walk import replay_lookup
from paceline.evaluation.prompts import load_prompts
from paceline.training.conversation_files import read_all

LOOKUPS = ("ngram", "suffix")


def main() -> None:
    args = parse()
    if args.recorded:
        finish({"lookups": {name: timed(name, args) for name in LOOKUPS}})
        return
    llm = LLM(args.model, speculative=None, dtype=args.dtype, num_threads=args.threads)
    prompts = [llm.user_prompt(each.text, raw=False) for each in load_prompts(args.prompts, (), args.per_family)]
    found = {
        f"{one.draft} k={one.k}": compared(llm, one, prompts, args)
        for one in wanted_of(args.drafts, args.lengths)
    }  # fmt: skip
    header = ["drafter", "answers", "passes", "replayed", "off by", "error of the run", "answers with other passes"]
    rows = [[label, *(f"{value:.2%}" if name in ("off", "error") else value for name, value in one.items())]
            for label, one in found.items()]  # fmt: skip
    show(f"{args.model}, temperature {args.temperature:g}", header, rows)
    finish({"model": args.model, "temperature": args.temperature, "drafters": found})


def compared(llm: LLM, one: Wanted, prompts: list[list[int]], args: argparse.Namespace) -> dict[str, float]:
    """Passes of the real run and of the replay of its answers."""
    params = SamplingParams(temperature=args.temperature, max_tokens=args.max_tokens)
    drafting = llm.drafting_with(one.spec)
    outputs: list[RequestOutput] = []
    for prompt in track(args.rounds * prompts, f"{one.draft} k={one.k}", console=console):
        outputs += drafting.generate([prompt], params)  # one by one: lookups remember in the order of a log
    texts = [text_of(output, args.max_tokens) for output in outputs]
    config = EngineConfig(dtype=llm.dtype, num_threads=args.threads)
    [candidate] = replayed(llm, [one], texts, params, config, profile_of(llm.loaded, config, lambda *_: None))
    real = np.array([output.stats.num_target_passes for output in outputs])
    expected = np.array([rounds.count for rounds in candidate.rounds])
    return {
        "answers": len(texts), "passes": int(real.sum()), "replayed": float(expected.sum()),
        "off": float(expected.sum() / real.sum() - 1),
        "error": float((expected - real).std() * sqrt(len(real)) / real.sum()),
        "different": int((np.abs(expected - real) > 1e-6).sum()),
    }  # fmt: skip


def text_of(output: RequestOutput, max_tokens: int) -> Text:
    """A logged answer."""
    return Text(tuple(output.prompt_token_ids), tuple(output.token_ids), len(output.token_ids) >= max_tokens)


def timed(name: str, args: argparse.Namespace) -> dict[str, float]:
    """Processor seconds of one lookup's replay through recorded answers."""
    texts = [
        Text(tuple(one.ids[: one.num_prompt].tolist()), tuple(one.answer[: args.max_tokens].tolist()))
        for one in read_all([args.recorded])
        if len(one.answer) >= args.max_tokens
    ][: args.limit]
    drafter, began = make_drafter(name), time.process_time()
    rounds = replay_lookup(drafter, texts, args.lengths[0])
    seconds = time.process_time() - began
    per_pass = sum(each.tokens for each in rounds) / sum(each.count for each in rounds)
    console.print(f"{name}: {len(texts)} answers x {args.max_tokens} tokens in {seconds:.1f} s, {per_pass:.3f} a pass")
    return {"answers": len(texts), "seconds": seconds, "tokens_per_pass": per_pass}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--drafts", type=lambda text: text.split(","), default=list(LOOKUPS))
    parser.add_argument("-k", "--lengths", type=lambda text: [int(each) for each in text.split(",")], default=[4])
    parser.add_argument("--prompts", default="builtin", help="as for paceline bench")
    parser.add_argument("--per-family", type=int, help="most prompts of each kind")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=1, help="times that every prompt is answered")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--recorded", type=Path, help="answers to replay through lookups, no model (docs/memory.md)")
    parser.add_argument("--limit", type=int, default=1000, help="of --recorded: answers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
