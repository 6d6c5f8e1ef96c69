"""`Replicas`: which groups hold which models, in the form the compiled kernels read."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paceline.placement.case import Case
from paceline.placement.placement import Group
from paceline.placement.profile import ParallelConfig


class Replicas(NamedTuple):
    """A *replica* is a model in a group. Models are numbered within `models`, replicas ordered by model, then group.

    Attributes:
        models: indices in the case of the models that count here.
        first_replica: int32 [models + 1]; the replicas of model m are first_replica[m] to first_replica[m + 1].
        group: int32 [replicas].
        model: int64 [replicas], index in the case.
        latency: float32 [replicas, sizes, stages], busy seconds; infinite for sizes without a profile.
        num_stages: int32 [groups].
    """

    models: tuple[int, ...]
    first_replica: np.ndarray
    group: np.ndarray
    model: np.ndarray
    latency: np.ndarray
    num_stages: np.ndarray


class ReplicaMaker:
    """Turns groups of a case into `Replicas`; what a split costs is looked up once."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._sizes = case.batch_sizes
        self._seconds: dict[tuple[str, ParallelConfig], np.ndarray] = {}

    def stage_seconds(self, model: int, parallel: ParallelConfig) -> np.ndarray:
        """Busy seconds, float32 [sizes, stages], of a batch for `model`; overheads included, infinite if unknown."""
        key = (self._case.models[model].profile_type, parallel)
        if key not in self._seconds:
            stages = self._case.profile_of(model).stages(parallel)
            unknown = (float("inf"),) * parallel.pipeline
            rows = [stages.latency, *(stages.batch_latency.get(b, unknown) for b in self._sizes[1:])]
            scale = 1 + self._case.rules.stage_overhead * parallel.pipeline
            self._seconds[key] = (np.array(rows) * scale).astype("f4")
        return self._seconds[key]

    def make(self, groups: Sequence[Group], models: Sequence[int] | None = None) -> Replicas:
        """The replicas of `groups`, over the models they hold or over `models`, a rising superset of those."""
        if models is None:
            models = sorted({model for group in groups for model in group.models})
        pairs = sorted((model, g) for g, group in enumerate(groups) for model in group.models)
        most = max((group.parallel.pipeline for group in groups), default=1)
        latency = np.zeros((len(pairs), len(self._sizes), most), np.float32)
        for replica, (model, g) in enumerate(pairs):
            latency[replica, :, : groups[g].parallel.pipeline] = self.stage_seconds(model, groups[g].parallel)
        model_of_replica = np.array([model for model, _ in pairs], np.int64)
        return Replicas(
            models=tuple(models),
            first_replica=np.searchsorted(model_of_replica, [*models, len(self._case.models)]).astype(np.int32),
            group=np.array([g for _, g in pairs], np.int32),
            model=model_of_replica,
            latency=latency,
            num_stages=np.array([group.parallel.pipeline for group in groups], np.int32),
        )
