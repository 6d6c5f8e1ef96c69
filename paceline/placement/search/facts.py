"""`Facts`: what a case fixes before any search: which splits there are, what fits where, which deadlines can be met."""

from collections.abc import Iterable
from functools import cached_property

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.placement import Group
from paceline.placement.profile import ParallelConfig
from paceline.placement.search.goal import Goal
from paceline.placement.simulator import Evaluator
from paceline.placement.simulator.token_evaluator import TokenEvaluator


class Facts:
    """Answers about groups that need no simulation.

    Args:
        evaluator: the simulator over the case.

    Raises:
        InvalidParameter: no group can serve any model; the message says why the first cannot be.
    """

    def __init__(self, evaluator: Evaluator | TokenEvaluator) -> None:
        self.case = evaluator.case
        self.num_models = len(self.case.models)
        self.num_devices = self.case.cluster.num_devices
        names = [device.name for device in self.case.cluster.types] or [""]
        self.parts = {name: self.case.cluster.part(name) for name in names}
        """The devices by type; all of them as "" where they are alike."""
        self.requests_of: list[int] = evaluator.requests_of.tolist()
        self.num_requests = evaluator.workload.num_requests
        self.goal = Goal.of(self.case, evaluator.requests_of)
        """What requests in time are worth, where that is not 1 each."""
        self.most = self.num_requests if self.goal is None else self.goal.most
        """Of a placement that serves all requests in time."""
        self._evaluator = evaluator
        profiles = self.case.profiles.values()
        known = {parallel for profile in profiles for parallel in profile.entries}
        self.splits = sorted(
            (parallel for parallel in known if self._has_room_for(parallel)),
            key=lambda parallel: (parallel.num_devices, parallel.tensor, parallel.device),
        )
        """Every profiled split that the cluster has devices for, with whole stages in a node, smallest first."""
        self._weights = {
            split: [self._stage_weights(m, split) for m in range(self.num_models)] for split in self.splits
        }
        self._even = {split: _one_per_model(weights) for split, weights in self._weights.items()}
        self._means: dict[ParallelConfig, np.ndarray] = {}
        self._useful = {split: [self._is_useful(m, split) for m in range(self.num_models)] for split in self.splits}
        self.splits = [split for split in self.splits if any(self._useful[split])]
        if not self.splits:
            raise self._refusal(0)

    def _has_room_for(self, split: ParallelConfig) -> bool:
        """The cluster has devices for a group of that split, and its stages fill nodes without a rest."""
        part = self.parts.get(split.device)
        if part is None or split.num_devices > part.num_devices:
            return False
        return part.per_node == part.num_devices or part.per_node % split.tensor == 0

    def free_beside(self, groups: Iterable[Group] = ()) -> dict[str, int]:
        """Devices of each type that `groups` leave."""
        free = {name: part.num_devices for name, part in self.parts.items()}
        for group in groups:
            free[group.parallel.device] -= group.parallel.num_devices
        return free

    def budget(self, split: ParallelConfig) -> float:
        """Bytes of each device of a group of that split."""
        return self.parts[split.device].mem_budget

    def is_useful(self, model: int, split: ParallelConfig) -> bool:
        """`model` fits a group of that split alone, and a lone request meets its deadline there."""
        return self._useful[split][model]

    def fits(self, split: ParallelConfig, models: tuple[int, ...] | list[int]) -> bool:
        """`models` together fit a group of that split: on every device, the fullest stage counts."""
        budget, even = self.budget(split), self._even[split]
        models = sorted(models)  # summed in the order of `placement.validate`, so that both agree to the last bit
        if even is not None:
            return sum([even[model] for model in models]) <= budget
        weights = [self._weights[split][model] for model in models]
        return all(sum(stage) <= budget for stage in zip(*weights, strict=True))

    def has_room(self, group: Group, model: int) -> bool:
        """`model` can be added to `group` and be of use there."""
        useful = model not in group.models and self.is_useful(model, group.parallel)
        return useful and self.fits(group.parallel, (*group.models, model))

    @cached_property
    def placeable(self) -> list[int]:
        """Models that some group can serve."""
        return [m for m in range(self.num_models) if any(self.is_useful(m, split) for split in self.splits)]

    @cached_property
    def unplaceable(self) -> dict[int, InvalidParameter]:
        """Models that no group can serve, each with the reason. For devices of one type (`types.unplaceable`)."""
        return {m: self._refusal(m) for m in range(self.num_models) if m not in self.placeable}

    def busy_seconds(self, model: int, split: ParallelConfig) -> float:
        """Least seconds that a request keeps the stages of its group busy, all stages together."""
        return self._evaluator.busy_seconds(model, split)

    def work_seconds(self, model: int, split: ParallelConfig) -> float:
        """Seconds of a busy group of that split that a request takes."""
        return self._evaluator.work_seconds(model, split)

    def lone_seconds(self, model: int, split: ParallelConfig) -> float:
        """Seconds from arrival to answer of a request that finds every stage idle."""
        return self._evaluator.lone_seconds(model, split)

    def mean_weights(self, split: ParallelConfig) -> np.ndarray:
        """Bytes of each model's mean stage, float64 [models]; infinite where it is of no use in that split."""
        if split not in self._means:
            means = np.array([sum(stages) / len(stages) for stages in self._weights[split]])
            self._means[split] = np.where(self._useful[split], means, np.inf)
        return self._means[split]

    def _stage_weights(self, model: int, split: ParallelConfig) -> tuple[float, ...]:
        entries = self.case.profile_of(model).entries
        return entries[split].weight_mem if split in entries else (float("inf"),) * split.pipeline

    def _is_useful(self, model: int, split: ParallelConfig) -> bool:
        if not self.fits(split, (model,)):
            return False
        return self.lone_seconds(model, split) <= float(np.float32(self.case.models[model].slo))

    def _refusal(self, model: int) -> InvalidParameter:
        """Why no group can serve `model`, with the number that is wrong and what would do."""
        spec, profile, cluster = self.case.models[model], self.case.profile_of(model), self.case.cluster
        within = [split for split in profile.entries if self._has_room_for(split)]
        if not within and any(split.num_devices <= cluster.num_devices for split in profile.entries):
            problem = f"{cluster.per_node} for model {spec.name!r}, none of whose profiled tensor degrees divides it"
            return InvalidParameter("num_devices_per_node", problem, "profile splits that do")
        if not within:
            fewest = min(split.num_devices for split in profile.entries)
            problem = f"{cluster.num_devices} for model {spec.name!r}, whose smallest profiled split takes {fewest}"
            return InvalidParameter("num_devices", problem, f"give {fewest} or more, or profile smaller splits")
        least = min(profile.device_mem(split) for split in within)
        if least > cluster.mem_budget:
            problem = f"{cluster.mem_budget:.0f} bytes, model {spec.name!r} needs {least:.0f} on a device however split"
            return InvalidParameter("mem_budget", problem, "give more memory, or profile it split over more devices")
        fitting = [split for split in within if profile.device_mem(split) <= cluster.mem_budget]
        if isinstance(self._evaluator, TokenEvaluator):
            return self._evaluator.refusal(model, fitting)
        fastest = min(self.lone_seconds(model, split) for split in fitting)
        problem = f"{spec.slo:g} s for model {spec.name!r}, whose request alone takes {fastest:.4g} s at best"
        return InvalidParameter("slo", problem, "raise the deadline above that, or profile faster splits")


def _one_per_model(weights: list[tuple[float, ...]]) -> list[float] | None:
    """Bytes on every device where all models have equal stages, the quick case; None where some has not."""
    return [stages[0] for stages in weights] if all(len(set(stages)) == 1 for stages in weights) else None
