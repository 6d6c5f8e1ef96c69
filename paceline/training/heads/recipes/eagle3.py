"""EAGLE-3.1, trained on chains of its own steps (`rollout.py`), and EAGLE-3 as other programs compute it.

EAGLE-3.1 has a norm per tap, and the normed state is fed back. llama.cpp and SGLang compute neither, but one norm over
all taps; the same head with that norm loses some acceptance (`docs/training-heads.md`) and runs there as it is.
"""

from dataclasses import replace
from typing import cast

from torch import nn

from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.eagle3 import Eagle3
from paceline.training.heads.batches import Batch
from paceline.training.heads.losses import Read
from paceline.training.heads.recipes.base import REACHED_DECAY, Recipe, with_norm_of
from paceline.training.heads.rollout import rollout
from paceline.training.heads.taps import eagle_taps
from paceline.training.heads.target import Target


class Eagle3Recipe(Recipe):
    """One layer of the target's shape."""

    family, decay, as_reached, learns_any_logits = "eagle3", REACHED_DECAY, True, True

    @staticmethod
    def describe(target: Target, draft_vocab_size: int, num_steps: int) -> HeadConfig:
        layer, taps = (
            replace(target.config, num_hidden_layers=1, experts=None),
            eagle_taps(target.about.num_hidden_layers),
        )
        return HeadConfig(
            "eagle3", target.about, taps, layer, 1, num_steps, draft_vocab_size, fc_norm=True, norm_output=True,
        )  # fmt: skip

    def build(self, target: Target) -> nn.Module:
        return with_norm_of(target, Eagle3(self.config, target.embedding, self.rows))

    def read(self, batch: Batch) -> list[Read]:
        net = cast(Eagle3, self.net)
        return [Read(one) for one in rollout(net, batch, self.num_steps)]


class Eagle3OneNormRecipe(Eagle3Recipe):
    """EAGLE-3 with one norm over all taps, whose state before the last norm is fed back."""

    @staticmethod
    def describe(target: Target, draft_vocab_size: int, num_steps: int) -> HeadConfig:
        newer = Eagle3Recipe.describe(target, draft_vocab_size, num_steps)
        return replace(newer, fc_norm=False, norm_output=False, norm_before_fc=True)
