"""Tokens per pass of lookup drafters on recorded greedy answers that are in no memory, without running a model.

    python benchmarks/lookups.py --answers conversations/ --memory memory.safetensors --limit 60
    python benchmarks/lookups.py --answers conversations/ --budget 4 --past

Answers are those that `paceline train memory` keeps out (one in forty, by their prompt). `--past` lets every drafter
remember the answers it has seen. CPU time is of `propose` alone, in one thread.
"""

import argparse
import time
from pathlib import Path

from common import finish, show

from paceline.drafters.lookup.blended import Blended
from paceline.drafters.lookup.memory import read_memory
from paceline.drafters.registry import make_drafter
from paceline.speculation.outcome import RequestOutcome
from paceline.training.conversation_files import read_all
from paceline.training.replay_lookups import replay_lookups


class Timed:
    """A drafter whose proposals are timed, and which may be told of finished answers."""

    def __init__(self, drafter, remembers: bool) -> None:
        self.drafter, self.remembers, self.seconds = drafter, remembers, 0.0

    def propose(self, contexts):
        started = time.process_time()
        trees = self.drafter.propose(contexts)
        self.seconds += time.process_time() - started
        self._ids = contexts[0].token_ids
        return trees

    def release(self, request_id):
        if self.remembers:
            self.drafter.observe(RequestOutcome(request_id, self._ids, finished=True))
        self.drafter.release(request_id)


def main() -> None:
    args = parse()
    held_out = [one for one in read_all(args.answers) if one.is_held_out and one.temperature == 0][: args.limit]
    past = 32_768 if args.past else 0
    arms = {
        "ngram": make_drafter("ngram"),
        "published": make_drafter("suffix", scoring="published", max_cached_tokens=past),
        "blended path": Blended(mode="path", max_cached_tokens=past),
        "blended tree": Blended(max_cached_tokens=past),
    }
    for path in args.memory:
        memory = read_memory(path)
        size = f"{memory.info.num_tokens / 1e6:.1f} M tokens, {memory.num_bytes / 1e6:.1f} MB"
        arms[f"path, memory of {size}"] = Blended(memory, "path", max_cached_tokens=past)
        arms[f"tree, memory of {size}"] = Blended(memory, max_cached_tokens=past)
    records = {name: measured(drafter, held_out, args) for name, drafter in arms.items()}
    rows = [[name, *(f"{value:.2f}" for value in record.values())] for name, record in records.items()]
    title = f"{len(held_out)} answers, {sum(len(one.answer) for one in held_out)} tokens, drafts of {args.budget}"
    show(title, ["lookups", "tokens per pass", "drafted per pass", "microseconds per proposal"], rows)
    finish({"answers": len(held_out), "lookups": records})


def measured(drafter, held_out, args: argparse.Namespace) -> dict[str, float]:
    """Tokens per pass, drafted tokens per pass and microseconds per proposal of a drafter, over all answers."""
    timed = Timed(drafter, args.past)
    report = replay_lookups(timed, held_out, args.budget)
    microseconds = timed.seconds / max(1, report.passes) * 1e6
    return {"tokens_per_pass": report.tokens_per_pass, "drafted_per_pass": report.drafted_per_pass, "us": microseconds}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=Path, nargs="+", required=True, help=".npz files or folders (docs/memory.md)")
    parser.add_argument("--memory", type=Path, nargs="*", default=[], help="files of paceline train memory")
    parser.add_argument("--limit", type=int, help="most answers")
    parser.add_argument("--budget", type=int, default=8, help="most drafted tokens per pass")
    parser.add_argument("--past", action="store_true", help="remember earlier answers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
