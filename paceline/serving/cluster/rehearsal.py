"""`rehearse`: how much longer answers take through a whole group than its engines' steps say.

Steps are timed one model at a time, and by the engine alone. What comes on top is the same for all requests: streams,
Ray's own threads and processes, and caches that hold the weights of one model at best. Hence some requests for every
model of every group at once, before anybody else asks. Not for what passes cost (`engine/pass_costs.py`).
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat

from paceline.placement.tokens import TokenAsk, TokenGroup, TokenProfile
from paceline.serving.cluster.group import GroupHandle
from paceline.serving.job import Job
from paceline.types import SamplingParams

_REQUESTS, _PROMPT, _TOKENS = 4, 16, 24
"""Requests for each model at once, tokens of their prompts and of their answers."""
_IDS = range(1, 200)
"""Tokens of prompts: of every vocabulary."""
_MOST = 2.0
"""More than this many times as slow, or as fast, is no overhead: something else held it up."""


async def rehearse(
    groups: Sequence[GroupHandle], profiles: Sequence[Mapping[str, TokenProfile]], clock: Callable[[], float]
) -> list[dict[str, float]]:
    """Seconds of every group over those of `profiles`, by model.

    All groups are asked at once, and models that take turns in a group are. Those of a pipeline, whose steps share the
    stages, are asked one after the other.

    Args:
        clock: seconds, monotonic.

    Raises:
        Exception: whatever an answer ends with.
    """
    await asyncio.gather(*map(_scales, groups, profiles, repeat(False), repeat(clock)))  # warms caches
    return list(await asyncio.gather(*map(_scales, groups, profiles, repeat(True), repeat(clock))))


async def _scales(
    group: GroupHandle, held: Mapping[str, TokenProfile], is_counted: bool, clock: Callable[[], float]
) -> dict[str, float]:
    """Of one group's models."""
    found: dict[str, float] = {}
    is_pipeline = any(profile.stages > 1 for profile in held.values())
    for models in [{name: held[name]} for name in held] if is_pipeline else [held]:
        began = clock()
        await asyncio.gather(*(_whole(group, job) for job in _jobs(models, is_counted)))
        scale = min(max((clock() - began) / _predicted(models), 1 / _MOST), _MOST) if models else 1.0
        found |= dict.fromkeys(models, scale)
    return found


def _jobs(held: Mapping[str, TokenProfile], is_counted: bool) -> list[Job]:
    """Requests for each model, no two alike: what a prefix cache knows is not read."""
    params = SamplingParams(temperature=0.0, max_tokens=_TOKENS, min_tokens=_TOKENS, ignore_eos=True)
    rng = random.Random(is_counted)
    return [
        Job(f"rehearsal-{is_counted}-{number}", model, tuple(rng.choices(_IDS, k=_PROMPT)), params=params)
        for model, profile in held.items()
        for number in range(min(_REQUESTS, profile.seats))
    ]


async def _whole(group: GroupHandle, job: Job) -> None:
    async for _ in group.generate(job):
        pass


def _predicted(held: Mapping[str, TokenProfile]) -> float:
    """Seconds until the last answer by the rule that queues and simulator play."""
    group, number = TokenGroup(held), 0
    for model, profile in held.items():
        for _ in range(min(_REQUESTS, profile.seats)):
            group.join(number, TokenAsk(model, _PROMPT, _TOKENS), 0.0, _TOKENS)
            number += 1
    return max(end for _, _, end in group.advance(1e12))
