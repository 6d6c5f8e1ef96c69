"""`pass_costs`: step costs and capacity of an engine, for planners and simulators.

Read from the profile of `paceline tune` where there is one. Else measured by steps of a separate engine on the same
weights, so that the times include scheduling, sampling and detokenising, and exclude compilation. Not for drafts,
whose prior is `quick_profile`.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from paceline.config import EngineConfig
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.memory import bytes_for
from paceline.engine.setup.build import build_engine
from paceline.engine.setup.profiles import find_profile
from paceline.errors import EngineDead
from paceline.models.base import PAGE_SIZE, pages_for
from paceline.models.loaded import LoadedModel
from paceline.scheduling import SchedulerConfig
from paceline.types import SamplingParams

_REQUESTS, _PROMPTS = (1, 2, 4, 8, 16, 64), (1, 16, 64, 256)
_TOKENS = 6
"""Output tokens of each trial request. The first comes with the prefill; the steps of the others time decoding."""
_EACH, _RUNS = 1.0, 50
"""Seconds to measure each size, and most runs of it. Runs of all sizes are interleaved, so that a momentary disturbance
does not fall on one size alone."""
_ENOUGH = 4.0
"""Seconds after which no larger size is tried, for decodes and for prompts separately."""
_FEW, _PROMPT = 4, 64
"""Decoding requests, and prompt tokens, in the steps that are timed concurrently with other engines."""


def pass_costs(
    engine: Engine, loaded: LoadedModel, config: EngineConfig, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """Step costs and capacity, as fields of `placement.tokens.TokenProfile`.

    Args:
        clock: seconds, monotonic.

    Raises:
        EngineDead: the model cannot run.
    """
    limits = engine.scheduler.config
    room = {
        "seats": limits.max_num_seqs,
        "token_budget": limits.max_num_batched_tokens,
        "kv_tokens": float(engine.scheduler.pool.num_pages * PAGE_SIZE),
    }
    profile = find_profile(loaded, config)
    if profile is not None:
        kept = ("seconds", "prefill_seconds", "segment_seconds")
        return room | {name: getattr(profile, name) for name in kept} | {"step_overhead": profile.step_overhead or 0.0}
    return room | _Trial(loaded, config, limits, clock).costs()


def step_seconds(
    engine: Engine, loaded: LoadedModel, config: EngineConfig, reads: bool, clock: Callable[[], float]
) -> float:
    """Median seconds of a step that decodes a few requests, or (`reads`) that prefills a prompt.

    Called for all engines of a pipeline at once, it measures their steps while they run concurrently.
    """
    trial = _Trial(loaded, config, engine.scheduler.config, clock)
    return trial.reading() if reads else trial.decoding()


class _Trial:
    """Timed steps of a separate engine with no other requests."""

    def __init__(
        self, loaded: LoadedModel, config: EngineConfig, limits: SchedulerConfig, clock: Callable[[], float]
    ) -> None:
        self._spent = 0.0
        longest = limits.max_model_len - _TOKENS
        self._requests = sorted({min(count, limits.max_num_seqs) for count in _REQUESTS})
        self._prompts = sorted({min(count, limits.max_num_batched_tokens, longest) for count in _PROMPTS})
        pages = max(self._requests[-1], 2 * _FEW, 1 + pages_for(self._prompts[-1] + _TOKENS))
        self._engine = build_engine(
            loaded,
            replace(
                config,
                profile="none",
                prefix_caching=False,
                max_model_len=None,
                memory_fraction=None,
                kv_cache_memory_bytes=bytes_for(loaded.model, pages, self._requests[-1]),
            ),
            None,
        )
        self._clock = clock
        self._rng, self._vocab_size = np.random.default_rng(0), loaded.model.config.vocab_size

    def costs(self) -> dict[str, Any]:
        """Seconds of decoding steps and of prefill steps, each by context and rows."""
        self._run(1, self._prompts[0])  # compiles and reads the weights
        runs = self._turns()
        decoding = {count: _of_all(run[1:] for run in each) for (count, size), each in runs.items() if size == 1}
        prompts = {size: each for (count, size), each in runs.items() if count == 1}
        context = max(prompts)
        further = max(0.0, _of_all(run[1:] for run in prompts[context]) - decoding[1])  # attention, per request
        later = {count: seconds + count * further for count, seconds in decoding.items()}
        reading = {size: median(run[0] for run in each) for size, each in prompts.items()}
        return {"seconds": {0: decoding, context: later}, "prefill_seconds": {0: reading}}

    def _turns(self) -> dict[tuple[int, int], list[list[float]]]:
        """(number of requests, prompt tokens of each) to runs; a run is the seconds of each of its steps."""
        runs: dict[tuple[int, int], list[list[float]]] = {}
        for count in self._sizes(self._requests):
            runs[count, 1] = [self._run(count, 1)]
        for size in self._sizes(self._prompts):
            runs.setdefault((1, size), []).append(self._run(1, size))
        while again := [one for one, each in runs.items() if sum(map(sum, each)) < _EACH and len(each) < _RUNS]:
            for one in again:
                runs[one].append(self._run(*one))
        return runs

    def decoding(self) -> float:
        """Median seconds of a decoding step of a few requests."""
        self._run(1, 1)
        return median(self._run(min(_FEW, self._requests[-1]), 1, 3 * _TOKENS)[2:-2])

    def reading(self) -> float:
        """Median seconds of a prefill step."""
        self._run(1, 1)
        return median(self._run(1, min(_PROMPT, self._prompts[-1]), 1)[0] for _ in range(_TOKENS))

    def _sizes(self, sizes: Sequence[int]) -> Iterator[int]:
        """Yield `sizes` until `_ENOUGH` seconds are spent; at least one."""
        began = self._spent
        for size in sizes:
            yield size
            if self._spent - began > _ENOUGH:
                return

    def _run(self, num_requests: int, prompt_tokens: int, max_tokens: int = _TOKENS) -> list[float]:
        """Run `num_requests` requests together; returns the seconds (above 0) of each step."""
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        for number in range(num_requests):
            prompt = self._rng.integers(0, self._vocab_size, prompt_tokens).tolist()
            self._engine.add_request(str(number), prompt, params)
        steps = []
        while self._engine.has_unfinished_requests:
            started = self._clock()
            outputs = self._engine.step()
            steps.append(max(self._clock() - started, 1e-9))
            errors = [out.completion.error for out in outputs if out.completion and out.completion.error]
            if errors:
                raise EngineDead(f"a trial step failed: {errors[0]}")
        self._spent += sum(steps)
        return steps


def _of_all(runs: Iterable[Sequence[float]]) -> float:
    """Median of the steps of all runs."""
    return median(step for run in runs for step in run)
