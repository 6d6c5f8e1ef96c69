"""What each choice of a placement buys: the placement simulated again without it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from paceline.placement.case import Case
from paceline.placement.cluster import Cluster
from paceline.placement.placement import Group, Placement
from paceline.placement.profile import ParallelConfig
from paceline.placement.search import plan
from paceline.placement.search.facts import Facts
from paceline.placement.simulator import Evaluator
from paceline.placement.workload import Workload

ALONE = ParallelConfig(1, 1)


@dataclass(frozen=True)
class ReplicaAblation:
    """A model in a group.

    Attributes:
        group: index in the placement; model: name.
        attainment: what all requests would lose without it, a fraction; negative when the plan is better off without.
        latency: seconds that the mean latency of served requests would rise.
    """

    group: int
    model: str
    attainment: float
    latency: float


@dataclass(frozen=True)
class SplitAblation:
    """The split of a group, against another way to use the same devices for the same models.

    Attributes:
        group: index in the placement.
        instead: the other split as "tensor x pipeline", or "single devices" filled by selective replication.
        attainment, latency: as in `ReplicaAblation`.
    """

    group: int
    instead: str
    attainment: float
    latency: float


class Ablations:
    """Variants of one placement, simulated on demand."""

    def __init__(self, evaluator: Evaluator, placement: Placement) -> None:
        self._evaluator = evaluator
        self._facts = Facts(evaluator)
        self._groups = placement.groups
        self._as_is = evaluator.score(placement)
        self.held = [(g, m) for g, group in enumerate(placement.groups) for m in group.models]
        """Every model in every group."""
        self.wide = [g for g, group in enumerate(placement.groups) if group.parallel.num_devices > 1]
        """Groups of several devices."""

    def replicas(self, step: Callable[[], None]) -> Iterator[ReplicaAblation]:
        """What each model in each group buys."""
        for g, m in self.held:
            gain = self._gain(g, (self._groups[g].without_model(m),))
            yield ReplicaAblation(g, self._evaluator.case.models[m].name, *gain)
            step()

    def splits(self, step: Callable[[], None]) -> Iterator[SplitAblation]:
        """What each group of several devices buys against the other ways to use them that memory allows."""
        for g in self.wide:
            group = self._groups[g]
            for split in self._facts.splits:
                same = split.num_devices == group.parallel.num_devices and split != group.parallel
                if same and self._facts.fits(split, group.models):
                    gain = self._gain(g, (Group(split, group.models),))
                    yield SplitAblation(g, f"{split.tensor} x {split.pipeline}", *gain)
            if any(ALONE in self._facts.splits and self._facts.is_useful(m, ALONE) for m in group.models):
                yield SplitAblation(g, "single devices", *self._gain(g, self._apart(group)))
            step()

    def _gain(self, g: int, instead: tuple[Group, ...]) -> tuple[float, float]:
        """What the placement has over one with other groups in place of group `g`: attainment, and seconds saved."""
        other = self._evaluator.score(Placement((*self._groups[:g], *instead, *self._groups[g + 1 :])))
        saved = other.mean_latency_served - self._as_is.mean_latency_served
        return self._as_is.slo_attainment - other.slo_attainment, saved

    def _apart(self, group: Group) -> tuple[Group, ...]:
        """The group's models on its devices one by one, placed by selective replication for their whole traffic."""
        case, models = self._evaluator.case, np.array(group.models)
        workload = self._evaluator.workload
        theirs = np.isin(workload.models, models)
        if not theirs.any():
            return ()
        small = Case(
            name=case.name,
            cluster=Cluster(group.parallel.num_devices, case.cluster.mem_budget),
            models=tuple(case.models[m] for m in models),
            profiles=case.profiles,
            workload=Workload(workload.times[theirs], np.searchsorted(models, workload.models[theirs])),
            rules=case.rules,
        )
        made = plan(small, "sr-greedy", allow_unplaceable=True).placement
        return tuple(Group(each.parallel, tuple(int(models[m]) for m in each.models)) for each in made.groups)
