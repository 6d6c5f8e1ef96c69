"""Our own search: simulated annealing over whole placements, from the best of the paper's searches.

The paper fills one fixed set of equal groups after another. Here groups of any sizes, their splits and their replicas
change together, so a placement can keep a large pipeline for the bursts of many models beside small groups. Three
things make a change cheap to judge: only the groups that it touches are simulated again; the score it has to reach is
drawn beforehand, so that the simulation stops as soon as too many requests are lost; and no model is put where it
could not meet its deadline even alone. Effort is counted in simulated requests: a seed gives one plan on any machine.
"""

from collections.abc import Callable, Mapping
from itertools import combinations
from math import log

from paceline.errors import InvalidParameter
from paceline.placement.search.baselines import round_robin
from paceline.placement.search.bounds import Bounds
from paceline.placement.search.fast import fast_greedy
from paceline.placement.search.moves import neighbours, propose
from paceline.placement.search.partitions import buckets, lone, uneven_skeletons
from paceline.placement.search.pools import one_pool, separate_pools
from paceline.placement.search.replication import replicate
from paceline.placement.search.search import Groups, Score, Search, canonical, empty_groups

ROUNDS = ((8, 0.3), (3, 0.3), (1, 0.4))
"""Placements of different structure that are annealed in each round, and the part of the effort they share."""

HOT, COLD = 1e-3, 2.5e-5
"""Temperatures, as parts of all requests: a change that loses this share is accepted with probability 1/e."""

LATENCY_WEIGHT = 1e-4
"""Worth, as part of all requests, of a mean latency lower by that of a lone request. A tie-breaker."""

LATENCY_SHARE = 0.2
"""Part of the effort that is left when every deadline is met already, and only latency can still be gained."""

MAX_UNEVEN = 32
PROPOSAL_COST = 1000
"""What a proposed move costs in simulated requests, so that a case with few placements comes to an end."""

ALWAYS = 1e9
"""A part of the effort that never runs out: quick policies, which the result must not fall behind."""

LAST_SHARE = 0.1
"""Part of the effort that the last replicas, and the order of groups, may take each, beyond the effort."""


Start = tuple[Callable[[Search], object], float]


def anneal(search: Search) -> Groups:
    """The best placement that the effort allows; whatever the effort, never worse than one pool of uniform groups,
    selective replication or round robin."""
    end = search.spent + search.effort
    return _in_rounds(search, _starts(search, STARTS), end)


def anneal_across(search: Search) -> Groups:
    """The best placement on devices of several types, from those that a policy run by `Search.within` has found."""
    end = search.spent + search.effort
    return _in_rounds(search, _starts(search, {"uneven groups": STARTS["uneven groups"]}), end)


def _in_rounds(search: Search, found: list[Groups], end: float) -> Groups:
    """Anneal the placements `found`, ever fewer and longer, until `end` of `search.spent`."""
    if not found:  # none of the models that can be placed has requests
        return search.best
    left = max(end - search.spent, 1)
    if search.case.has_slo and search.best_score.served == search.facts.most:
        left *= LATENCY_SHARE
    for number, (kept, share) in enumerate(ROUNDS, 1):
        search.step = f"annealing, round {number}"
        found = found[:kept]
        begin, each = search.spent, share * left / len(found)
        found = [_run(search, groups, HOT / number, begin + each * (i + 1)) for i, groups in enumerate(found)]
        found.sort(key=search.scored, reverse=True)
    descend(search, search.best)
    return order_groups(search, search.best)


def descend(search: Search, groups: Groups) -> Groups:
    """Go to a better neighbour until there is none: no single replica added, removed or exchanged would still help."""
    search.step = "last replicas"
    limit, untried = search.spent + LAST_SHARE * search.effort, neighbours(search.facts, groups)
    while search.spent < limit:
        candidate = next(untried, None)
        if candidate is None:
            break
        search.spent += PROPOSAL_COST
        here = search.scored(groups)
        score = search.score(candidate, at_least=here.served)
        if score is not None and score > here:
            groups, untried = candidate, neighbours(search.facts, candidate)
    return groups


def order_groups(search: Search, groups: Groups) -> Groups:
    """Groups in a better order, pairs swapped while it helps: between equally free groups the first is chosen."""
    search.step = "order of groups"
    limit, improved = search.spent + LAST_SHARE * search.effort, True
    while improved:
        improved = False
        for a, b in combinations(range(len(groups)), 2):
            if search.spent > limit:
                return groups
            swapped = list(groups)
            swapped[a], swapped[b] = groups[b], groups[a]
            if search.scored(swapped) > search.scored(groups):
                groups, improved = tuple(swapped), True
    return groups


def _starts(search: Search, policies: Mapping[str, Start]) -> list[Groups]:
    """The best placements of `policies` and of those before them, no two made of the same splits."""
    for step, (policy, share) in policies.items():
        search.step = step
        try:
            search.within(share * search.effort, policy)
        except InvalidParameter:  # no model can be served from a single device: that policy is none for this case
            continue
    ranked = sorted(search.best_of_splits.values(), key=lambda pair: pair[0], reverse=True)
    return [canonical(groups) for _, groups in ranked if groups][: ROUNDS[0][0]]


def _fill_uneven(search: Search) -> None:
    """Groups of unlike sizes, filled by the fast greedy selection, those with the highest bounds first."""
    bounds = Bounds(search.facts)
    for splits in sorted(uneven_skeletons(search, MAX_UNEVEN), key=bounds.served, reverse=True):
        if bounds.served(splits) < search.best_score.served:
            break
        fast_greedy(search, empty_groups(splits))


STARTS: dict[str, Start] = {
    "uniform groups": (one_pool, ALWAYS),
    "selective replication": (replicate, ALWAYS),
    "round robin": (round_robin, ALWAYS),
    "separate pools": (separate_pools, 0.4),
    "uneven groups": (_fill_uneven, 0.15),
}
"""Where placements to start from come from, and the part of the effort that each may take."""


def _run(search: Search, groups: Groups, hot: float, limit: float) -> Groups:
    """One run of annealing, from temperature `hot` down to `COLD`, until `limit` requests were simulated.

    Args:
        search: scores placements and counts simulated requests.
        groups: where to start.
        hot: temperature to start at, as part of all requests.
        limit: of `search.spent`.

    Returns:
        The best placement of the run.
    """
    energy, num_requests = _Energy(search, groups), search.facts.num_requests
    current = best = groups
    level = best_level = energy(search.scored(groups))
    begin = search.spent
    while search.spent < limit:
        done = (search.spent - begin) / (limit - begin)
        temperature = num_requests * hot * (COLD / hot) ** done
        at_least = level + temperature * log(1 - search.random.random())
        search.spent += PROPOSAL_COST
        candidate = propose(search.facts, search.random, current)
        candidate = None if candidate is None else canonical(candidate)
        score = None if candidate is None else search.score(candidate, at_least)
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
        weight = 1.0 if search.scored(start).served == facts.most else LATENCY_WEIGHT
        work = sum(facts.requests_of[m] * lone(facts, m) for bucket in buckets(facts) for m in bucket)
        self._per_second = weight * facts.num_requests**2 / max(work, 1e-12)

    def __call__(self, score: Score) -> float:
        return score.served + self._per_second * score.negative_mean_latency
