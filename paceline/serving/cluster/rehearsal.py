"""`rehearse`: how much longer answers take through a whole group than its engines' steps say.

Steps are timed one model at a time, and by the engine alone. What comes on top is the same for all requests: streams,
Ray's own threads and processes, and caches that hold the weights of one model at best. Hence some requests for every
model of every group at once, before anybody else asks. Not for what passes cost (`engine/pass_costs.py`).
"""

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from statistics import median

from paceline.placement.tokens import TokenAsk, TokenGroup, TokenProfile
from paceline.serving.cluster.group import GroupHandle
from paceline.serving.job import Job
from paceline.types import SamplingParams

_LEAST, _SECONDS = 4, 6.0
"""Times that requests are sent, at least: once to warm caches, then as often as a median needs. They are sent again
until so many seconds have gone by: a machine is a tenth quicker or slower from one half second to the next."""
_REQUESTS = 4
"""Requests for each model at once."""
USUAL = 16, 24
"""Tokens of their prompts and answers, where nobody says how long these will be."""
MOST = 256, 24
"""Longer ones are not asked for: all groups wait for them."""
_IDS = range(1, 200)
"""Tokens of prompts: of every vocabulary."""
_MOST = 2.0
"""More than this many times as slow, or as fast, is no overhead: something else held it up."""


async def rehearse(
    groups: Sequence[GroupHandle],
    profiles: Sequence[Mapping[str, TokenProfile]],
    clock: Callable[[], float],
    lengths: Mapping[str, tuple[int, int]] | None = None,
) -> list[dict[str, float]]:
    """Seconds of every group over those of `profiles`, by model.

    All groups, and all models of each, are asked at once, again and again. The first time warms caches; the median of
    the others counts.

    Args:
        clock: seconds, monotonic.
        lengths: tokens of prompts and answers that are expected, by model; `USUAL` where it says nothing.

    Raises:
        Exception: whatever an answer ends with.
    """
    sizes = {name: (lengths or {}).get(name, USUAL) for held in profiles for name in held}
    return await asyncio.gather(*map(_scales, groups, profiles, repeat(sizes), repeat(clock)))


async def _scales(
    group: GroupHandle,
    held: Mapping[str, TokenProfile],
    sizes: Mapping[str, tuple[int, int]],
    clock: Callable[[], float],
) -> dict[str, float]:
    """Of one group's models, all at once."""
    if not held:
        return {}
    predicted, found, end = _predicted(held, sizes), [], clock() + _SECONDS
    while len(found) < _LEAST or clock() < end:
        began = clock()
        await asyncio.gather(*(_whole(group, job) for job in _jobs(held, sizes, len(found))))
        found.append((clock() - began) / predicted)
    return dict.fromkeys(held, min(max(median(found[1:]), 1 / _MOST), _MOST))


def _jobs(held: Mapping[str, TokenProfile], sizes: Mapping[str, tuple[int, int]], time: int) -> list[Job]:
    """Requests for each model, no two alike: what a prefix cache knows is not read."""
    rng, jobs = random.Random(time), []
    for model, profile in held.items():
        prompt, tokens = sizes[model]
        params = SamplingParams(temperature=0.0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True)
        for number in range(min(_REQUESTS, profile.seats)):
            name = f"rehearsal-{time}-{number}"
            jobs.append(Job(name, model, tuple(rng.choices(_IDS, k=prompt)), params=params))
    return jobs


async def _whole(group: GroupHandle, job: Job) -> None:
    async for _ in group.generate(job):
        pass


def _predicted(held: Mapping[str, TokenProfile], sizes: Mapping[str, tuple[int, int]]) -> float:
    """Seconds until the last answer by the rule that queues and simulator play."""
    group, number = TokenGroup(held), 0
    for model, profile in held.items():
        prompt, tokens = sizes[model]
        for _ in range(min(_REQUESTS, profile.seats)):
            group.join(number, TokenAsk(model, prompt, tokens), 0.0, tokens)
            number += 1
    return max(end for _, _, end in group.advance(1e12))
