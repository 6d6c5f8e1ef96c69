"""`over_types`: a placement on devices of several types, each with speeds and memory of its own.

A group's devices are of one type. The types are planned one after the other, each as a cluster of its own, for the
requests that those before it did not answer in time; every order of the types is tried. Then single replicas are added
wherever that helps. The order matters: who comes first serves what fits it best, the last gets what is left.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.case import Case
from paceline.placement.cluster import DeviceType
from paceline.placement.placement import Group, Placement, group_mem
from paceline.placement.profile import ModelProfile, ParallelConfig, Stages
from paceline.placement.search.facts import Facts
from paceline.placement.search.goal import Goal
from paceline.placement.search.search import Groups, Score
from paceline.placement.simulator import Evaluator
from paceline.placement.simulator.token_evaluator import TokenEvaluator
from paceline.placement.workload import Workload

MOST_ORDERED = 3
"""Types of which every order is tried; of more, those from the largest memory down and up."""

Planned = Callable[[Case], Groups]
"""Plans a case of one type of devices."""


def over_types(case: Case, planned: Planned, is_over: Callable[[], bool]) -> Groups:
    """The best groups found on all types of `case`.

    Args:
        planned: plans each type for some of the requests; empty where it finds nothing.
        is_over: asked before each further step; True ends the search with what there is.
    """
    search = _Types(case, planned)
    for order in _orders(case.cluster.types):
        search.fill(order)
        if is_over():
            return search.best
    search.top_up(is_over)
    return search.best


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


class _Types:
    def __init__(self, case: Case, planned: Planned) -> None:
        self._case, self._planned = case, planned
        self._evaluator = _evaluator(case)
        self._goal = Goal.of(case, self._evaluator.requests_of)
        self.best: Groups = ()
        self._best_score = Score(-1.0, 0.0)

    def fill(self, order: tuple[DeviceType, ...]) -> None:
        """Plan one type after the other for what the ones before it leave; all requests where these leave none."""
        groups: Groups = ()
        everything = self._evaluator.workload
        for device in order:
            left = self._unserved(groups) if groups else everything
            groups += self._on(device, left if left.num_requests else everything)
        self._offer(groups)

    def top_up(self, is_over: Callable[[], bool]) -> None:
        """Add replicas one by one, of the models with most requests that are not in time first, while that helps."""
        helped = True
        while helped and not is_over():
            helped = False
            missed = self._evaluator.score(Placement(self.best)).unserved
            for model in np.argsort(-missed, kind="stable").tolist():
                for g, group in enumerate(self.best):
                    if is_over():
                        return
                    if self._has_room(group, model):
                        helped |= self._offer((*self.best[:g], group.with_model(model), *self.best[g + 1 :]))

    def _on(self, device: DeviceType, workload: Workload) -> Groups:
        """Groups on one type, with the case's own numbers of models."""
        kept = _models_on(self._case, device)
        if not kept:
            return ()
        sub = only(self._case, device, workload)
        if not sub.workload.num_requests:
            return ()
        return tuple(
            Group(replace(group.parallel, device=device.name), tuple(kept[m] for m in group.models))
            for group in self._planned(sub)
        )

    def _unserved(self, groups: Groups) -> Workload:
        result = self._evaluator.simulate(Placement(groups), keep_latencies=True)
        assert result.routes is not None
        missed, whole = result.routes < 0, self._evaluator.workload
        lengths = [None if each is None else each[missed] for each in (whole.prompt_tokens, whole.output_tokens)]
        return Workload(whole.times[missed], whole.models[missed], *lengths)

    def _has_room(self, group: Group, model: int) -> bool:
        case, split = self._case, group.parallel
        if model in group.models or split not in case.profile_of(model).entries:
            return False
        fullest = max(group_mem(group.with_model(model), case.models, case.profiles))
        in_time = self._evaluator.lone_seconds(model, split) <= float(np.float32(case.models[model].slo))
        return fullest <= case.cluster.part(split.device).mem_budget and in_time

    def _offer(self, groups: Groups) -> bool:
        """Whether these are the best so far."""
        found = self._evaluator.score(Placement(groups))
        served = float(found.num_served) if self._goal is None else self._goal.worth(found.served)
        score = Score(served, -found.mean_latency_served)
        if score > self._best_score:
            self.best, self._best_score = groups, score
            return True
        return False


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
