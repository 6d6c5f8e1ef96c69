"""Evaluates draft lengths without noise: the production engine decodes recorded answers on a virtual clock.

`record` stores a target's answers and a draft model's laws along them. `replay` lets the engine decode them again with
real drafters, policies, rules and scheduler. Only the two models are replaced: they return what was recorded, and
advance the clock by a fixed table. Results are deterministic, so two versions of the program can be compared within a
per cent.

    python benchmarks/draft_replay.py record --prompts spec_bench.jsonl
    python benchmarks/draft_replay.py record --prompts spec_bench.jsonl -m target.gguf --draft-model draft.gguf \\
        --dtype w8a8 --per-family 3
    python benchmarks/draft_replay.py replay --json > today.json
    python benchmarks/draft_replay.py replay --against today.json

The answers of a family are decoded `--at-once` at a time, then those of the next family. The target has read the
prompts before, as with a warm prefix cache; a draft model has not. Speed is the tokens after an answer's first over
their virtual seconds; speed-up is over plain decoding of the same answers, as many at once. An engine uses in one
family what it learned in earlier ones, so each of `--runs` begins with another family and has another seed. `--against`
ends with exit code 1 when a family's speed-up has fallen by more than 1 %. Recordings are in the cache folder. With
``--json`` the last line of standard output is one JSON object.

Two things are not measured. Proposing and scheduling take no virtual time, only models do. And a sampled target always
follows the recorded text, so a token drawn from a draft law q is accepted with q's probability of the recorded token.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import console, finish, rotated, show
from draft_recordings import Answer, Recording, read_recording, record
from replayed_engine import Costs, PassTable, Replay, VirtualClock

from paceline import SamplingParams
from paceline.engine.loop.engine import Engine
from paceline.models.cache_dir import cache_dir
from paceline.types import RequestOutput

TOLERANCE = 0.01
"""Share by which a speed-up may fall."""
LOOKUPS: dict[str, dict[str, Any]] = {"ngram": {"method": "ngram"}, "suffix": {"method": "suffix"}}
WITH_DRAFT: dict[str, dict[str, Any]] = {
    "hybrid": {"method": "hybrid", "model": "draft"},
    "draft_model": {"method": "draft_model", "model": "draft"},
}
KEY = ("recording", "temperature", "at_once", "drafter", "family")
HEADER = ["recording", "temp.", "at once", "drafter", "family", "tokens", "per second", "per pass", "speed-up"]

SMALL = PassTable(
    {
        128: {1: 11.7, 2: 12.4, 4: 13.8, 8: 17.6, 16: 28.9, 64: 103.3, 512: 640.0},
        700: {1: 13.9, 2: 14.9, 4: 18.0, 8: 24.2, 16: 41.0, 64: 141.3, 512: 900.0},
    }
)
"""The default model in bfloat16 on two cores: docs/measurements.md, cost curve; 512 rows from its prompts."""
TARGET_1500M = PassTable(
    {
        128: {1: 85.0, 2: 89.0, 4: 101.0, 8: 126.0, 16: 175.0, 64: 460.0, 512: 3100.0},
        700: {1: 89.0, 2: 94.0, 4: 109.0, 8: 142.0, 16: 205.0, 64: 560.0, 512: 3700.0},
    }
)
"""An estimate for 1.5 billion weights in w8a8: reading them at 20 GB/s, 7 % more per row, and more in long contexts."""
DRAFT_500M = PassTable(
    {
        128: {1: 28.0, 2: 29.5, 4: 33.5, 8: 42.0, 16: 58.0, 64: 152.0, 512: 1020.0},
        700: {1: 30.0, 2: 32.0, 4: 37.0, 8: 48.0, 16: 70.0, 64: 190.0, 512: 1250.0},
    }
)
"""The same estimate for half a billion weights."""

COSTS = {"smollm2-135m": Costs(SMALL, SMALL), "qwen2.5-coder-1.5b": Costs(TARGET_1500M, DRAFT_500M)}

Run = Mapping[int, RequestOutput]
"""One drafter's answers, by their number in the recording."""


def main() -> None:
    args = parse()
    if args.step == "record":
        path = args.output or recordings_folder() / f"{Path(args.model).stem}.jsonl"
        record(path, args.prompts, args.model, args.draft_model, args.dtype, per_family=args.per_family,
               max_tokens=args.max_tokens, top=args.top, seed=args.seed)  # fmt: skip
        console.print(f"wrote {path}")
        return
    paths = args.recordings or sorted(recordings_folder().glob("*.jsonl"))
    if not paths:
        sys.exit(f"no recordings in {recordings_folder()}: make one with `draft_replay.py record`")
    figures = [row for path in paths for row in replay(path.stem, read_recording(path), args)]
    show("Recorded answers replayed, virtual clock", HEADER, table(figures))
    fallen = compare(figures, json.loads(args.against.read_text().splitlines()[-1])["figures"]) if args.against else []
    if args.json:
        finish({"figures": figures, "fallen": fallen})
    sys.exit(1 if fallen or not all(row["same_text"] for row in figures) else 0)


def recordings_folder() -> Path:
    return cache_dir() / "draft-replay"


def costs_of(recording: Recording) -> Costs:
    """Assumed costs of passes by the target's name; other targets have the default model's."""
    return COSTS.get(recording.target, COSTS["smollm2-135m"])


