"""An engine over a simulated device: what the host costs beside passes that take a given time.

    python benchmarks/simulated_device.py --requests 8 --pass-ms 0.72 --drafted-ms 0.85

The cuda executor on CPU tensors stages rows, launches passes ahead and answers questions as on a GPU, but a pass only
ends a given time after the one before it. Its tokens are a function of the tokens and positions it is given, which the
drafter knows and misses one time in five. Prints tokens per second plainly, at a temperature (draws take no time and
give the same tokens), with drafts of four, with adaptive drafts, and with `suffix`, which remembers the answers of
earlier runs; in runs one after another, because policies learn. Not for the speed of passes (`gpu.py`).
"""

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from gpu_parts.bench import Bench, answer_all  # noqa: E402
from gpu_parts.stand_ins import RandomWeights, qwen_config  # noqa: E402

from paceline.models.cuda_executor.paged_rows import num_splits  # noqa: E402
from paceline.models.cuda_executor.passes import Launched  # noqa: E402

NUM_DRAFTS, LENGTH, VOCABULARY, _TILE = 4, 128, 151_936, 4
WAYS = ("plain", "drawn", "fixed", "auto", "suffix")
_WORDS, _SURPRISES, _PRIME = 150, 0.5, 1_000_003
"""Texts have this many different tokens, and at this share of places one that does not follow from the latest."""


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    bench = Bench("cpu", True, time.perf_counter() + 1e6)
    bench.__dict__["checkpoint"] = RandomWeights(replace(qwen_config("quick"), vocab_size=VOCABULARY))
    seconds = Seconds(args.requests, args.pass_ms / 1e3, args.drafted_ms / 1e3)
    simulate(bench.model, seconds)
    prompts = [[token % _WORDS for token in prompt] for prompt in bench.prompts(args.requests)]
    answers = {tuple(prompt): answer(prompt) for prompt in prompts}
    found: dict[str, list[int]] = {}
    for name, engine, sampling in (
        ("plain", bench.engine(bench.model), {}),
        ("drawn", bench.engine(bench.model), {"temperature": 0.8, "seed": 1}),
        ("fixed", bench.engine(bench.model, NUM_DRAFTS, answers), {}),
        ("auto", bench.engine(bench.model, NUM_DRAFTS, answers, "auto"), {}),
        ("suffix", bench.engine(bench.model, NUM_DRAFTS, policy="auto", method="suffix"), {}),
    ):
        if name not in args.ways:
            continue
        gc.collect()
        gc.freeze()  # as in `paceline serve`
        runs = [answer_all(engine, prompts, LENGTH, **sampling) for _ in range(args.runs)]
        found[name] = [round(figures["tokens_per_second"]) for _, figures in runs]
        assert all(texts == list(answers.values()) for texts, _ in runs)
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    print(json.dumps({"argv": sys.argv[1:], "tokens_per_second": found}))


class Seconds:
    """Times of passes: that of one without drafts, and with four for each request; in proportion between."""

    def __init__(self, requests: int, plain: float, drafted: float) -> None:
        self._requests, self._plain = requests, plain
        self._each = (drafted - plain) / (NUM_DRAFTS * requests)

    def __call__(self, rows: int) -> float:
        return self._plain + self._each * max(0, rows - self._requests)


class Done:
    """Tables that are there once the device's clock is."""

    def __init__(self, at: float, tables: tuple[torch.Tensor, ...]) -> None:
        self._at, self._tables = at, [table.numpy().copy() for table in tables]

    @property
    def is_there(self) -> bool:
        """See `Fetched`."""
        return time.perf_counter() >= self._at

    def wait(self) -> list[np.ndarray]:
        """See `Fetched`."""
        while time.perf_counter() < self._at:
            pass
        return self._tables


def simulate(model: Any, seconds: Callable[[int], float]) -> None:
    """Let passes of a `CudaModel` take `seconds` of their rows, on a clock beside the host's."""
    free, picks, logits = [0.0], [np.zeros(0, np.int64)], torch.zeros(512, VOCABULARY)

    def launch(rows: Any, cache: Any, taps: tuple[int, ...] = (), *, is_foreseen: bool = False, **_: Any) -> Launched:
        model.passes._count(cache)
        if model.passes.fits(rows):
            model.passes._staging.place(rows, cache.spare_slot, _TILE, num_splits(rows))
        free[0] = max(time.perf_counter(), free[0]) + seconds(len(rows.token_ids))
        tokens = rows.token_ids[rows.logit_rows].astype(np.int64)
        if is_foreseen:
            tokens = np.where(tokens < 0, picks[0][np.maximum(0, -1 - tokens)], tokens)
        picks[0] = following(tokens, rows.positions[rows.logit_rows].astype(np.int64))
        peaks = torch.from_numpy(np.stack([picks[0], np.zeros(len(tokens))], axis=1).astype(np.float64))
        return Launched(logits[: len(tokens)], None, peaks)

    def fetch(*tables: torch.Tensor) -> Done:
        return Done(free[0], tables)

    def answers(_: torch.Tensor, peaks: torch.Tensor, wide: Any) -> torch.Tensor:
        return peaks if wide is None else torch.cat([peaks, peaks[:, :1], peaks[:, :1]], dim=1)

    model.launch, model._answers = launch, answers
    model._fetch = model._foreseen._fetch = fetch
    model._foreseen._has_recorded = lambda *_: True


def following(tokens: Any, positions: Any) -> Any:
    """The token after each of `tokens` at `positions`."""
    mixed = ((tokens * 48_271 + positions * 40_503 + 12_345) % _PRIME) ** 2 % _PRIME
    return np.where(mixed < _SURPRISES * _PRIME, mixed * 7919 % _WORDS, (tokens * 31 + 7) % _WORDS)


def answer(prompt: list[int]) -> list[int]:
    """The prompt and what is said after it."""
    said = list(prompt)
    for _ in range(LENGTH):
        said.append(int(following(said[-1], len(said) - 1)))
    return said


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--requests", type=int, default=8, help="requests at a time, up to 64")
    parser.add_argument("--pass-ms", type=float, default=0.72, help="milliseconds of a pass without drafts")
    parser.add_argument("--drafted-ms", type=float, default=0.85, help="of a pass with four drafts for each request")
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS, help="ways of decoding, all by default")
    parser.add_argument("--runs", type=int, default=3, help="runs of each kind")
    return parser.parse_args()


if __name__ == "__main__":
    main()
