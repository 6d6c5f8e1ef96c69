"""Tokens per second at a steady batch size: from the moment all requests decode until the first one ends."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.engine.engine import Engine
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
    """Run `prompts` side by side and time the window; `params` should ignore the end of sequence."""
    names = [f"window-{number}" for number in range(len(prompts))]
    for name, prompt in zip(names, prompts, strict=True):
        engine.add_request(name, prompt, params)
    states = [engine.state_of(name) for name in names]
    while not all(state.num_output_tokens for state in states):
        engine.step()
    tokens, drafted = (sum(values) for values in zip(*map(_counts, states), strict=True))
    steps, start = 0, time.perf_counter()
    while not any(state.finish_reason for state in states):
        engine.step()
        steps += 1
    seconds = time.perf_counter() - start
    more_tokens, more_drafted = (sum(values) for values in zip(*map(_counts, states), strict=True))
    for name in names:
        engine.abort(name)
    texts = tuple(tuple(state.output_token_ids) for state in states)
    rate = (more_tokens - tokens) / seconds if steps else 0.0
    return Window(rate, (more_drafted - drafted) / max(1, steps) / len(prompts), steps, texts)


def _counts(state) -> tuple[int, int]:
    return state.num_output_tokens, state.draft_stats.num_draft_tokens


def same_as_far_as_both_go(ours: Window, theirs: Window) -> bool:
    """Whether every request says the same in both, over the tokens both have."""
    pairs = zip(ours.texts, theirs.texts, strict=True)
    return all(a[: len(b)] == b[: len(a)] for a, b in pairs)
