"""Our own search: simulated annealing over whole placements, from the best of the paper's searches.

The paper fills one fixed set of equal groups after another. Here groups of any sizes, their splits and their replicas
change together, so a placement can keep a large pipeline for the bursts of many models beside small groups. Three
things make a change cheap to judge: only the groups that it touches are simulated again; the score it has to reach is
drawn beforehand, so that the simulation stops as soon as too many requests are lost; and no model is put where it
could not meet its deadline even alone. Effort is counted in simulated requests: a seed gives one plan on any machine.
"""

from collections.abc import Callable
from itertools import combinations
from math import log

from paceline.placement.search.baselines import round_robin
from paceline.placement.search.bounds import Bounds
from paceline.placement.search.fast import fast_greedy
from paceline.placement.search.moves import propose
from paceline.placement.search.partitions import buckets, lone, uneven_skeletons
from paceline.placement.search.pools import one_pool, separate_pools
from paceline.placement.search.replication import replicate
from paceline.placement.search.trials import Groups, Score, Search, canonical, empty_groups

ROUNDS = ((8, 0.3), (3, 0.3), (1, 0.4))
"""Placements of different structure that are annealed in each round, and the part of the effort they share."""

HOT, COLD = 1e-3, 2.5e-5
"""Temperatures, as parts of all requests: a change that loses this share is accepted with probability 1/e."""

LATENCY_WEIGHT = 1e-4
"""Worth, as part of all requests, of a mean latency lower by that of a lone request. A tie-breaker."""

LATENCY_SHARE = 0.2
"""Part of the effort that is left when every deadline is met already, and only latency can still be gained."""

MAX_UNEVEN = 32
MAX_IDLE = 5000
"""Moves in a row to placements known already, after which a run ends: the case has too few placements to go on."""

START_SHARE, ORDER_SHARE = 0.25, 0.1
"""Parts of the effort that each way to start, and the final ordering, may take."""


def anneal(search: Search) -> Groups:
    """The best placement that the effort allows, at least as good as the paper's searches from which it starts."""
    end = search.simulated_requests + search.effort
    found = _starts(search)
    left = max(end - search.simulated_requests, 1)
    if search.case.has_slo and search.best_score.served == search.facts.num_requests:
        left *= LATENCY_SHARE
    for number, (kept, share) in enumerate(ROUNDS, 1):
        search.step = f"annealing, round {number}"
        found = found[:kept]
        begin, each = search.simulated_requests, share * left / len(found)
        found = [_run(search, groups, HOT / number, begin + each * (i + 1)) for i, groups in enumerate(found)]
        found.sort(key=search.scored, reverse=True)
    return order_groups(search, search.best)


def order_groups(search: Search, groups: Groups) -> Groups:
    """Groups in a better order, pairs swapped while it helps: between equally free groups the first is chosen."""
    search.step = "order of groups"
    limit, improved = search.simulated_requests + ORDER_SHARE * search.effort, True
    while improved:
        improved = False
        for a, b in combinations(range(len(groups)), 2):
            if search.simulated_requests > limit:
                return groups
            swapped = list(groups)
            swapped[a], swapped[b] = groups[b], groups[a]
            if search.scored(swapped) > search.scored(groups):
                groups, improved = tuple(swapped), True
    return groups


def _starts(search: Search) -> list[Groups]:
    """The best placements of the paper's searches and of uneven groups, no two made of the same splits."""
    for step, policy in STARTS.items():
        search.step = step
        search.within(START_SHARE * search.effort, policy)
    ranked = sorted(search.best_of_splits.values(), key=lambda pair: pair[0], reverse=True)
    return [canonical(groups) for _, groups in ranked[: ROUNDS[0][0]]]


def _fill_uneven(search: Search) -> None:
    """Groups of unlike sizes, filled by the fast greedy selection, those with the highest bounds first."""
    bounds = Bounds(search.facts)
    for splits in sorted(uneven_skeletons(search, MAX_UNEVEN), key=bounds.served, reverse=True):
        if bounds.served(splits) < search.best_score.served:
            break
        fast_greedy(search, empty_groups(splits))


STARTS: dict[str, Callable[[Search], object]] = {
    "uniform groups": one_pool,
    "selective replication": replicate,
    "round robin": round_robin,
    "separate pools": separate_pools,
    "uneven groups": _fill_uneven,
}


def _run(search: Search, groups: Groups, hot: float, limit: float) -> Groups:
    """One run of annealing, from temperature `hot` down to `COLD`, until `limit` requests were simulated.

    Args:
        search: scores placements and counts simulated requests.
        groups: where to start.
        hot: temperature to start at, as part of all requests.
        limit: of `search.simulated_requests`.

    Returns:
        The best placement of the run.
    """
    energy, num_requests = _Energy(search, groups), search.facts.num_requests
    current, best, idle = groups, groups, 0
    level, best_level, begin = energy(search.scored(groups)), energy(search.scored(groups)), search.simulated_requests
    while search.simulated_requests < limit and idle < MAX_IDLE:
        done = (search.simulated_requests - begin) / (limit - begin)
        temperature = num_requests * hot * (COLD / hot) ** done
        at_least = level + temperature * log(1 - search.random.random())
        candidate, before = propose(search.facts, search.random, current), search.simulated_requests
        candidate = None if candidate is None else canonical(candidate)
        score = None if candidate is None else search.score(candidate, at_least)
        idle = idle + 1 if search.simulated_requests == before else 0
        if candidate is None or score is None or energy(score) < at_least:
            continue
        current, level = candidate, energy(score)
        if level > best_level:
            best, best_level = current, level
    return best


class _Energy:
    """A score as one number of requests: those served, less a trifle for latency.

    Where all deadlines are met from the start, or there are none, latency is what is left to gain, and weighs in full.
    """

    def __init__(self, search: Search, start: Groups) -> None:
        facts = search.facts
        weight = 1.0 if search.scored(start).served == facts.num_requests else LATENCY_WEIGHT
        work = sum(facts.requests_of[m] * lone(facts, m) for bucket in buckets(facts) for m in bucket)
        self._per_second = weight * facts.num_requests**2 / max(work, 1e-12)

    def __call__(self, score: Score) -> float:
        return score.served + self._per_second * score.negative_mean_latency
