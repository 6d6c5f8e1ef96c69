"""`rehearse`: measure the latency of answers through whole groups, relative to that predicted from engine steps.

Step costs are measured for one model at a time, by the engine alone. Overheads depend on the traffic: streams, Ray's
threads and processes, engines woken for one request, processor caches that hold the weights of one model at best.
Therefore synthetic traffic is sent to all groups at once before a server opens. Not for step costs
(`engine/setup/pass_costs.py`).
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
from paceline.serving.models.job import Job
from paceline.types import SamplingParams

_REQUESTS = 4
"""Concurrent warm-up requests for each model, which are not counted."""
_CROWDS, _TIMES = (1, 2, 4, 8), 2
"""Sizes of bursts of concurrent requests for one model of a pipeline, and their repetitions. Compared with a single
request, bursts show how far passes overlap. There are several sizes because the costs in between are interpolated."""
_WARM, _MOST_WARMING = 0.05, 12
"""A pipeline is warm once a burst is not faster than all before by this fraction; and the largest number of warm-up
bursts. Observed with two stages in torch: 1.58 times the predicted seconds at first, 1.34 times after ten."""
_LOAD = 0.6
"""Load of the traffic, relative to serving its requests one after the other, so that some requests overlap."""
_SECONDS, _PIPELINE_SECONDS, _LEAST = 8.0, 30.0, 12
"""Duration of the traffic in seconds, the same with a pipeline among the groups, and the smallest number of requests
per group. A pipeline's stages compete with its clients for processors, and its speed varies by a fifth between quarters
of a minute."""
USUAL = 16, 24
"""Default tokens of prompts and answers."""
MOST = 256, 24
"""Largest tokens of prompts and answers, because all groups wait for them."""
_IDS = range(1, 200)
"""Token ids of prompts; they exist in every vocabulary."""
_MOST = 2.0
"""Limit on the factor between measured and predicted times; larger ones are taken as disturbances."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """An answered request: its arrival in seconds from the start, and its latency in seconds."""

    at: float
    ask: TokenAsk
    seconds: float


@dataclass(frozen=True, slots=True)
class _Shown:
    """Measurements of a group: randomly arriving requests, in order; for a pipeline also (model, requests, seconds) of
    bursts for one model."""

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
    """The corrected `profiles` of every group, by model; or the error with which a group's answers failed.

    Requests arrive randomly at all groups at once. A group's speed factor is the one at which the simulator's rule
    (`placement/tokens`) predicts a longer latency than measured for half of them, and a shorter one for the other half.
    The `overlap` of a pipeline's passes is estimated from bursts against single requests, since concurrently timed
    passes had no streams between them.

    Args:
        clock: seconds, monotonic.
        lengths: expected (prompt, answer) tokens by model; `USUAL` for missing ones.
        overhead: seconds between the last token and the answer.
        timeout: in seconds, for all requests of a group.
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
    """The measurements of a group, or its error or timeout as a value, so that other groups are not affected."""
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
    """Send one group requests for `seconds` at mean intervals of `gap`; then bursts, if it is a pipeline."""
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
    """Send bursts until one is no faster than those before, at most `most`."""
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
    """A request with a random prompt, so that the prefix cache does not help."""
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
    """Profiles corrected by a group's measured overlap and speed."""
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
    """Profiles with the overlap that fits the bursts, at most the measured one; found by bisection."""
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
    """Profiles with the fraction `share` of their overlap: 0 is one pass at a time, 1 is unchanged."""
    found = {}
    for name, one in held.items():
        whole = [one.overlap or one.stages, one.prefill_overlap or one.stages]
        decodes, reads = (1 + share * (overlap - 1) for overlap in whole)
        found[name] = replace(one, overlap=decodes, prefill_overlap=reads) if _is_pipeline(one) else one
    return found


def _speed(held: Mapping[str, TokenProfile], asked: Sequence[_Asked], overhead: float) -> float:
    """The speed factor that fits the measured latencies, by bisection, since predictions grow with it."""
    requests, low, high = [(one.at, one.ask) for one in asked], 1 / _MOST, _MOST
    for _ in range(20):
        tried = math.sqrt(low * high)
        told = zip(asked, _seconds(held, requests, tried), strict=True)
        is_slower = median((one.seconds - overhead) / rule for one, rule in told) > 1
        low, high = (tried, high) if is_slower else (low, tried)
    return math.sqrt(low * high)


def _seconds(held: Mapping[str, TokenProfile], requests: Sequence[tuple[float, TokenAsk]], speed: float) -> list[float]:
    """Predicted latency in seconds of each request (in order of arrival) at that speed factor."""
    group, ended = TokenGroup(held), {}
    group.scale = speed
    for number, (at, ask) in enumerate(requests):
        ended |= {done: end for done, _, end in group.advance(at)}
        group.join(number, ask, at, ask.expected_tokens)
    ended |= {done: end for done, _, end in group.advance(1e12)}
    return [ended[number] - at for number, (at, _) in enumerate(requests)]
