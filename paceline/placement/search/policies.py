"""The policies by name: what `--policy` takes."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

from paceline.errors import InvalidParameter
from paceline.placement.search.annealing import anneal
from paceline.placement.search.baselines import Window, clockwork, equal_replicas, greedy_in_fixed_groups, round_robin
from paceline.placement.search.exact import count_placements, enumerate_all
from paceline.placement.search.greedy import beam_greedy
from paceline.placement.search.large import plan_large
from paceline.placement.search.partitions import uniform_skeletons
from paceline.placement.search.pools import one_pool, separate_pools
from paceline.placement.search.replanning import replan
from paceline.placement.search.replication import replicate, replicate_by_beam
from paceline.placement.search.search import LARGE, Groups, Search, empty_groups

Policy = Callable[[Search], object]
"""Tries placements on a `Search`, which keeps the best of them."""

AUTO_PLACEMENTS = 500
"""Up to this number of placements `auto` enumerates all of them, which takes no longer than a search."""


def auto(search: Search) -> None:
    """Enumeration where it is as quick as a search, in batches where the cluster is large, annealing otherwise.

    With a time budget, round robin is tried before anything else, to its end: whatever the budget, nothing is worse.
    """
    facts = search.facts
    if facts.num_models * facts.num_devices >= LARGE:
        plan_large(search)
        return
    if search.time_budget is not None:
        search.step = "round robin"
        with suppress(InvalidParameter):  # no model can be served from a pipeline without tensor parallelism
            search.without_limit(round_robin)
    if count_placements(facts) <= AUTO_PLACEMENTS:
        enumerate_all(search)
    else:
        anneal(search)


def search_by_beam(search: Search) -> Groups:
    """Uniform groups with every addition simulated: the paper's Algorithm 1, without the shortcut of `fast`."""
    skeletons = [empty_groups(splits) for splits in uniform_skeletons(search.facts, search.facts.num_devices)]
    return max((beam_greedy(search, skeleton, search.beam_width) for skeleton in skeletons), key=search.scored)


POLICIES: dict[str, Policy] = {
    "auto": auto,
    "anneal": anneal,
    "large": plan_large,
    "exact": enumerate_all,
    "sr-greedy": replicate,
    "sr-search": replicate_by_beam,
    "sr-uniform": equal_replicas,
    "mp-greedy-2": partial(greedy_in_fixed_groups, pipeline=2),
    "mp-greedy-4": partial(greedy_in_fixed_groups, pipeline=4),
    "mp-greedy-8": partial(greedy_in_fixed_groups, pipeline=8),
    "mp-round-robin": round_robin,
    "mp-search": one_pool,
    "mp-search-sep": separate_pools,
    "mp-beam": search_by_beam,
}
"""Policies that end in one placement, by name."""

WINDOWED: dict[str, Callable[[Search, float], Iterator[Window]]] = {"clockwork++": clockwork, "replan": replan}
"""Policies with a placement for each window of so many seconds."""

BEAMS = ("sr-search", "mp-beam")
"""Policies with a beam, whose width may be chosen."""

NAMES = (*POLICIES, *WINDOWED)


def policy_named(name: str) -> Policy:
    """The policy called `name`, those with windows excepted. Raises InvalidParameter when there is none."""
    if name not in POLICIES:
        raise InvalidParameter("policy", f"there is no {name!r}", f"use one of {', '.join(NAMES)}")
    return POLICIES[name]
