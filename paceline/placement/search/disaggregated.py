"""`separate_roles`: would some devices that only read prompts, and others that only generate, serve more in time?

Every way to share the devices out between two pools of equal groups is played (Zhong et al. 2024, DistServe, section 4,
whose search is the same for one model). Not for plans that our engines run: these read and generate in every group.
"""

from dataclasses import dataclass, replace

from paceline.errors import InvalidParameter
from paceline.placement.case import Case
from paceline.placement.placement import Group, Placement
from paceline.placement.profile import ParallelConfig
from paceline.placement.search.facts import Facts
from paceline.placement.search.partitions import Splits, uniform_skeletons
from paceline.placement.simulator.token_evaluator import TokenEvaluator
from paceline.placement.tokens.pools import Pools, simulate_pools

MOST_SHARES = 8
"""Ways to share the devices out that are tried, evenly spread."""


@dataclass(frozen=True)
class SeparateRoles:
    """The best two pools found.

    Attributes:
        prefill, decode: groups that read prompts, and that generate.
        slo_attainment: of the case's requests. tried: pairs of pools that were played.
    """

    prefill: Placement
    decode: Placement
    slo_attainment: float
    tried: int


def separate_roles(case: Case, link_bandwidth: float) -> SeparateRoles:
    """The best of two pools of equal groups, for all ways to split models and to share out the devices.

    Args:
        link_bandwidth: bytes per second between two groups, over which keys and values move.

    Raises:
        InvalidParameter: a case whose requests are one pass each, fewer than two devices, no bandwidth, or a model that
            fits no group.
    """
    if not case.is_generated:
        raise InvalidParameter("pools", "the case's requests are one pass each", "give profiles with tokens")
    if case.cluster.num_devices < 2:
        raise InvalidParameter("pools", "the cluster has one device", "give it two or more")
    if not 0 < link_bandwidth < float("inf"):
        raise InvalidParameter("pools", f"{link_bandwidth}", "give the bytes per second of a link, above 0")
    evaluator = TokenEvaluator(case)
    facts, devices = Facts(evaluator), case.cluster.num_devices
    step = max(1, (devices - 1) // MOST_SHARES)
    found, tried = None, 0
    for count in range(step, devices, step):
        for prefill in uniform_skeletons(facts, count):
            for decode in uniform_skeletons(facts, devices - count):
                pair = filled(facts, prefill), filled(facts, decode)
                reached, tried = _attainment(evaluator, *pair, link_bandwidth), tried + 1
                if found is None or reached > found.slo_attainment:
                    found = SeparateRoles(*pair, reached, tried)
    if found is None:
        raise InvalidParameter("pools", "no model fits a group", "give devices with more memory")
    return replace(found, tried=tried)


def filled(facts: Facts, splits: Splits) -> Placement:
    """Groups of these splits with models dealt in turn, those with most work first, until none has room for another."""
    groups = [Group(split) for split in splits]
    order = sorted(range(facts.num_models), key=lambda m: -facts.requests_of[m] * _work(facts, m))
    is_growing = True
    while is_growing:
        is_growing = False
        for model in order:
            fitting = [g for g, group in enumerate(groups) if facts.has_room(group, model)]
            if fitting:
                at = min(fitting, key=lambda g: (len(groups[g].models), g))
                groups[at], is_growing = groups[at].with_model(model), True
    return Placement(tuple(groups))


def _work(facts: Facts, model: int) -> float:
    splits = [split for split in facts.splits if facts.is_useful(model, split)]
    return min((facts.work_seconds(model, split) for split in splits), default=0.0)


def _attainment(evaluator: TokenEvaluator, prefill: Placement, decode: Placement, link_bandwidth: float) -> float:
    case = evaluator.case
    reads, writes = ([evaluator.profiles_of(group) for group in pool.groups] for pool in (prefill, decode))
    moves = {
        case.models[m].name: _bytes_per_token(case, m, group.parallel) / link_bandwidth
        for group in prefill.groups for m in group.models
    }  # fmt: skip
    found = simulate_pools(
        evaluator.requests, evaluator.specs, Pools(reads, writes, moves), evaluator.case.rules.overhead
    )
    return float(found.in_time.mean())


def _bytes_per_token(case: Case, model: int, split: ParallelConfig) -> float:
    """Keys and values of a token, on all devices of a group together."""
    return case.profile_of(model).stages(split).kv_bytes * split.num_devices
