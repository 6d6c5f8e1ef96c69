"""`Placement`: groups of devices, their parallelism and their models; and the check that a cluster can hold it.

Plain data: searching for a good one is `search/`, simulating it is `simulator/`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import InvalidParameter
from paceline.placement.cluster import Cluster
from paceline.placement.fields import shown
from paceline.placement.model import PlacedModel
from paceline.placement.profile import ModelProfile, ParallelConfig


@dataclass(frozen=True, slots=True)
class Group:
    """Devices that hold some models, all of them split in the same way.

    `models` are indices into the case's list, in increasing order.
    """

    parallel: ParallelConfig
    models: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", tuple(sorted(self.models)))
        if len(set(self.models)) != len(self.models):
            raise InvalidParameter("groups", f"a group holds {list(self.models)}", "name each model of a group once")

    def with_model(self, model: int) -> "Group":
        """This group with one more model."""
        return Group(self.parallel, (*self.models, model))

    def without_model(self, model: int) -> "Group":
        """This group without that model."""
        return Group(self.parallel, tuple(other for other in self.models if other != model))


@dataclass(frozen=True, slots=True)
class Placement:
    """Groups in order; the order breaks ties between equally loaded groups."""

    groups: tuple[Group, ...] = ()

    @classmethod
    def from_lists(cls, groups: Sequence[Sequence]) -> "Placement":
        """From ``[[tensor degree, pipeline degree, [model indices]], ...]``, the form of a plan file.

        With several types of devices, the type comes last: ``[1, 2, [0, 3], "l4"]``.
        """
        remedy = "write [[tensor, pipeline, [model indices]], ...]"
        if isinstance(groups, str | Mapping) or not isinstance(groups, Iterable):
            raise InvalidParameter("groups", f"{shown(groups)} is no list", remedy)
        made = []
        for index, entry in enumerate(groups):
            try:
                tensor, pipeline, models, *rest = entry
                (device,) = rest or ("",)
                if not isinstance(device, str):
                    raise TypeError(device)
                made.append(Group(ParallelConfig(_whole(tensor), _whole(pipeline), device), tuple(map(_whole, models))))
            except (TypeError, ValueError, OverflowError) as error:
                if isinstance(error, InvalidParameter):
                    raise error.about(f"groups[{index}]") from None
                raise InvalidParameter("groups", f"number {index}, {shown(entry)}, cannot be read", remedy) from None
        return cls(tuple(made))

    def to_lists(self) -> list[list]:
        """The lists that `from_lists` reads."""
        return [
            [group.parallel.tensor, group.parallel.pipeline, list(group.models), *filter(None, [group.parallel.device])]
            for group in self.groups
        ]

    @property
    def num_devices(self) -> int:
        """Number of devices of all groups."""
        return sum(group.parallel.num_devices for group in self.groups)

    def replicas(self, num_models: int) -> list[int]:
        """Number of groups that hold each model, [num_models]."""
        counts = [0] * num_models
        for group in self.groups:
            for model in group.models:
                counts[model] += 1
        return counts


def _whole(value: Any) -> int:
    """A degree or an index as int. Raises ValueError for fractions such as 1.9, which are not rounded."""
    if isinstance(value, bool) or value != int(value) or not 0 <= value < 2**31:
        raise ValueError(f"{shown(value)} is no whole number from 0")
    return int(value)


def group_mem(group: Group, models: Sequence[PlacedModel], profiles: Mapping[str, ModelProfile]) -> tuple[float, ...]:
    """Bytes per device of each stage, summed over the models of the group."""
    held = [0.0] * group.parallel.pipeline
    for model in group.models:
        stages = profiles[models[model].profile_type].stages(group.parallel)
        held = [mem + more for mem, more in zip(held, stages.weight_mem, strict=True)]
    return tuple(held)


def validate(
    placement: Placement,
    cluster: Cluster,
    models: Sequence[PlacedModel],
    profiles: Mapping[str, ModelProfile],
) -> None:
    """Raise InvalidParameter for a placement that the cluster cannot hold.

    Memory is checked per device, at the fullest stage of each group.

    Raises:
        InvalidParameter: more devices than there are, stages that fit no node, an unknown model, a split without a
            profile, or a device without enough memory.
    """
    for device in sorted({group.parallel.device for group in placement.groups}):
        _check_devices([g.parallel for g in placement.groups if g.parallel.device == device], cluster.part(device))
    for index, group in enumerate(placement.groups):
        for model in group.models:
            if not 0 <= model < len(models):
                problem = f"group {index} holds model {model}, there are {len(models)}"
                raise InvalidParameter("groups", problem, f"use indices 0 to {len(models) - 1}")
        fullest = max(group_mem(group, models, profiles))
        budget = cluster.part(group.parallel.device).mem_budget
        if fullest > budget:
            problem = f"group {index} needs {fullest:.0f} bytes on a device, the budget is {budget:.0f}"
            raise InvalidParameter("groups", problem, "hold fewer models there or split them further")


def _check_devices(splits: Sequence[ParallelConfig], cluster: Cluster) -> None:
    """Raise InvalidParameter if there are too few devices of one type for its groups, or nodes too small for stages."""
    needed = sum(split.num_devices for split in splits)
    if needed > cluster.num_devices:
        of_type = f" of type {splits[0].device!r}" if splits[0].device else ""
        problem = f"need {needed} devices{of_type}, the cluster has {cluster.num_devices}"
        raise InvalidParameter("groups", problem, f"use fewer or smaller groups, or {needed} devices")
    if not cluster.has_nodes_for(split.tensor for split in splits for _ in range(split.pipeline)):
        problem = f"tensor degrees up to {max(split.tensor for split in splits)} do not fit nodes of {cluster.per_node}"
        raise InvalidParameter("groups", problem, "use degrees that divide a node's devices")
