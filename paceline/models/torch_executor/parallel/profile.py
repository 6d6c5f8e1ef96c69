"""What a planner wants to know of a parallel model: seconds and weights of every stage, in the planner's own form."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paceline.models.base import PAGE_SIZE
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor.parallel.model import ParallelModel


@dataclass(frozen=True, slots=True)
class StageProfile:
    """One entry of a model's profile.

    Attributes:
        tensor, pipeline: degrees.
        latency: seconds of each stage for a pass over `rows` rows, by its slowest rank.
        weight_mem: bytes of weights on each device of each stage, by its fullest rank.
        rows: rows of the measured pass.
    """

    tensor: int
    pipeline: int
    latency: tuple[float, ...]
    weight_mem: tuple[int, ...]
    rows: int

    def to_json(self) -> dict[str, Any]:
        """For a profile file."""
        return asdict(self) | {"latency": list(self.latency), "weight_mem": list(self.weight_mem)}


def profile_stages(model: ParallelModel, num_tokens: int = 64, repeats: int = 5) -> StageProfile:
    """Measure a prefill of `num_tokens` tokens, stage by stage; the transfer between stages is not counted."""
    pages = range(-(-num_tokens // PAGE_SIZE))
    tokens = np.arange(num_tokens) % model.config.vocab_size
    seconds, weights = model.measure(build_rows([Part(pages, 0, tokens.tolist(), logits="last")]), repeats)
    layout = model.layout

    def by_stage(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(max(values[rank] for rank in layout.ranks_of(s)) for s in range(len(layout.stages)))

    return StageProfile(layout.tensor_size, len(layout.stages), by_stage(seconds), by_stage(weights), num_tokens)
