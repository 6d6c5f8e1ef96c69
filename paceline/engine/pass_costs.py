"""`pass_costs`: what an engine's passes cost and what it has room for, as whoever plans for it wants to know.

`paceline tune`'s profile where there is one, else a handful of passes. Not for drafts: `quick_profile` is their prior.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.config import EngineConfig
from paceline.engine.engine import Engine
from paceline.engine.profiles import find_profile
from paceline.models.base import PAGE_SIZE, CausalLM, pages_for
from paceline.models.loaded import LoadedModel
from paceline.models.rows import Part, build_rows

_REQUESTS, _PROMPTS = (1, 4, 16, 64), (16, 64, 256)
_ENOUGH = 1.0
"""Seconds after which no larger pass is tried, for decodes and for prompts each."""


def pass_costs(
    engine: Engine, loaded: LoadedModel, config: EngineConfig, clock: Callable[[], float] = time.perf_counter
) -> dict[str, Any]:
    """Fields of `placement.tokens.TokenProfile`.

    Args:
        clock: seconds, monotonic.
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
    requests = sorted({min(count, limits.max_num_seqs) for count in _REQUESTS})
    prompts = sorted({min(count, limits.max_num_batched_tokens) for count in _PROMPTS})
    seconds = _measure(loaded.model, requests, _decodes, clock)
    reading = _measure(loaded.model, prompts, _prompt, clock)
    return room | {"seconds": {0: seconds}, "prefill_seconds": {0: reading}}


def _decodes(tokens: list[int]) -> list[Part]:
    """A row for each of as many requests as there are tokens."""
    return [Part([page], 0, [token]) for page, token in enumerate(tokens)]


def _prompt(tokens: list[int]) -> list[Part]:
    return [Part(range(pages_for(len(tokens))), 0, tokens, logits="last")]


def _measure(
    model: CausalLM, sizes: list[int], parts: Callable[[list[int]], list[Part]], clock: Callable[[], float]
) -> dict[int, float]:
    """Seconds of a pass by its rows."""
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, max(sizes)).tolist()
    cache = model.new_cache(1 + max(page for part in parts(tokens) for page in part.pages))
    found: dict[int, float] = {}
    began = clock()
    for size in (sizes[0], *sizes):  # the first pass reads the weights and does not count
        rows = build_rows(parts(tokens[:size]))
        started = clock()
        model.forward(rows, cache)
        found[size] = max(clock() - started, 1e-9)
        if clock() - began > _ENOUGH:
            break
    return found