def replay(name: str, recording: Recording, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A record for every temperature, number of requests at once, drafter and family."""
    drafters = LOOKUPS | (WITH_DRAFT if recording.draft else {})
    for temperature in sorted({answer.temperature for answer in recording.answers}):
        replayed = Replay(recording, temperature, costs_of(recording))
        for at_once in args.at_once:
            where = {"recording": name, "temperature": temperature, "at_once": at_once}
            plain = [decode(replayed, None, recording.max_tokens, at_once)]
            for drafter, config in drafters.items():
                runs = [decode(replayed, config, recording.max_tokens, at_once, n) for n in range(args.runs)]
                for figures in by_family(replayed.answers, runs, plain):
                    yield {**where, "drafter": drafter, **figures}


def decode(
    replayed: Replay, speculative: Mapping[str, Any] | None, max_tokens: int, at_once: int, seed: int = 0
) -> dict[int, RequestOutput]:
    """Decode all answers by a new engine, family by family, `at_once` at a time; outputs by number of the answer.

    The seed also selects the first family, because an engine uses in a family what it learned in earlier ones.
    """
    engine, done = replayed.engine_for(speculative, VirtualClock()), {}
    for numbers in rotated(list(in_families(replayed.answers).values()), seed):
        for first in range(0, len(numbers), at_once):
            together = {number: replayed.answers[number] for number in numbers[first : first + at_once]}
            decode_together(engine, together, 1, seed)  # the target has read the prompts, so they count for little
            done |= decode_together(engine, together, max_tokens, seed)
    return done


def decode_together(
    engine: Engine, answers: Mapping[int, Answer], max_tokens: int, seed: int
) -> dict[int, RequestOutput]:
    """Decode answers that begin at the same time; outputs by number of the answer."""
    for number, answer in answers.items():
        params = SamplingParams(temperature=answer.temperature, seed=seed, max_tokens=max_tokens)
        engine.add_request(str(number), answer.prompt_ids, params)
    done = {}
    while engine.has_unfinished_requests:
        done |= {int(output.request_id): output.finished for output in engine.step() if output.finished}
    return done


def in_families(answers: Sequence[Answer]) -> dict[str, list[int]]:
    """Numbers of the answers of each family."""
    families: dict[str, list[int]] = defaultdict(list)
    for number, answer in enumerate(answers):
        families[answer.family].append(number)
    return families


def by_family(answers: Sequence[Answer], runs: Sequence[Run], plain: Sequence[Run]) -> Iterator[dict[str, Any]]:
    """A record for each family, then one for all answers."""
    for family, numbers in {**in_families(answers), "all": range(len(answers))}.items():
        found = pace(runs, numbers) | {"same_text": same_text(answers, runs, numbers)}
        yield {"family": family, **found, "speedup": found["per_second"] / pace(plain, numbers)["per_second"]}


def pace(runs: Sequence[Run], numbers: Sequence[int]) -> dict[str, float]:
    """Number of tokens after each answer's first, tokens per virtual second, and tokens per target pass."""
    outputs = [run[number] for run in runs for number in numbers]
    tokens = sum(len(output.token_ids) - 1 for output in outputs)
    seconds = sum(o.metrics.finish_time - o.metrics.first_token_time for o in outputs if o.metrics.first_token_time)
    passes = sum(output.stats.num_target_passes for output in outputs)
    return {"tokens": tokens, "per_second": tokens / seconds, "per_pass": tokens / passes}


def same_text(answers: Sequence[Answer], runs: Sequence[Run], numbers: Sequence[int]) -> bool:
    return all(list(run[n].token_ids) == answers[n].answer_ids for run in runs for n in numbers)


def compare(figures: Sequence[dict[str, Any]], frozen: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records whose speed-up fell by more than `TOLERANCE`, or that are missing; prints them on standard error."""
    now = {key_of(row): row["speedup"] for row in figures}
    fallen = []
    for row in frozen:
        key, before, after = key_of(row), row["speedup"], now.get(key_of(row))
        if after is None or after < before * (1 - TOLERANCE):
            fallen.append(dict(zip(KEY, key, strict=True)) | {"before": before, "after": after})
    rows = [[*(row[k] for k in KEY), row["before"], "-" if row["after"] is None else row["after"]] for row in fallen]
    if rows:
        show(f"Fallen by more than {TOLERANCE:.0%}", [*HEADER[: len(KEY)], "before", "after"], rows)
    console.print(f"{len(fallen)} of {len(frozen)} figures have fallen by more than {TOLERANCE:.0%}")
    return fallen


def key_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEY)


def table(figures: Sequence[dict[str, Any]]) -> Iterator[list[object]]:
    for row in figures:
        text = "" if row["same_text"] else " other text!"
        yield [*key_of(row), row["tokens"], row["per_second"], row["per_pass"], f"{row['speedup']:.3f}{text}"]


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    recording = steps.add_parser("record", help="run the real models and keep what they say")
    recording.add_argument("--prompts", type=Path, required=True, help="a .jsonl file with turns and category")
    recording.add_argument("-m", "--model", default="smollm2-135m")
    recording.add_argument("--draft-model", help="record its laws as well")
    recording.add_argument("--dtype", default="bfloat16")
    recording.add_argument("--per-family", type=int, default=8)
    recording.add_argument("--max-tokens", type=int, default=96)
    recording.add_argument("--top", type=int, default=32, help="tokens kept of each draft law")
    recording.add_argument("--seed", type=int, default=0, help="of the answers at temperature 1")
    recording.add_argument("--output", type=Path, help="default: the target's name in the cache folder")
    replaying = steps.add_parser("replay", help="decode the recorded answers again")
    replaying.add_argument("recordings", type=Path, nargs="*", help="default: all in the cache folder")
    replaying.add_argument("--at-once", type=int, nargs="+", default=[1, 8], help="requests in flight")
    replaying.add_argument("--runs", type=int, default=6, help="each begins with another family and another seed")
    replaying.add_argument("--against", type=Path, help="an earlier output: say what fell by more than 1 %%")
    replaying.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
