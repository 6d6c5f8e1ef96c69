"""Measures the seconds and weights of every stage of a parallel model, for the case files of the placement planner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paceline.models.base import Rows, pages_for
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor.parallel.model import ParallelModel


@dataclass(frozen=True, slots=True)
class StageProfile:
    """One entry of a model's profile.

    Attributes:
        tensor, pipeline: degrees.
        latency: seconds of each stage for one request, of its slowest rank.
        weight_mem: bytes of weights per device of each stage, of its largest rank.
        batch_latency: as `latency` for several requests in a pass, by their number.
    """

    tensor: int
    pipeline: int
    latency: tuple[float, ...]
    weight_mem: tuple[int, ...]
    batch_latency: Mapping[int, tuple[float, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """An entry of ``profiles`` in a case file of `placement`."""
        entry: dict[str, Any] = {"op": self.tensor, "pp": self.pipeline}
        entry |= {"latency": list(self.latency), "weight_mem": list(self.weight_mem)}
        batches = {str(size): list(seconds) for size, seconds in self.batch_latency.items()}
        return entry | ({"batch_latency": batches} if batches else {})


def profile_stages(
    model: ParallelModel, num_tokens: int = 64, batch_sizes: Sequence[int] = (1,), repeats: int = 5
) -> StageProfile:
    """Measure prefills of `num_tokens` tokens, stage by stage; the transfer between stages is not counted.

    Args:
        batch_sizes: how many such requests share a pass; 1 is always measured.
        repeats: passes of each size, of which the median counts.
    """
    layout = model.layout

    def by_stage(values: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(max(values[rank] for rank in layout.ranks_of(s)) for s in range(len(layout.stages)))

    seconds, weights = model.measure(prefill_rows(model, num_tokens), repeats)
    batches = {
        size: by_stage(model.measure(prefill_rows(model, num_tokens, size), repeats)[0])
        for size in sorted(set(batch_sizes) - {1})
    }
    return StageProfile(layout.tensor_size, len(layout.stages), by_stage(seconds), by_stage(weights), batches)


def prefill_rows(model: ParallelModel, num_tokens: int, num_requests: int = 1) -> Rows:
    """Rows of `num_requests` whole prompts, each with the logits of its last token."""
    pages = pages_for(num_tokens)
    tokens = (np.arange(num_tokens) % model.config.vocab_size).tolist()
    parts = [Part(range(i * pages, (i + 1) * pages), 0, tokens, logits="last") for i in range(num_requests)]
    return build_rows(parts)
