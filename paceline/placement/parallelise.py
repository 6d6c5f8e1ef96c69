"""Splitting a model's layers into stages with tensor degrees, so that the slowest stage is as fast as possible.

The inter-operator pass of AlpaServe (Li et al. 2023, section 4.1, after Alpa): a dynamic programme over layers that
minimises the maximum stage latency, because that bounds the throughput of a pipeline that only runs forward. Layers
are profiled individually and summed, so K layers take K profiles and not K^2. Not for costs of layers (`cost.py`) or
for which models share devices (`search/`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.profile import ModelProfile, ParallelConfig, Stages


@dataclass(frozen=True)
class LayerCosts:
    """The costs of each layer of a model.

    Args:
        seconds: tensor degree to float64 [layers], seconds of each layer in a pass on that number of devices.
        weight_mem: float64 [layers], bytes on all devices together.
        hand_over: float64 [layers], seconds to send a layer's output to another stage.

    Raises:
        InvalidParameter: no layers, lengths that differ, or a negative number.
    """

    seconds: Mapping[int, np.ndarray]
    weight_mem: np.ndarray
    hand_over: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", {t: np.asarray(s, np.float64) for t, s in self.seconds.items()})
        object.__setattr__(self, "weight_mem", np.asarray(self.weight_mem, np.float64))
        object.__setattr__(self, "hand_over", np.asarray(self.hand_over, np.float64))
        if not self.seconds or not self.num_layers or min(self.seconds) < 1:
            raise InvalidParameter("layers", "no costs", "give seconds per layer for at least tensor degree 1")
        for values in (*self.seconds.values(), self.weight_mem, self.hand_over):
            if values.shape != (self.num_layers,) or not (values >= 0).all():
                problem = f"{self.num_layers} layers cannot cost {values}"
                raise InvalidParameter("layers", problem, "give one number per layer, 0 or more")

    @property
    def num_layers(self) -> int:
        """Number of layers of the model."""
        return len(self.weight_mem)

    def stage_seconds(self, first: int, end: int, tensor: int) -> float:
        """Seconds of layers first .. end - 1 on `tensor` devices, including sending their output to the next stage."""
        sent = 0.0 if end == self.num_layers else float(self.hand_over[end - 1])
        return float(self.seconds[tensor][first:end].sum()) + sent


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers first .. end - 1 on `tensor` devices."""

    first: int
    end: int
    tensor: int


def split_layers(
    costs: LayerCosts,
    num_stages: int,
    num_devices: int,
    tensor_degrees: Sequence[int] | None = None,
    mem_budget: float = float("inf"),
) -> list[Stage]:
    """Contiguous stages over exactly `num_devices` devices that minimise the latency of the slowest stage.

    F(s, k, d) = min over i, t of max(F(s - 1, i, d - t), latency of layers i .. k on t devices): s stages, the first k
    layers, d devices. Stages whose weights do not fit on their devices are excluded.

    Args:
        tensor_degrees: allowed devices per stage; None for all that were profiled. A single one gives every stage
            as many devices, not as many layers.
        mem_budget: bytes per device.

    Raises:
        InvalidParameter: more stages than layers, a degree without costs, or no split that fits.
    """
    degrees = sorted(costs.seconds) if tensor_degrees is None else sorted(set(tensor_degrees))
    _check_split(costs, num_stages, degrees)
    latency = {t: _segments(costs, t, mem_budget) for t in degrees}
    slowest = np.full((num_stages + 1, costs.num_layers + 1, num_devices + 1), np.inf)
    slowest[0, 0, 0] = 0
    choice: dict[tuple[int, int, int], tuple[int, int]] = {}
    for s in range(1, num_stages + 1):
        for k in range(s, costs.num_layers + 1):
            for d in range(s, num_devices + 1):
                for t in (t for t in degrees if t <= d):
                    worst = np.maximum(slowest[s - 1, :k, d - t], latency[t][:k, k])
                    i = int(worst.argmin())
                    if worst[i] < slowest[s, k, d]:
                        slowest[s, k, d] = worst[i]
                        choice[s, k, d] = i, t
    if (num_stages, costs.num_layers, num_devices) not in choice:
        problem = f"{num_stages} stages over {num_devices} devices of {mem_budget:.0f} bytes hold no split"
        raise InvalidParameter("parallel", problem, "take more devices, other tensor degrees, or more memory")
    return _walk_back(choice, num_stages, costs.num_layers, num_devices)


