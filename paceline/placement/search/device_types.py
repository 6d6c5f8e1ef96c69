"""Devices of several types: each has speeds and memory of its own, and all devices of a group are of one type.

`exact` enumerates the placements on all types together, and `auto` does where these are few. Other searches plan the
types one after the other, each as a cluster of its own, for the requests that those before it did not answer in time.
Every order of the types is tried, and single replicas are added wherever that helps. `auto` and `anneal` then change
groups of all types: the type that comes first serves all that it can, which is not always what it should.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import permutations

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.case import Case
from paceline.placement.cluster import DeviceType
from paceline.placement.placement import Group, Placement
from paceline.placement.profile import ModelProfile, ParallelConfig, Stages
from paceline.placement.search.annealing import ALWAYS, LAST_SHARE, anneal_across
from paceline.placement.search.exact import count_placements, enumerate_all
from paceline.placement.search.facts import Facts
from paceline.placement.search.large import fill_anew
from paceline.placement.search.policies import AUTO_PLACEMENTS, policy_named
from paceline.placement.search.search import LARGE, Groups, Search, TimeIsUp
from paceline.placement.simulator import Evaluator
from paceline.placement.simulator.token_evaluator import TokenEvaluator
from paceline.placement.workload import Workload

MOST_ORDERED = 3
"""Types of which every order is tried; of more, those from the largest memory down and up."""

FILLING = 0.5
"""Part of the time that planning one type after the other may take where all types are then searched together."""


def search_types(search: Search, policy: str, seed: int, effort: int | None) -> None:
    """Run `policy` on a case of several types.

    Args:
        search: of all types together.
        policy: one of `policies.POLICIES`.
        seed, effort: of the search on each type, as for `planner.plan`.

    Raises:
        InvalidParameter: the policy is none for any of the types, or there are too many placements to enumerate.
        TimeIsUp: the time budget is over.
    """
    orders = list(_orders(search.case.cluster.types))
    if policy == "auto" and search.time_budget is not None:  # whatever the budget, nothing is worse
        _InTurn(search, "mp-round-robin", seed, effort, None).fill(orders[0])
    most = len(orders) * len(orders[0])
    if policy == "exact" or (policy == "auto" and count_placements(search.facts) <= AUTO_PLACEMENTS * most):
        enumerate_all(search)
        return
    share = None if search.time_budget is None else FILLING * search.time_budget / most
    turns = _InTurn(search, policy, seed, effort, share)
    for number, order in enumerate(orders, 1):
        turns.fill(order)
        search.report(FILLING * number / len(orders))
        search.check_time()
    if not search.best and turns.refused is not None:
        raise turns.refused
    search.done_before = FILLING
    if len(search.case.cluster.types) > 1:
        _improve(search, policy)
    if turns.is_cut:
        raise TimeIsUp


def _improve(search: Search, policy: str) -> None:
    """Look at all types together from the best found so far on."""
    is_large = search.facts.num_models * search.facts.num_devices >= LARGE
    if policy == "large" or (policy == "auto" and is_large):
        fill_anew(search, search.spent + search.effort)
    elif policy in ("auto", "anneal"):
        search.within(LAST_SHARE * search.effort, top_up)
        anneal_across(search)
    else:
        top_up(search)


def top_up(search: Search) -> None:
    """Add replicas one by one, of the models with most requests that are not in time first, while that helps."""
    search.step = "replicas added"
    helped = True
    while helped:
        helped = False
        missed = search.examined(search.best).unserved
        for model in np.argsort(-missed, kind="stable").tolist():
            for g, group in enumerate(search.best):
                if search.facts.has_room(group, model):
                    before = search.best_score
                    search.scored((*search.best[:g], group.with_model(model), *search.best[g + 1 :]))
                    helped |= search.best_score > before


def unplaceable(case: Case) -> dict[int, InvalidParameter]:
    """Models that no type of devices can serve, each with the reason on the type that comes last."""
    refused: list[dict[int, InvalidParameter]] = []
    for device in case.cluster.types:
        kept = _models_on(case, device)
        here = {m: _not_profiled(case, m) for m in range(len(case.models)) if m not in kept}
        if kept:
            try:
                facts = Facts(_evaluator(only(case, device, case.workload)))
                here |= {kept[m]: why for m, why in facts.unplaceable.items()}
            except InvalidParameter as why:
                here |= dict.fromkeys(kept, why)
        refused.append(here)
    return {m: refused[-1][m] for m in refused[-1] if all(m in each for each in refused)}


def only(case: Case, device: DeviceType, workload: Workload) -> Case:
    """The models that are profiled on one type of devices, these devices, and the requests of `workload` for them."""
    kept = _models_on(case, device)
    number = np.full(len(case.models), -1, np.int32)
    number[kept] = np.arange(len(kept))
    models = tuple(case.models[m] for m in kept)
    profiles = {
        name: ModelProfile(name, {replace(split, device=""): stages for split, stages in here.items()})
        for name in {model.profile_type for model in models}
        if (here := _entries(case, name, device))
    }
    wanted = number[workload.models] >= 0
    lengths = [None if each is None else each[wanted] for each in (workload.prompt_tokens, workload.output_tokens)]
    arrivals = Workload(workload.times[wanted], number[workload.models[wanted]], *lengths)
    return replace(case, cluster=device.cluster, models=models, profiles=profiles, workload=arrivals)


class _InTurn:
    """Plans one type after the other.

    Args:
        search: of all types together; keeps the best.
        policy, seed, effort: of the search on each type. seconds: that each may take; None for no limit.
    """

    def __init__(self, search: Search, policy: str, seed: int, effort: int | None, seconds: float | None) -> None:
        self._search, self._policy = search, policy_named(policy)
        options = {"seed": seed, "effort": effort, "time_budget": seconds, "beam_width": search.beam_width}
        self._search_on = partial(Search, **options, clock=search.clock)
        self.refused: InvalidParameter | None = None
        """Why the policy is none for a type."""
        self.is_cut = False
        """Whether the time for some type was too short."""

    def fill(self, order: tuple[DeviceType, ...]) -> None:
        """Plan one type after the other for what the ones before it leave; all requests where these leave none."""
        groups: Groups = ()
        self._search.step = "one type after the other"
        try:
            for device in order:
                here = self._prepared(device, groups)
                if here is not None:
                    try:
                        self._run(here)
                    finally:  # after an interrupt too
                        groups += self._named(device, here.best)
        finally:
            self._search.without_limit(lambda search: _keep(search, groups))

    def _prepared(self, device: DeviceType, groups: Groups) -> Search | None:
        """A search on one type for what `groups` leave; None where no model can be served there."""
        everything = self._search.evaluator.workload
        for asked in (self._unserved(groups), everything) if groups else (everything,):
            here = only(self._search.case, device, asked) if _models_on(self._search.case, device) else None
            if here is None or not here.workload.num_requests:
                continue
            try:
                search = self._search_on(here)
            except InvalidParameter:
                return None
            if any(search.facts.requests_of[m] for m in search.facts.placeable):
                return search
        return None

    def _run(self, here: Search) -> None:
        try:
            self._policy(here)
        except TimeIsUp:
            self.is_cut = True
        except InvalidParameter as refused:
            self.refused = refused

    def _named(self, device: DeviceType, groups: Groups) -> Groups:
        """Groups on one type with the name of the type and the case's own numbers of models."""
        kept = _models_on(self._search.case, device)
        return tuple(
            Group(replace(group.parallel, device=device.name), tuple(kept[m] for m in group.models)) for group in groups
        )

    def _unserved(self, groups: Groups) -> Workload:
        result = self._search.evaluator.simulate(Placement(groups), keep_latencies=True)
        assert result.routes is not None
        missed, whole = result.routes < 0, self._search.evaluator.workload
        lengths = [None if each is None else each[missed] for each in (whole.prompt_tokens, whole.output_tokens)]
        return Workload(whole.times[missed], whole.models[missed], *lengths)


def _keep(search: Search, groups: Groups) -> None:
    """Score `groups`, and remember them among those that annealing may begin from."""
    search.within(ALWAYS * search.effort, lambda search: search.scored(groups))


def _orders(types: tuple[DeviceType, ...]) -> Iterator[tuple[DeviceType, ...]]:
    if len(types) <= MOST_ORDERED:
        yield from permutations(types)
        return
    down = tuple(sorted(types, key=lambda device: -device.mem_budget))
    yield from (down, down[::-1])


def _evaluator(case: Case) -> Evaluator | TokenEvaluator:
    return TokenEvaluator(case) if case.is_generated else Evaluator(case)


def _models_on(case: Case, device: DeviceType) -> list[int]:
    return [m for m, model in enumerate(case.models) if _entries(case, model.profile_type, device)]


def _entries(case: Case, name: str, device: DeviceType) -> dict[ParallelConfig, Stages]:
    return {split: stages for split, stages in case.profiles[name].entries.items() if split.device == device.name}


def _not_profiled(case: Case, model: int) -> InvalidParameter:
    spec = case.models[model]
    problem = f"{spec.profile_type!r} of model {spec.name!r} is profiled on no type of the cluster"
    return InvalidParameter("profiles", problem, "give entries with device")
