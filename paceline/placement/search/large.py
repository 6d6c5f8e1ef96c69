"""Large clusters: uniform groups filled in batches, then parts of the best placement torn down and filled anew.

With hundreds of devices every model shares groups with every other, so a change costs a simulation of all requests;
what counts is how much a simulation brings. One that tells of all models and groups at once can place a hundred
replicas. Smaller cases are better served by `annealing.py`, whose changes touch few requests.
"""

from collections.abc import Sequence
from contextlib import suppress

from paceline.errors import InvalidParameter
from paceline.placement.placement import Group
from paceline.placement.profile import ParallelConfig
from paceline.placement.search.baselines import equal_replicas, round_robin
from paceline.placement.search.batched import batch_greedy
from paceline.placement.search.partitions import draw_splits, uniform_skeletons
from paceline.placement.search.search import Groups, Search, empty_groups

COARSE, FINE = 2, 32
"""Models per batch are all models over this, first and later."""

TORN_DOWN = 16
"""One of so many groups is torn down at once, but at least two."""

KEPT = 0.5
"""Chance that a model stays in a group that is torn down, where the group keeps its split."""


def plan_large(search: Search) -> Groups:
    """The best placement that time and effort allow; never worse than round robin, whatever the time."""
    search.step = "round robin"
    with suppress(InvalidParameter):  # no pipeline without tensor parallelism can serve: there is no round robin
        search.without_limit(round_robin)
    end, facts = search.spent + search.effort, search.facts
    for name, parts in (("coarse", COARSE), ("fine", FINE)):
        search.step = f"uniform groups in {name} batches"
        for splits in _promising(search):
            batch_greedy(search, empty_groups(splits), max(1, facts.num_models // parts))
    if ParallelConfig(1, 1) in facts.splits:
        search.step = "equal replicas"
        equal_replicas(search)
    return fill_anew(search, end)


def fill_anew(search: Search, end: float) -> Groups:
    """Tear down parts of the best placement and fill them again, until `end` of `search.spent`."""
    facts, search.step = search.facts, "parts filled anew"
    while search.best and search.spent < end and search.best_score.served < facts.most:
        batch_greedy(search, _torn_down(search, search.best), max(1, facts.num_models // FINE))
    return search.best


def _promising(search: Search) -> list[tuple[ParallelConfig, ...]]:
    """Uniform groups: of all splits at first, the largest before others; then those of the best placement's splits and
    of the next larger and smaller ones."""
    facts = search.facts
    every = sorted(uniform_skeletons(facts, facts.num_devices), key=lambda s: -s[0].num_devices)
    if "coarse" in search.step:
        return every
    best = search.best[0].parallel.num_devices if search.best else 1
    return [splits for splits in every if splits[0].num_devices in (best // 2, best, 2 * best)]


def _torn_down(search: Search, groups: Groups) -> Groups:
    """`groups` with some of them emptied: half of their models, or all and their devices split otherwise."""
    facts, random = search.facts, search.random
    count = min(len(groups), max(2, len(groups) // TORN_DOWN))
    chosen = set(random.sample(range(len(groups)), count))
    kept = [group for g, group in enumerate(groups) if g not in chosen]
    old = [groups[g] for g in sorted(chosen)]
    if random.random() < 0.5:
        return (*kept, *(_thinned(search, group) for group in old))
    return (*kept, *empty_groups(draw_splits(facts, random, facts.free_beside(kept))))


def _thinned(search: Search, group: Group) -> Group:
    stay: Sequence[int] = [model for model in group.models if search.random.random() < KEPT]
    return Group(group.parallel, tuple(stay))
