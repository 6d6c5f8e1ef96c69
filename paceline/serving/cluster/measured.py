"""`measured`: add pass costs to a plan, measured by its engines.

All groups are measured at the same time, since groups on one machine share its processors and memory bandwidth, as they
do in operation. What cannot be measured is learned from answers.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from paceline.config import EngineConfig, from_mapping
from paceline.placement.tokens import TokenProfile
from paceline.serving.cluster.events import EventLog
from paceline.serving.cluster.group import GroupHandle
from paceline.serving.cluster.plan import ClusterPlan
from paceline.serving.cluster.rehearsal import MOST, USUAL, rehearse
from paceline.serving.models.model_spec import ModelSpec


async def measured(
    plan: ClusterPlan, groups: Sequence[GroupHandle], timeout: float, clock: Callable[[], float], events: EventLog
) -> ClusterPlan:
    """`plan` with pass profiles: engines' step costs, corrected by the latency of answers through whole groups.

    It stays as it is where no engine can measure them.

    Args:
        timeout: in seconds, for the engines' measurements, and again for the answers.
        clock: seconds, monotonic.
        events: log for groups that cannot be measured.
    """
    found = await asyncio.gather(*(_profiles_of(each, timeout, g, events) for g, each in enumerate(groups)))
    held = [
        {spec.name: by_name[spec.name] for spec in plan.held_by(g) if spec.name in by_name}
        for g, by_name in enumerate(found)
    ]
    if not any(held):
        return plan
    for g, shown in enumerate(await rehearse(groups, held, clock, _lengths(plan), plan.overhead, timeout)):
        if isinstance(shown, Exception):
            events.record("not_rehearsed", group=g, reason=f"{type(shown).__name__}: {shown}")
        else:
            held[g] = shown
    return replace(
        plan,
        pass_profiles=tuple(
            tuple(profiles.get(spec.name) for spec in plan.held_by(g)) for g, profiles in enumerate(held)
        ),
    )


async def _profiles_of(group: GroupHandle, timeout: float, number: int, events: EventLog) -> Mapping[str, TokenProfile]:
    """Profiles by model; empty where the engines cannot measure them."""
    try:
        async with asyncio.timeout(timeout):
            return await group.pass_profiles()
    except Exception as error:
        events.record("group_not_measured", group=number, reason=f"{type(error).__name__}: {error}")
        return {}


def _lengths(plan: ClusterPlan) -> dict[str, tuple[int, int]]:
    """(prompt tokens, answer tokens) of each model's trial requests: those of the plan, up to a limit."""
    return {spec.name: _length(spec) for spec in plan.models}


def _length(spec: ModelSpec) -> tuple[int, int]:
    most = from_mapping(EngineConfig, spec.engine).max_model_len or sum(MOST)
    tokens = max(1, min(spec.num_tokens or USUAL[1], MOST[1], most // 2))
    return max(1, min(spec.prompt_tokens or USUAL[0], MOST[0], most - tokens)), tokens
