"""`rehearse`: how much longer answers take through a whole group than its engines' steps say.

Steps are timed one model at a time, and by the engine alone. What comes on top depends on who asks meanwhile: streams,
Ray's own threads and processes, engines that wake up for one request, caches that hold the weights of one model at
best. Hence traffic for every group, all at once, before anybody else asks. Not for what passes cost
(`engine/pass_costs.py`).
"""

import asyncio
import math
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from paceline.placement.tokens import TokenAsk, TokenGroup, TokenProfile
from paceline.serving.cluster.group import GroupHandle
from paceline.serving.job import Job
from paceline.types import SamplingParams

_REQUESTS = 4
"""Requests for each model at once, which warm caches and are not counted."""
_CROWDS, _TIMES = (1, 2, 4, 8), 2
"""Requests for a model at once that a pipeline gets, and how often: crowds beside the first of these, a request alone,
tell how far passes go by at once. Of several sizes, since costs between those that were timed are interpolated."""
_WARM, _MOST_WARMING = 0.05, 12
"""A pipeline is warm once such a crowd is not faster by this share than all before it; and how many it gets at most.
Seen with two stages in torch: 1.58 of the predicted seconds at first, 1.34 after ten."""
_LOAD = 0.6
"""Of the pace at which those would be answered one after the other: some requests come alone, some meet others."""
_SECONDS, _PIPELINE_SECONDS, _LEAST = 8.0, 30.0, 12
"""How long that traffic lasts, with a pipeline among the groups too, and how many requests each group gets at least.
A pipeline's stages and whoever feeds them share processors, and its speed differs by a fifth from one quarter of a
minute to the next."""
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


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a group did: requests that came at random, in order; of a pipeline, after them, (model, requests, seconds)
    of crowds for one model."""

    asked: list[_Asked]
    crowds: list[tuple[str, int, float]]


async def rehearse(
    groups: Sequence[GroupHandle],
    profiles: Sequence[Mapping[str, TokenProfile]],
    clock: Callable[[], float],
    lengths: Mapping[str, tuple[int, int]] | None = None,
    overhead: float = 0.0,
    timeout: float | None = None,
) -> list[dict[str, TokenProfile] | Exception]:
    """`profiles` of every group, by model, as answers go through it; or what one of its answers ended with.

    Requests come at random to all groups at once. A group's speed is the one at which the rule that queues and
    simulator play (`placement/tokens`) has half of them take longer than they took, and half shorter. How far a
    pipeline's passes go by at once (`overlap`) is what crowds show beside requests that come alone: passes that were
    timed beside each other had no streams between them.

    Args:
        clock: seconds, monotonic.
        lengths: tokens of prompts and answers that are expected, by model; `USUAL` where it says nothing.
        overhead: seconds between the last token and the answer.
        timeout: seconds that a group's requests may take together.
    """
    sizes = {name: (lengths or {}).get(name, USUAL) for held in profiles for name in held}
    gaps = [_gap(held, sizes) for held in profiles]
    least = _PIPELINE_SECONDS if any(_is_pipeline(one) for held in profiles for one in held.values()) else _SECONDS
    seconds = max([least, *(_LEAST * gap for gap in gaps)])
    found = (
        _tried(_rehearsed(group, held, sizes, seconds, gap, clock), timeout) if held else _nobody()
        for group, held, gap in zip(groups, profiles, gaps, strict=True)
    )
    return [
        shown if isinstance(shown, Exception) else _corrected(held, shown, sizes, overhead)
        for held, shown in zip(profiles, await asyncio.gather(*found), strict=True)
    ]


async def _nobody() -> _Shown:
    return _Shown([], [])


async def _tried(rehearsed: Coroutine[Any, Any, _Shown], timeout: float | None) -> _Shown | Exception:
    """A group whose answers fail holds up no other one."""
    try:
        async with asyncio.timeout(timeout):
            return await rehearsed
    except ExceptionGroup as errors:
        return _first(errors)
    except Exception as error:
        return error


def _first(error: Exception) -> Exception:
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


async def _rehearsed(
    group: GroupHandle, held: Mapping[str, TokenProfile], sizes: Mapping[str, tuple[int, int]], seconds: float,
    gap: float, clock: Callable[[], float],
) -> _Shown:  # fmt: skip
    """One group's requests for `seconds`, a mean of `gap` apart; then a pipeline's crowds."""
    rng, models = random.Random(0), list(held)
    pipelines = [model for model in models if _is_pipeline(held[model])]
    await _warm(group, models, sizes, rng, clock, _MOST_WARMING if pipelines else 1)
    began, tasks, at = clock(), [], rng.expovariate(1 / gap)

    async def asked(job: Job) -> _Asked:
        start = clock()
        await _whole(group, job)
        prompt, tokens = sizes[job.model]
        return _Asked(start - began, TokenAsk(job.model, prompt, tokens), clock() - start)

    async with asyncio.TaskGroup() as traffic:
        while at < seconds or len(tasks) < _LEAST:
            await asyncio.sleep(began + at - clock())
            tasks.append(traffic.create_task(asked(_job(models[len(tasks) % len(models)], sizes, rng))))
            at += rng.expovariate(1 / gap)
    shown = _Shown(sorted((task.result() for task in tasks), key=lambda one: one.at), [])
    for model in pipelines * _TIMES:
        for count in _CROWDS:
            shown.crowds.append((model, count, await _crowd(group, [model], sizes, rng, clock, count)))
    return shown


async def _warm(
    group: GroupHandle, models: Sequence[str], sizes: Mapping[str, tuple[int, int]], rng: random.Random,
    clock: Callable[[], float], most: int,
) -> None:  # fmt: skip
    """Crowds until one is no faster than those before it, `most` at most."""
    fastest = math.inf
    for _ in range(most):
        seconds = await _crowd(group, models, sizes, rng, clock)
        if seconds > fastest * (1 - _WARM):
            return
        fastest = seconds


async def _crowd(
    group: GroupHandle, models: Sequence[str], sizes: Mapping[str, tuple[int, int]], rng: random.Random,
    clock: Callable[[], float], count: int = _REQUESTS,
) -> float:  # fmt: skip
    """Seconds of `count` requests for each model, all at once, to the end of the last one."""
    start = clock()
    async with asyncio.TaskGroup() as crowd:
        for model in (model for model in models for _ in range(count)):
            crowd.create_task(_whole(group, _job(model, sizes, rng)))
    return clock() - start


def _job(model: str, sizes: Mapping[str, tuple[int, int]], rng: random.Random) -> Job:
    """A request, no two alike: what a prefix cache knows is not read."""
    prompt, tokens = sizes[model]
    params = SamplingParams(temperature=0.0, max_tokens=tokens, min_tokens=tokens, ignore_eos=True)
    return Job(f"rehearsal-{rng.getrandbits(64):x}", model, tuple(rng.choices(_IDS, k=prompt)), params=params)


async def _whole(group: GroupHandle, job: Job) -> None:
    try:
        async for _ in group.generate(job):
            pass
    except asyncio.CancelledError:
        with suppress(Exception):  # a group that is gone has nothing left to end
            await group.abort(job)
        raise


def _is_pipeline(profile: TokenProfile) -> bool:
    return profile.stages > 1


def _gap(held: Mapping[str, TokenProfile], sizes: Mapping[str, tuple[int, int]]) -> float:
    """Mean seconds between requests."""
    if not held:
        return 0.0
    asks = [TokenAsk(model, *sizes[model]) for model in held for _ in range(_REQUESTS)]
    return max(_seconds(held, [(0.0, ask) for ask in asks], 1.0)) / len(asks) / _LOAD


def _corrected(
    held: Mapping[str, TokenProfile], shown: _Shown, sizes: Mapping[str, tuple[int, int]], overhead: float
) -> dict[str, TokenProfile]:
    """Profiles with the overlap, and at the speed, that a group showed."""
    if not held:
        return {}
    if shown.crowds:
        alone = _late(held, [one for one in shown.crowds if one[1] == 1], sizes, overhead, 1.0)
        crowds = [one for one in shown.crowds if one[1] > 1]
        held = _overlapping(held, crowds, sizes, overhead, min(max(alone, 1 / _MOST), _MOST))
    speed = _speed(held, shown.asked, overhead)
    return {name: profile.scaled(speed) for name, profile in held.items()}


def _overlapping(
    held: Mapping[str, TokenProfile], crowds: Sequence[tuple[str, int, float]], sizes: Mapping[str, tuple[int, int]],
    overhead: float, speed: float,
) -> dict[str, TokenProfile]:  # fmt: skip
    """Profiles whose passes go by at once as far as crowds showed, at most as far as was measured. By halving."""
    low, high = 0.0, 1.0
    for _ in range(12):
        tried = (low + high) / 2
        is_slower = _late(_with_overlap(held, tried), crowds, sizes, overhead, speed) > 1
        low, high = (low, tried) if is_slower else (tried, high)
    return _with_overlap(held, high)


def _late(
    held: Mapping[str, TokenProfile], crowds: Sequence[tuple[str, int, float]], sizes: Mapping[str, tuple[int, int]],
    overhead: float, speed: float,
) -> float:  # fmt: skip
    """Median of crowds' seconds over the rule's at that speed."""
    told = {
        (model, count): max(_seconds(held, [(0.0, TokenAsk(model, *sizes[model]))] * count, speed))
        for model, count, _ in crowds
    }
    return median((seconds - overhead) / told[model, count] for model, count, seconds in crowds)


def _with_overlap(held: Mapping[str, TokenProfile], share: float) -> dict[str, TokenProfile]:
    """Profiles with so much of their overlap: 0 is one pass at a time, 1 what they have."""
    found = {}
    for name, one in held.items():
        whole = [one.overlap or one.stages, one.prefill_overlap or one.stages]
        decodes, reads = (1 + share * (overlap - 1) for overlap in whole)
        found[name] = replace(one, overlap=decodes, prefill_overlap=reads) if _is_pipeline(one) else one
    return found


def _speed(held: Mapping[str, TokenProfile], asked: Sequence[_Asked], overhead: float) -> float:
    """By halving: the rule's seconds grow with it."""
    requests, low, high = [(one.at, one.ask) for one in asked], 1 / _MOST, _MOST
    for _ in range(20):
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
