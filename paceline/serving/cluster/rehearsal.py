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
) -> list[float]:
    """Seconds of every group over those of `profiles`, by model, of its group; 1 for a group without.

    Args:
        clock: seconds, monotonic.

    Raises:
        Exception: whatever an answer ends with.
    """
    for is_counted in (False, True):  # the first answers warm caches
        seconds = await asyncio.gather(*map(_seconds, groups, profiles, repeat(is_counted), repeat(clock)))
    return [
        min(max(took / _predicted(held), 1 / _MOST), _MOST) if held else 1.0
        for took, held in zip(seconds, profiles, strict=True)
    ]


async def _seconds(
    group: GroupHandle, held: Mapping[str, TokenProfile], is_counted: bool, clock: Callable[[], float]
) -> float:
    """Until the last of one group's answers."""
    params = SamplingParams(temperature=0.0, max_tokens=_TOKENS, min_tokens=_TOKENS, ignore_eos=True)
    rng, began = random.Random(is_counted), clock()
    jobs = [
        Job(f"rehearsal-{is_counted}-{number}", model, tuple(rng.choices(_IDS, k=_PROMPT)), params=params)
        for model, profile in held.items()
        for number in range(min(_REQUESTS, profile.seats))
    ]
    await asyncio.gather(*(_whole(group, job) for job in jobs))
    return clock() - began


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
