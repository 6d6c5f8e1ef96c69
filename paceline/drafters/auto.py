"""What the drafter ``auto`` is for a target: whether a trained head pays beside lookups. Not for making drafters
(`registry.py`)."""

from dataclasses import replace

from paceline.config import SpeculativeConfig
from paceline.models.architecture.size import bytes_per_pass
from paceline.models.base import HasDevice, RunsHeads
from paceline.models.heads.registry import best_head
from paceline.models.loaded import LoadedModel

AUTO = "auto"
"""The drafter that is used when none is named."""
LEAST_BYTES = 300e6
"""Smallest number of bytes read by a target pass for which ``auto`` uses a head. Below, a head beside lookups costs
more than it saves: with 81 million bytes always, with 269 million in greedy decoding; at temperature 1 both are about
equally fast there (docs/drafters.md). Larger models were not measured."""
LEAST_BYTES_ON_A_GPU = 6e9
"""The same on a GPU. A chain of four tokens by EAGLE-3 takes 2.0 ms on an H100, which reads 6 GB in that time. With a
head beside lookups a model of 269 million bytes was a third slower for one request, 45 % for eight (docs/gpu.md)."""


def resolve_drafter(wanted: SpeculativeConfig | None, target: LoadedModel) -> SpeculativeConfig | None:
    """`wanted` with ``auto`` replaced by a drafter for `target`.

    That is the draft model where one is named. Else, where there is a head for these weights, the executor supports
    heads and the target is large enough (`LEAST_BYTES`), a hybrid of lookups and that head. Else ``suffix``, which
    needs no training and proposes nothing without a match.
    """
    if wanted is None or wanted.method != AUTO:
        return wanted
    if wanted.model:
        return replace(wanted, method="draft_model")
    is_gpu = isinstance(target.model, HasDevice) and target.model.device.type != "cpu"
    least = LEAST_BYTES_ON_A_GPU if is_gpu else LEAST_BYTES
    has_time = bytes_per_pass(target.model.config, target.dtype or AUTO) >= least
    ref = best_head(target.source) if isinstance(target.model, RunsHeads) and has_time else None
    if ref is None:
        return replace(wanted, method="suffix")
    children = ["suffix", {"method": "head", "model": str(ref.path)}]
    return replace(wanted, method="hybrid", options={**wanted.options, "drafters": children})
