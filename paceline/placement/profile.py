"""`ModelProfile`: seconds and bytes per stage of a model, for every profiled split.

Made from a file (`case_file.py`), from analytic or measured costs (`cost.py`), or per-layer costs (`parallelise.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from paceline.errors import InvalidParameter
from paceline.placement.tokens.profile import TokenProfile


@dataclass(frozen=True, slots=True, order=True)
class ParallelConfig:
    """How a model is split over devices: `pipeline` stages in a row, each spread over `tensor` devices.

    `device` is their type in a cluster of several types, "" otherwise.
    """

    tensor: int = 1
    pipeline: int = 1
    device: str = ""

    def __post_init__(self) -> None:
        if self.tensor < 1 or self.pipeline < 1:
            problem = f"{self.tensor} x {self.pipeline} is no split"
            raise InvalidParameter("parallel", problem, "give degrees of at least 1")

    @property
    def num_devices(self) -> int:
        """Number of devices of a group with these degrees."""
        return self.tensor * self.pipeline

    def __str__(self) -> str:
        return (
            f"({self.tensor}, {self.pipeline})"
            if not self.device
            else f"({self.tensor}, {self.pipeline}, {self.device})"
        )


@dataclass(frozen=True, slots=True)
class Stages:
    """Costs of the stages of a split.

    Args:
        latency: seconds per stage for a batch of one request.
        weight_mem: bytes per stage on each of its devices.
        batch_latency: batch size to seconds per stage, for sizes above 1; empty when batches were not profiled.
        tokens: costs of passes, for requests generated token by token; `latency` is then unused.
        kv_bytes: bytes of a token's keys and values on each device.

    Raises:
        InvalidParameter: lengths that differ, a time that is not positive, or negative bytes.
    """

    latency: tuple[float, ...]
    weight_mem: tuple[float, ...]
    batch_latency: Mapping[int, tuple[float, ...]] = field(default_factory=lambda: MappingProxyType({}))
    tokens: TokenProfile | None = None
    kv_bytes: float = 0.0

    def __post_init__(self) -> None:
        for batch, latency in ((1, self.latency), *self.batch_latency.items()):
            if batch < 1 or len(latency) != len(self.weight_mem) or not latency:
                problem = f"{len(latency)} stages at batch {batch}, weight_mem has {len(self.weight_mem)}"
                raise InvalidParameter("latency", problem, "give one time and one size per stage, batches from 1")
            if not all(0 < seconds < float("inf") for seconds in latency):
                raise InvalidParameter("latency", f"{list(latency)} s at batch {batch}", "give positive seconds")
        if not all(0 <= size < float("inf") for size in self.weight_mem):
            raise InvalidParameter("weight_mem", f"{list(self.weight_mem)} bytes", "give bytes, 0 or more")

        if not 0 <= self.kv_bytes < float("inf"):
            raise InvalidParameter("kv_bytes", f"{self.kv_bytes}", "give bytes per token, 0 or more")

    @property
    def total_latency(self) -> float:
        """Seconds of one request when every stage is idle."""
        return sum(self.latency)

    @property
    def bottleneck(self) -> float:
        """Seconds of the slowest stage; its inverse is the largest throughput in requests per second."""
        return max(self.latency)


@dataclass(frozen=True)
class ModelProfile:
    """A model type: its profiled splits and the costs of their stages.

    Raises:
        InvalidParameter: no entries, or an entry with a number of stages other than its pipeline degree.
    """

    name: str
    entries: Mapping[ParallelConfig, Stages]

    def __post_init__(self) -> None:
        if not self.entries:
            raise InvalidParameter("profiles", f"{self.name!r} has no entries", "give at least op 1, pp 1")
        for parallel, stages in self.entries.items():
            if len(stages.latency) != parallel.pipeline:
                problem = f"{self.name!r} {parallel} has {len(stages.latency)} stages, not {parallel.pipeline}"
                raise InvalidParameter("latency", problem, "give one time per pipeline stage")
            if self.is_generated and stages.tokens is None:
                raise InvalidParameter("profiles", f"{self.name!r} {parallel} has no tokens", "give every split some")

    @property
    def is_generated(self) -> bool:
        """Whether its entries have costs of passes (`tokens`) instead of latencies of requests."""
        return any(stages.tokens is not None for stages in self.entries.values())

    @property
    def batch_sizes(self) -> frozenset[int]:
        """Sizes above 1 with a profile in some split."""
        return frozenset(size for stages in self.entries.values() for size in stages.batch_latency)

    def stages(self, parallel: ParallelConfig) -> Stages:
        """The stages of a split. Raises InvalidParameter, listing the profiled ones, if it is not among them."""
        if parallel not in self.entries:
            known = ", ".join(map(str, sorted(self.entries)))
            problem = f"{self.name!r} was not profiled at (tensor, pipeline) = {parallel}"
            raise InvalidParameter("profiles", problem, f"use one of {known}, or profile it")
        return self.entries[parallel]

    def device_mem(self, parallel: ParallelConfig) -> float:
        """Bytes on the fullest device of a split: its largest stage."""
        return max(self.stages(parallel).weight_mem)

    def fastest(self, num_devices: int | None = None) -> float:
        """Least seconds of a lone request over all splits, or those of at most `num_devices`; infinite without any."""
        within = [
            s.total_latency for c, s in self.entries.items() if num_devices is None or c.num_devices <= num_devices
        ]
        return min(within, default=float("inf"))
