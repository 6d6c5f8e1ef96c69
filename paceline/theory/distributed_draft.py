"""Cost of a draft token on several chips, and the number of chips on which the draft should run.

A token of a tensor-parallel model reads all weights once and needs two all-reduces per layer, so its latency is a
roofline plus a term that grows with depth and with the number of chips. Therefore a wide, shallow draft suits a target
that needs many chips (Chen et al. 2023, section "Choice of draft models"). Not the place for measured times
(`speedup.measured_speedup` takes them) or for placing models on clusters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.theory.checks import check_cost, check_count, check_positive, check_rate
from paceline.theory.curves import Chart, Series
from paceline.theory.speedup import best_measured_length
from paceline.theory.tables import Table

ALL_REDUCES_PER_LAYER = 2
"""After attention and after the feed-forward block (Shoeybi et al. 2019, Megatron-LM)."""

TENSOR_PARALLEL_SIZES = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Chip:
    """An accelerator and its links.

    Attributes:
        bandwidth: bytes of memory read per second.
        peak: floating-point operations per second.
        hop_seconds: latency of one exchange; an all-reduce over n chips takes log2(n) of them.

    Raises:
        InvalidParameter: a rate is not above 0, or the latency is negative.
    """

    bandwidth: float
    peak: float
    hop_seconds: float

    def __post_init__(self) -> None:
        check_positive("bandwidth", self.bandwidth)
        check_positive("peak", self.peak)
        check_cost("hop_seconds", self.hop_seconds)


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The sizes that determine a model's latency: parameters, bytes per parameter, and depth.

    Raises:
        InvalidParameter: a number is not above 0.
    """

    num_parameters: float
    num_layers: int
    bytes_per_parameter: float = 2.0

    def __post_init__(self) -> None:
        check_positive("num_parameters", self.num_parameters)
        check_count("num_layers", self.num_layers, least=1)
        check_positive("bytes_per_parameter", self.bytes_per_parameter)


TPU_V4 = Chip(bandwidth=1.2e12, peak=275e12, hop_seconds=10.6e-6)
"""Published bandwidth and peak; the latency is fitted so that `CHINCHILLA` takes the printed 14.1 ms on 16 chips."""

CHINCHILLA = ModelSize(70e9, 80)
"""The target of Chen et al. 2023."""

WIDE_DRAFT = ModelSize(4e9, 8)
"""Their draft: three quarters of the target's width (6144), a tenth of its depth."""


def all_reduce_seconds(chip: Chip, tensor_parallel_size: int) -> float:
    """Latency of one all-reduce of a token's activations: log2(n) exchanges, none on one chip."""
    check_count("tensor_parallel_size", tensor_parallel_size, least=1)
    return chip.hop_seconds * math.log2(tensor_parallel_size)


def pass_seconds(model: ModelSize, chip: Chip, tensor_parallel_size: int, rows: int = 1) -> float:
    """max(bytes / bandwidth, operations / peak) / n + 2 layers all_reduce(n): seconds of a pass over `rows` tokens.

    Keys and values are left out: they matter for long contexts, where this is a lower bound.
    """
    check_count("rows", rows, least=1)
    reading = model.num_parameters * model.bytes_per_parameter / chip.bandwidth
    computing = 2 * model.num_parameters * rows / chip.peak
    joining = ALL_REDUCES_PER_LAYER * model.num_layers * all_reduce_seconds(chip, tensor_parallel_size)
    return max(reading, computing) / tensor_parallel_size + joining


@dataclass(frozen=True, slots=True)
class DraftPlan:
    """One way to run the draft.

    Attributes:
        tensor_parallel_size: chips of the draft.
        draft_seconds: one draft token.
        cost_ratio: over one target token.
        num_draft_tokens, speedup: the best speculation length and what it gains over plain decoding.
    """

    tensor_parallel_size: int
    draft_seconds: float
    cost_ratio: float
    num_draft_tokens: int
    speedup: float


def draft_plan(
    draft: ModelSize,
    target: ModelSize,
    chip: Chip,
    tensor_parallel_size: int,
    target_tensor_parallel_size: int,
    alpha: float,
    hand_over_seconds: float = 0.0,
) -> DraftPlan:
    """The draft on `tensor_parallel_size` chips, the target on `target_tensor_parallel_size`.

    Args:
        alpha: acceptance rate, in [0, 1].
        hand_over_seconds: time to send a draft to the target's chips, once per pass; counted when the sizes differ.

    Raises:
        InvalidParameter: a size below 1, a rate outside [0, 1], a negative time.
    """
    check_rate("alpha", alpha)
    check_cost("hand_over_seconds", hand_over_seconds)
    seconds = pass_seconds(draft, chip, tensor_parallel_size)
    apart = hand_over_seconds if tensor_parallel_size != target_tensor_parallel_size else 0.0

    def verifying(rows: int) -> float:
        return pass_seconds(target, chip, target_tensor_parallel_size, rows) + (apart if rows > 1 else 0.0)

    best = best_measured_length(alpha, verifying, seconds)
    return DraftPlan(tensor_parallel_size, seconds, seconds / verifying(1), best.num_draft_tokens, float(best.speedup))


def plans_table(plans: Sequence[DraftPlan]) -> Table:
    """One row per plan."""
    columns = ("draft chips", "draft token (ms)", "cost ratio", "best length", "speed-up")
    rows = tuple(
        (p.tensor_parallel_size, 1e3 * p.draft_seconds, p.cost_ratio, p.num_draft_tokens, p.speedup) for p in plans
    )
    return Table("Where to run the draft", columns, rows)


def latency_curves(models: dict[str, ModelSize], chip: Chip, sizes: Sequence[int] = TENSOR_PARALLEL_SIZES) -> Chart:
    """Milliseconds of one token over the number of chips, one curve per model, its best size marked."""
    series = []
    for label, model in models.items():
        times = [1e3 * pass_seconds(model, chip, size) for size in sizes]
        series.append(Series(label, list(sizes), times, marked=[times.index(min(times))]))
    return Chart("One token on several chips", "tensor-parallel size", "milliseconds", tuple(series), discrete=True)