def _check_split(costs: LayerCosts, num_stages: int, degrees: Sequence[int]) -> None:
    if not 1 <= num_stages <= costs.num_layers:
        problem = f"{num_stages} stages for {costs.num_layers} layers"
        raise InvalidParameter("pipeline", problem, f"use 1 to {costs.num_layers} stages")
    for degree in degrees:
        if degree not in costs.seconds:
            problem = f"tensor degree {degree} has no costs"
            raise InvalidParameter("tensor", problem, f"use one of {sorted(costs.seconds)}, or profile it")


def _segments(costs: LayerCosts, tensor: int, mem_budget: float) -> np.ndarray:
    """float64 [layers, layers + 1]: seconds of layers i .. k - 1 on `tensor` devices, infinite if they do not fit."""
    time = np.concatenate([[0], np.cumsum(costs.seconds[tensor])])
    size = np.concatenate([[0], np.cumsum(costs.weight_mem)]) / tensor
    sent = np.concatenate([[0], costs.hand_over])
    sent[-1] = 0  # the last stage sends nothing
    seconds = time[None, :] - time[:-1, None] + sent[None, :]
    fits = size[None, :] - size[:-1, None] <= mem_budget
    return np.where(fits, seconds, np.inf)


def _walk_back(choice: dict[tuple[int, int, int], tuple[int, int]], s: int, k: int, d: int) -> list[Stage]:
    stages = []
    while s:
        first, tensor = choice[s, k, d]
        stages.append(Stage(first, k, tensor))
        s, k, d = s - 1, first, d - tensor
    return stages[::-1]


def profile_from_layers(
    name: str,
    costs: LayerCosts,
    max_devices: int,
    mem_budget: float = float("inf"),
    batches: Mapping[int, LayerCosts] | None = None,
    mixed: bool = False,
) -> ModelProfile:
    """A profile with every split of the layers over at most `max_devices` devices that fits.

    Args:
        mem_budget: bytes per device.
        batches: batch size above 1 to the same layers' costs; stages are chosen at size 1.
        mixed: stages may differ in tensor degree, with mean `ParallelConfig.tensor`.

    Raises:
        InvalidParameter: no split fits.
    """
    entries = {}
    for tensor in sorted(costs.seconds):
        for pipeline in range(1, min(max_devices // tensor, costs.num_layers) + 1):
            degrees = None if mixed else (tensor,)
            try:
                stages = split_layers(costs, pipeline, tensor * pipeline, degrees, mem_budget)
            except InvalidParameter:
                continue  # this split does not fit; another may
            entries[ParallelConfig(tensor, pipeline)] = _as_stages(stages, costs, batches or {})
    if not entries:
        problem = f"{name!r} fits on no split over {max_devices} devices of {mem_budget:.0f} bytes"
        raise InvalidParameter("mem_budget", problem, "take more devices or more memory")
    return ModelProfile(name, entries)


def _as_stages(stages: Sequence[Stage], costs: LayerCosts, batches: Mapping[int, LayerCosts]) -> Stages:
    def seconds(of: LayerCosts) -> tuple[float, ...]:
        return tuple(of.stage_seconds(stage.first, stage.end, stage.tensor) for stage in stages)

    return Stages(
        latency=seconds(costs),
        weight_mem=tuple(float(costs.weight_mem[s.first : s.end].sum()) / s.tensor for s in stages),
        batch_latency={size: seconds(of) for size, of in batches.items()},
    )
