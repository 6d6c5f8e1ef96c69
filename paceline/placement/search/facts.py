"""`Facts`: what a case fixes before any search: which splits there are, what fits where, which deadlines can be met."""

from functools import cached_property

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.placement import Group
from paceline.placement.profile import ParallelConfig
from paceline.placement.simulator import Evaluator


class Facts:
    """Answers about groups that need no simulation.

    Args:
        evaluator: the simulator over the case.

    Raises:
        InvalidParameter: no split of any model fits the cluster and meets its deadline; the message says why.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self.case = evaluator.case
        self.num_models = len(self.case.models)
        self.num_devices = self.case.cluster.num_devices
        self.requests_of: list[int] = evaluator.requests_of.tolist()
        self.num_requests = evaluator.workload.num_requests
        self._evaluator = evaluator
        profiles = self.case.profiles.values()
        known = {parallel for profile in profiles for parallel in profile.entries}
        self.splits = sorted(
            (parallel for parallel in known if parallel.num_devices <= self.num_devices),
            key=lambda parallel: (parallel.num_devices, parallel.tensor),
        )
        """Every profiled split that the cluster has devices for, smallest first."""
        self._weights = {
            split: [self._stage_weights(m, split) for m in range(self.num_models)] for split in self.splits
        }
        self._useful = {split: [self._is_useful(m, split) for m in range(self.num_models)] for split in self.splits}
        self.splits = [split for split in self.splits if any(self._useful[split])]
        if not self.splits:
            raise self._nothing_fits()

    def is_useful(self, model: int, split: ParallelConfig) -> bool:
        """`model` fits a group of that split alone, and a lone request meets its deadline there."""
        return self._useful[split][model]

    def fits(self, split: ParallelConfig, models: tuple[int, ...] | list[int]) -> bool:
        """`models` together fit a group of that split: on every device, the fullest stage counts."""
        weights = self._weights[split]
        held = [0.0] * split.pipeline
        for model in models:
            held = [mem + more for mem, more in zip(held, weights[model], strict=True)]
        return max(held) <= self.case.cluster.mem_budget

    def has_room(self, group: Group, model: int) -> bool:
        """`model` can be added to `group` and be of use there."""
        useful = model not in group.models and self.is_useful(model, group.parallel)
        return useful and self.fits(group.parallel, (*group.models, model))

    @cached_property
    def unplaceable(self) -> list[tuple[int, str]]:
        """Models that no group can serve, each with the reason."""
        placeable = [any(self.is_useful(m, split) for split in self.splits) for m in range(self.num_models)]
        return [(m, self._reason(m)) for m in range(self.num_models) if not placeable[m]]

    def busy_seconds(self, model: int, split: ParallelConfig) -> float:
        """Seconds that one request keeps the stages of its group busy, all stages together."""
        return float(np.sum(self._evaluator.stage_seconds(model, split), dtype=np.float64))

    def lone_seconds(self, model: int, split: ParallelConfig) -> float:
        """Seconds from arrival to answer of a request that finds every stage idle."""
        return self.busy_seconds(model, split) + self._evaluator.rules.overhead

    def _stage_weights(self, model: int, split: ParallelConfig) -> tuple[float, ...]:
        entries = self.case.profile_of(model).entries
        return entries[split].weight_mem if split in entries else (float("inf"),) * split.pipeline

    def _is_useful(self, model: int, split: ParallelConfig) -> bool:
        if not self.fits(split, (model,)):
            return False
        return self.lone_seconds(model, split) <= float(np.float32(self.case.models[model].slo))

    def _reason(self, model: int) -> str:
        """Why no group can serve `model`, with the numbers."""
        spec, profile, cluster = self.case.models[model], self.case.profile_of(model), self.case.cluster
        within = [split for split in profile.entries if split.num_devices <= cluster.num_devices]
        if not within:
            fewest = min(split.num_devices for split in profile.entries)
            return f"its smallest profiled split needs {fewest} devices, the cluster has {cluster.num_devices}"
        least = min(profile.device_mem(split) for split in within)
        if least > cluster.mem_budget:
            return f"it needs at least {least:.0f} bytes on a device, mem_budget is {cluster.mem_budget:.0f}"
        fitting = [split for split in within if profile.device_mem(split) <= cluster.mem_budget]
        fastest = min(self.lone_seconds(model, split) for split in fitting)
        return f"its slo is {spec.slo:g} s, and a lone request takes at least {fastest:.4g} s"

    def _nothing_fits(self) -> InvalidParameter:
        reasons = [(self.case.models[m].name, self._reason(m)) for m in range(self.num_models)]
        name, reason = reasons[0]
        field = "slo" if "slo" in reason else "mem_budget" if "mem_budget" in reason else "num_devices"
        problem = f"no model can be served; {name!r}: {reason}"
        return InvalidParameter(field, problem, "relax the deadlines, or give more devices, memory or pipeline degrees")
