"""`Layout`: how a model is distributed over processes, in a grid of pipeline stages by tensor-parallel ranks.

Rank r is tensor rank r % T of stage r // T: the ranks of a stage, which communicate most, are neighbours.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from paceline.errors import InvalidParameter
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.tensor_names import tensor_shapes
from paceline.models.torch_executor.shard import Shard, check_tensor_parallel_size


@dataclass(frozen=True, slots=True)
class Layout:
    """Which shard each rank holds.

    Attributes:
        config: the model.
        tensor_size: ranks that share every layer of a stage.
        stages: layers of each stage.
    """

    config: ModelConfig
    tensor_size: int
    stages: tuple[range, ...]

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        layer_partition: Sequence[int] | None = None,
        head_share: float = 1.0,
    ) -> "Layout":
        """The layout with these degrees.

        Args:
            layer_partition: number of layers of each stage; by default balanced by weights, with the head in the last
                stage.
            head_share: how much of the head counts for this, see `balanced_partition`.

        Raises:
            InvalidParameter: a degree that does not fit the model, or a partition that does not add up.
        """
        check_tensor_parallel_size(config, tensor_parallel_size)
        if config.layer_sizes and pipeline_parallel_size > 1:
            problem = "layers of different sizes, which may read each other's keys, cannot be on several stages yet"
            raise InvalidParameter("pipeline_parallel_size", problem, "use 1 stage")
        counts = layer_partition or balanced_partition(config, pipeline_parallel_size, head_share)
        _check_partition(counts, config.num_hidden_layers, pipeline_parallel_size)
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        return cls(config, tensor_parallel_size, tuple(range(e - n, e) for e, n in zip(ends, counts, strict=True)))

    @property
    def world_size(self) -> int:
        """Total number of processes."""
        return self.tensor_size * len(self.stages)

    @property
    def largest_cache_share(self) -> float:
        """Share of a KV cache that the ranks of the stage with most layers hold each."""
        return max(map(len, self.stages)) / (self.config.num_hidden_layers * self.tensor_size)

    def can_share(self, config: ModelConfig) -> bool:
        """Whether the layers of another model can be split among as many ranks."""
        try:
            check_tensor_parallel_size(config, self.tensor_size)
        except InvalidParameter:
            return False
        return True

    def stage_of(self, rank: int) -> int:
        """The pipeline stage of `rank`."""
        return rank // self.tensor_size

    def ranks_of(self, stage: int) -> range:
        """The ranks that share `stage` (negative from the end), in order of their shares."""
        first = stage % len(self.stages) * self.tensor_size
        return range(first, first + self.tensor_size)

    def shard(self, rank: int) -> Shard:
        """The shard of `rank`."""
        return Shard(self.config, self.stages[self.stage_of(rank)], rank % self.tensor_size, self.tensor_size)


def balanced_partition(config: ModelConfig, num_stages: int, head_share: float = 1.0) -> tuple[int, ...]:
    """Number of layers per stage that minimises the weights of the largest stage, as the slowest one limits a pipeline,
    and then the most layers of a stage, which decide how much of a KV cache a device holds.

    Weights are a proxy for time, since a pass over few rows reads each of them once. The head counts for the last
    stage; the embedding does not count, because only single rows of it are read.

    Args:
        head_share: share of the head's weights that counts: 1 for decoding, and nearly 0 for long prompts, for which
            the head computes one row only.

    Raises:
        InvalidParameter: there are more stages than layers, or none.
    """
    layers = config.num_hidden_layers
    if not 1 <= num_stages <= layers:
        remedy = f"use 1 to {layers} stages"
        raise InvalidParameter("pipeline_parallel_size", f"{num_stages} stages for {layers} layers", remedy)
    costs, head = layer_weights(config), head_share * config.vocab_size * config.hidden_size
    total = [sum(costs[:i]) for i in range(layers + 1)]

    @cache
    def best(first: int, stages: int) -> tuple[float, int, tuple[int, ...]]:
        """(weights of the heaviest, most layers, layers of each) of `stages` stages from layer `first` on."""
        if stages == 1:
            return total[layers] - total[first] + head, layers - first, (layers - first,)
        options = []
        for end in range(first + 1, layers - stages + 2):
            heaviest, most, counts = best(end, stages - 1)
            own = end - first
            options.append((max(total[end] - total[first], heaviest), max(own, most), (own, *counts)))
        return min(options)

    return best(0, num_stages)[2]


def layer_weights(config: ModelConfig) -> list[int]:
    """Number of weights of each layer."""
    weights = [0] * config.num_hidden_layers
    for name, shape in tensor_shapes(config).items():
        number = next((part for part in name.split(".") if part.isdigit()), None)
        if number is not None:
            weights[int(number)] += math.prod(shape)
    return weights


def _check_partition(counts: Sequence[int], layers: int, num_stages: int) -> None:
    written = " + ".join(map(str, counts))
    if len(counts) != num_stages or min(counts) < 1 or sum(counts) != layers:
        problem = f"{written} are not {num_stages} stages of together {layers} layers"
        raise InvalidParameter("pipeline_layer_partition", problem, "give one positive number per stage")
