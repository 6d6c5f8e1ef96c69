"""`rehearse`: how much longer answers take through a whole group than its engines' steps say.

Steps are timed one model at a time, and by the engine alone. What comes on top depends on who asks meanwhile: streams,
Ray's own threads and processes, engines that wake up for one request, caches that hold the weights of one model at
best. Hence traffic for every group, all at once, before anybody else asks. Not for what passes cost
(`engine/pass_costs.py`).
"""

import asyncio
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from paceline.placement.tokens import TokenAsk, TokenGroup, TokenProfile
from paceline.serving.cluster.group import GroupHandle
from paceline.serving.job import Job
from paceline.types import SamplingParams

_REQUESTS = 4
"""Requests for each model at once, which warm caches and are not counted."""
_LOAD = 0.6
"""Of the pace at which those would be answered one after the other: some requests come alone, some meet others."""
_SECONDS, _LEAST = 8.0, 12
"""How long that traffic lasts, and how many requests each group gets at least."""
USUAL = 16, 24
"""Tokens of their prompts and answers, where nobody says how long these will be."""
MOST = 256, 24
"""Longer ones are not asked for: all groups wait for them."""
_IDS = range(1, 200)
"""Tokens of prompts: of every vocabulary."""
_MOST = 2.0
"""More than this many times as slow, or as fast, is no overhead: something else held it up."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that was answered: when it came, from the beginning, and after how many seconds it was answered."""

    at: float
    ask: TokenAsk
    seconds: float


async def rehearse(
    groups: Sequence[GroupHandle],
    profiles: Sequence[Mapping[str, TokenProfile]],
    clock: Callable[[], float],
    lengths: Mapping[str, tuple[int, int]] | None = None,
    overhead: float = 0.0,
) -> list[dict[str, float]]:
    """Seconds of every group over those of `profiles`, by model.

    Requests come at random to all groups at once. A group's speed is the one at which the rule that queues and
    simulator play (`placement/tokens`) has half of them take longer than they took, and half shorter.

    Args:
        clock: seconds, monotonic.
        lengths: tokens of prompts and answers that are expected, by model; `USUAL` where it says nothing.
        overhead: seconds between the last token and the answer.

    Raises:
        Exception: whatever an answer ends with.
    """
    sizes = {name: (lengths or {}).get(name, USUAL) for held in profiles for name in held}
    gaps = [_gap(held, sizes) for held in profiles]
    seconds = max([_SECONDS, *(_LEAST * gap for gap in gaps)])
    found = [
        _rehearsed(group, held, sizes, seconds, gap, clock) if held else _nobody()
        for group, held, gap in zip(groups, profiles, gaps, strict=True)
    ]
    return [
        dict.fromkeys(held, _speed(held, asked, overhead))
        for held, asked in zip(profiles, await asyncio.gather(*found), strict=True)
    ]


async def _nobody() -> list[_Asked]:
    return []


async def _rehearsed(
    group: GroupHandle, held: Mapping[str, TokenProfile], sizes: Mapping[str, tuple[int, int]], seconds: float,
    gap: float, clock: Callable[[], float],
) -> list[_Asked]:  # fmt: skip
    """One group's requests for `seconds`, a mean of `gap` apart."""
    rng, models = random.Random(0), list(held)
    await asyncio.gather(*(_whole(group, _job(model, sizes, rng)) for model in models for _ in range(_REQUESTS)))
    began, tasks, at = clock(), [], rng.expovariate(1 / gap)

    async def asked(job: Job) -> _Asked:
        start = clock()
        await _whole(group, job)
        prompt, tokens = sizes[job.model]
        return _Asked(start - began, TokenAsk(job.model, prompt, tokens), clock() - start)

    while at < seconds or len(tasks) < _LEAST:
        await asyncio.sleep(began + at - clock())
        tasks.append(asyncio.create_task(asked(_job(models[len(tasks) % len(models)], sizes, rng))))
        at += rng.expovariate(1 / gap)
    return sorted(await asyncio.gather(*tasks), key=lambda one: one.at)


def _job(model: str, sizes: Mapping[str, tuple[int, int]], rng: random.Random) -> Job:
    """A request, no two alike: what a prefix cache knows is not read."""
    prompt, tokens = sizes[model]
    params = SamplingParams(temperature=0.0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True)
    return Job(f"rehearsal-{rng.getrandbits(64):x}", model, tuple(rng.choices(_IDS, k=prompt)), params=params)


async def _whole(group: GroupHandle, job: Job) -> None:
    async for _ in group.generate(job):
        pass


def _gap(held: Mapping[str, TokenProfile], sizes: Mapping[str, tuple[int, int]]) -> float:
    """Mean seconds between requests."""
    if not held:
        return 0.0
    asks = [TokenAsk(model, *sizes[model]) for model in held for _ in range(_REQUESTS)]
    return max(_seconds(held, [(0.0, ask) for ask in asks], 1.0)) / len(asks) / _LOAD


def _speed(held: Mapping[str, TokenProfile], asked: Sequence[_Asked], overhead: float) -> float:
    """By halving: the rule's seconds grow with it."""
    requests, low, high = [(one.at, one.ask) for one in asked], 1 / _MOST, _MOST
    for _ in range(20 if held else 0):
        tried = math.sqrt(low * high)
        told = zip(asked, _seconds(held, requests, tried), strict=True)
        is_slower = median((one.seconds - overhead) / rule for one, rule in told) > 1
        low, high = (tried, high) if is_slower else (low, tried)
    return math.sqrt(low * high)


def _seconds(held: Mapping[str, TokenProfile], requests: Sequence[tuple[float, TokenAsk]], speed: float) -> list[float]:
    """Of each request, which come in order, by the rule at that speed."""
    group, ended = TokenGroup(held), {}
    group.scale = speed
    for number, (at, ask) in enumerate(requests):
        ended |= {done: end for done, _, end in group.advance(at)}
        group.join(number, ask, at, ask.expected_tokens)
    ended |= {done: end for done, _, end in group.advance(1e12)}
    return [ended[number] - at for number, (at, _) in enumerate(requests)]
