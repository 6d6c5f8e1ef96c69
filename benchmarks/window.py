"""Tokens per second at a steady batch size: from the moment all requests decode until the first one ends."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline.engine.loop.engine import Engine
from paceline.types import SamplingParams


@dataclass(frozen=True)
class Window:
    """What happened while all requests decoded together.

    Attributes:
        tokens_per_second: of all requests together.
        draft_length: drafted tokens verified per request and step.
        texts: output token ids of each request so far, in order.
    """

    tokens_per_second: float
    draft_length: float
    steps: int
    texts: tuple[tuple[int, ...], ...]


def decode_window(engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> Window:
    """The window of one engine; `params` should ignore the end of sequence."""
    return decode_windows({"": engine}, prompts, params)[""]


def decode_windows(
    engines: Mapping[str, Engine], prompts: Sequence[Sequence[int]], params: SamplingParams
) -> dict[str, Window]:
    """The windows of several engines with the same work.

    The engine with the fewest output tokens takes the next step, so that all advance together, and a machine that slows
    down slows all of them alike.
    """
    runs = {name: _Run(engine, prompts, params) for name, engine in engines.items()}
    while open_runs := [run for run in runs.values() if not run.is_over]:
        min(open_runs, key=_Run.num_said).step()
    return {name: run.window() for name, run in runs.items()}


class _Run:
    """One engine's share of the work."""

    def __init__(self, engine: Engine, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
        self._engine = engine
        self._names = [f"window-{number}" for number in range(len(prompts))]
        for name, prompt in zip(self._names, prompts, strict=True):
            engine.add_request(name, prompt, params)
        self._states = [engine.state_of(name) for name in self._names]
        while not all(state.num_output_tokens for state in self._states):
            engine.step()
        self._before = self.num_said(), self._num_drafted()
        self._steps, self._seconds = 0, 0.0

    @property
    def is_over(self) -> bool:
        return any(state.finish_reason for state in self._states)

    def num_said(self) -> int:
        """Output tokens of all requests."""
        return sum(state.num_output_tokens for state in self._states)

    def step(self) -> None:
        start = time.perf_counter()
        self._engine.step()
        self._seconds += time.perf_counter() - start
        self._steps += 1

    def window(self) -> Window:
        """Abort the requests and return the window."""
        said, drafted = self.num_said() - self._before[0], self._num_drafted() - self._before[1]
        for name in self._names:
            self._engine.abort(name)
        texts = tuple(tuple(state.output_token_ids) for state in self._states)
        rate = said / self._seconds if self._steps else 0.0
        return Window(rate, drafted / max(1, self._steps) / len(self._names), self._steps, texts)

    def _num_drafted(self) -> int:
        return self._engine.metrics.spec_decode_num_draft_tokens


def same_as_far_as_both_go(ours: Window, theirs: Window) -> bool:
    """Whether every request has the same tokens in both windows, as far as both go."""
    pairs = zip(ours.texts, theirs.texts, strict=True)
    return all(a[: len(b)] == b[: len(a)] for a, b in pairs)
