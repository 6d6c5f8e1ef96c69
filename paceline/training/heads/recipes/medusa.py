"""Medusa-1 (Cai et al. 2024, section 2.2): one extra head per drafted position, with a frozen target."""

from typing import cast

from torch import nn

from paceline.models.base import NORMED
from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.medusa import Medusa, StateOnly
from paceline.training.heads.batches import Batch
from paceline.training.heads.losses import Read
from paceline.training.heads.recipes.base import Recipe
from paceline.training.heads.target import Target

_BLOCKS = 3
"""Residual blocks per head. The paper has one; `docs/training-heads.md` compares them."""


class MedusaRecipe(Recipe):
    """Residual blocks per head; the output head is the target's."""

    family = "medusa"

    @staticmethod
    def describe(target: Target, draft_vocab_size: int, num_steps: int) -> HeadConfig:
        return HeadConfig(
            "medusa", target.about, (NORMED,), None, 0, num_steps, draft_vocab_size, fc_bias=True, block_depth=_BLOCKS
        )

    def build(self, target: Target) -> nn.Module:
        return Medusa(self.config, target.embedding, self.rows)

    def read(self, batch: Batch) -> list[Read]:
        net, hidden = cast(StateOnly, self.net), batch.normed[batch.anchors]
        return [Read(net.read(step, hidden)) for step in range(self.num_steps)]
