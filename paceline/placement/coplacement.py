"""Placing targets and drafters together: whether to draft for each model, and on which devices its drafter runs.

Each model with a drafter has three profiles (`drafting.request_profile`): without it, with it on the target's devices,
and with it on a device before them. The planner runs on cases in which every model has one of them, and the best plan
is kept. Models of the same type and draft get the same place.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from paceline.errors import InvalidParameter
from paceline.placement.case import Case
from paceline.placement.drafting import PLACES, Drafting, Place, request_profile
from paceline.placement.search import Plan, plan
from paceline.placement.search.search import SearchProgress

MOST_COMBINATIONS = 27
"""Up to this number all combinations are tried; beyond, coordinate search from the best single place for all kinds."""

Kind = tuple[str, Drafting]
Choice = tuple[Place, ...]
"""A place for each kind."""


@dataclass(frozen=True)
class CoPlan:
    """A plan with the places of drafters.

    Attributes:
        case: the case that was planned, with the profiles that the places imply.
        plan: the best plan; its planning_seconds are the total of all combinations.
        places: by model index, for models with a drafter.
        tried: (combination, attainment) in the order tried; None if some model could not be served.
    """

    case: Case
    plan: Plan
    places: Mapping[int, Place]
    tried: tuple[tuple[Mapping[int, Place], float | None], ...]


def resolve(case: Case, places: Mapping[int, Place]) -> Case:
    """`case` with a place for each drafter: its models get profiles of whole requests, and `drafts` is empty.

    Raises:
        InvalidParameter: a place is missing, unknown, or given for a model without a drafter.
    """
    for model in places.keys() ^ case.drafts.keys():
        wrong = "has no place" if model in case.drafts else "has no drafter"
        problem = f"model {case.models[model].name!r} {wrong}"
        raise InvalidParameter("drafts", problem, "give a place to each model with a drafter")
    profiles = {model.profile_type: case.profile_of(m) for m, model in enumerate(case.models) if m not in case.drafts}
    models, kinds = list(case.models), _kinds(case)
    for m, place in places.items():
        if place not in PLACES:
            raise InvalidParameter("drafts", f"there is no place {place!r}", f"use one of {', '.join(PLACES)}")
        drafting, target = case.drafts[m], case.profile_of(m)
        name = f"{target.name} + {drafting.profile_type} ({kinds.index(_kind(case, m))}, {place})"
        profiles[name] = request_profile(name, target, case.profiles[drafting.profile_type], drafting, place)
        speculative = drafting.speculation(place, models[m].speculative)
        models[m] = replace(models[m], profile_type=name, speculative=speculative)
    return replace(case, models=tuple(models), profiles=profiles, drafts={})


def coplan(case: Case, policy: str = "auto", *, time_budget: float | None = None, **options: Any) -> CoPlan:
    """Plan `case` for the combinations of places, all or by coordinate search, and return the best.

    Args:
        policy, time_budget: as for `plan`; the time is divided evenly.
        options: further arguments of `plan`.

    Raises:
        InvalidParameter: as `plan`, if no combination can serve every model.
    """
    search = _CoSearch(case, policy, time_budget, options)
    for choice in search.choices():
        search.attempt(choice)
        if search.interrupted:
            break
    return search.result()


class _CoSearch:
    def __init__(self, case: Case, policy: str, time_budget: float | None, options: dict[str, Any]) -> None:
        self._case, self._policy, self._options = case, policy, options
        self._kinds = _kinds(case)
        self._all = len(PLACES) ** len(self._kinds) <= MOST_COMBINATIONS
        self._most = len(PLACES) ** len(self._kinds) if self._all else len(PLACES) * (1 + len(self._kinds))
        self._share = None if time_budget is None else time_budget / self._most
        self._progress: SearchProgress | None = options.pop("progress", None)
        self._plans: dict[Choice, tuple[Case, Plan] | None] = {}
        self._refusal: InvalidParameter | None = None
        self._best: Choice | None = None
        self.interrupted = False

    def choices(self) -> Iterator[Choice]:
        """The combinations to try; later ones depend on the results of earlier ones."""
        if self._all:
            yield from product(PLACES, repeat=len(self._kinds))
            return
        for place in PLACES:
            yield (place,) * len(self._kinds)
        for kind in range(len(self._kinds)):
            start = self._best or (PLACES[0],) * len(self._kinds)
            for place in PLACES:
                yield (*start[:kind], place, *start[kind + 1 :])

    def attempt(self, choice: Choice) -> None:
        """Plan one combination, unless it was tried before."""
        if choice in self._plans:
            return
        self._plans[choice] = None
        resolved = resolve(self._case, self._places(choice))
        try:
            made = plan(resolved, self._policy, time_budget=self._share, progress=self._reporter(), **self._options)
        except InvalidParameter as error:
            self._refusal = error
            return
        self._plans[choice] = resolved, made
        self.interrupted = not made.finished and (self._share is None or made.planning_seconds < self._share)
        if self._best is None or _score(made) > _score(self._plan(self._best)):
            self._best = choice

    def result(self) -> CoPlan:
        """The best plan. Raises InvalidParameter if there is none."""
        if self._best is None:
            assert self._refusal is not None
            raise self._refusal
        found = self._plans[self._best]
        assert found is not None
        plans = [tried[1] for tried in self._plans.values() if tried is not None]
        made = replace(
            found[1],
            planning_seconds=sum(each.planning_seconds for each in plans),
            finished=all(each.finished for each in plans),
        )
        tried = tuple((self._places(c), p and p[1].slo_attainment) for c, p in self._plans.items())
        return CoPlan(found[0], made, self._places(self._best), tried)

    def _plan(self, choice: Choice) -> Plan:
        found = self._plans[choice]
        assert found is not None
        return found[1]

    def _places(self, choice: Choice) -> dict[int, Place]:
        return {m: choice[self._kinds.index(_kind(self._case, m))] for m in self._case.drafts}

    def _reporter(self) -> SearchProgress | None:
        """A callback for `plan` that reports progress over all combinations, with the best attainment so far."""
        if self._progress is None:
            return None
        tell, done = self._progress, len(self._plans) - 1
        best = self._plan(self._best).slo_attainment if self._best else 0.0
        return lambda share, attainment: tell((done + share) / self._most, max(best, attainment))


def _score(made: Plan) -> tuple[float, float]:
    return made.slo_attainment, -made.mean_latency_served


def _kind(case: Case, model: int) -> Kind:
    return case.models[model].profile_type, case.drafts[model]


def _kinds(case: Case) -> list[Kind]:
    return list(dict.fromkeys(_kind(case, m) for m in case.drafts))
