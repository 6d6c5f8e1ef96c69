"""MLP speculator (Wertheimer et al. 2024) that shares the target's embeddings and head rows."""

from typing import cast

import torch
from torch import nn

from paceline.models.base import NORMED
from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.mlp_speculator import MlpSpeculator
from paceline.training.heads.batches import Batch
from paceline.training.heads.losses import Read
from paceline.training.heads.recipes.base import REACHED_DECAY, Recipe
from paceline.training.heads.target import Target

_LEAST_WIDTH = 1536


class MlpSpeculatorRecipe(Recipe):
    """A state of at least 1536 values, and steps that share their weights but for the first projection.

    Embeddings enter the state with a root mean square of 1 / sqrt(width), as in fms.
    """

    family, decay, as_reached = "mlp_speculator", REACHED_DECAY, True

    @staticmethod
    def describe(target: Target, draft_vocab_size: int, num_steps: int) -> HeadConfig:
        inner = max(_LEAST_WIDTH, target.config.hidden_size) if target.config.hidden_size >= 256 else 64
        size = float(target.embedding.float().pow(2).mean().sqrt())
        return HeadConfig(
            "mlp_speculator", target.about, (NORMED,), None, 0, num_steps, draft_vocab_size, inner_size=inner,
            scale_input=True, tied=True, embedding_scale=1 / (size * inner**0.5),
        )  # fmt: skip

    def build(self, target: Target) -> nn.Module:
        net = MlpSpeculator(self.config, target.embedding, self.rows)
        if hasattr(net, "embed_proj"):
            with torch.no_grad():
                net.embed_proj.weight.normal_(std=target.config.hidden_size**-0.5)
        return net

    def read(self, batch: Batch) -> list[Read]:
        net, reads = cast(MlpSpeculator, self.net), []
        state = net.begin(batch.normed[batch.anchors])
        for step in range(self.num_steps):
            state = net.step(step, state, batch.tokens(step))
            reads.append(Read(net.read(step, state).float()))
        return reads
