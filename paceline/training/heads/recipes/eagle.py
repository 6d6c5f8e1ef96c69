"""EAGLE-1 (Li et al. 2024) and HASS (Zhang et al. 2024): a layer that predicts the target's next hidden state.

EAGLE-1: SmoothL1(f, f_target) + 0.1 * cross entropy, one step from the target's states with noise; EAGLE-2 is the same
head drafting dynamic trees. HASS trains on chains of the head's own states, as in drafting (context alignment), and
adds the cross entropy over the target's K most probable tokens (objective distillation):

    L = sum over steps of SmoothL1(f_j, f_target) + 0.1 * (-sum p log q) + W * (-sum over TopK(p) of p log q)

The published code of HASS multiplies scores by masks before the softmax, so masked keys keep some attention weight;
here they have none (`attention.py`).
"""

from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.base import NORMED
from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.eagle import Eagle
from paceline.training.heads.batches import Batch
from paceline.training.heads.losses import LossParts, Read, fused_loss
from paceline.training.heads.recipes.base import Recipe
from paceline.training.heads.rollout import rollout
from paceline.training.heads.target import Target
from paceline.training.run.trainee import Moment

NOISE, CLASS_WEIGHT, TOP_WEIGHT, TOP_K = 0.1, 0.1, 1.0, 10
"""Half-width of EAGLE-1's uniform noise; weights of the cross entropies beside SmoothL1; HASS's K."""


class EagleRecipe(Recipe):
    """EAGLE-1: one layer of the target's shape, trained for one step."""

    family, decay = "eagle", 1.0
    top_weight = 0.0

    @staticmethod
    def describe(target: Target, draft_vocab_size: int, num_steps: int) -> HeadConfig:
        layer = replace(target.config, num_hidden_layers=1, experts=None)
        return HeadConfig(
            "eagle", target.about, (NORMED,), layer, 1, num_steps, draft_vocab_size, fc_bias=True
        )  # fmt: skip

    def build(self, target: Target) -> nn.Module:
        return Eagle(self.config, target.embedding, self.rows)

    def read(self, batch: Batch) -> list[Read]:
        return [Read(one) for one in rollout(cast(Eagle, self.net), batch, self.num_steps)]

    def read_in_training(self, batch: Batch, moment: Moment) -> list[Read]:
        """One step, from the target's states with noise."""
        noise = (torch.rand(batch.normed.shape, generator=moment.random).to(self.device) * 2 - 1) * NOISE
        return [Read(one) for one in rollout(cast(Eagle, self.net), batch, 1, noise=noise)]

    def step_loss(self, read: Read, teacher: Tensor, weights: Tensor, moment: Moment) -> LossParts:
        """SmoothL1 of the states, averaged over their values, plus the cross entropies."""
        states = functional.smooth_l1_loss(read.hidden, teacher.float(), reduction="none").mean(-1)
        criterion = partial(top_cross_entropy, top_weight=self.top_weight)
        parts = fused_loss(read, teacher, self.rows, weights, criterion, self.target_head)
        return parts._replace(loss=parts.loss + (states * weights).sum())


class HassRecipe(EagleRecipe):
    """HASS: EAGLE-1's head, trained on its own chains of `num_steps` tokens."""

    top_weight = TOP_WEIGHT

    def read_in_training(self, batch: Batch, moment: Moment) -> list[Read]:
        """All steps, each from the states of the one before."""
        return [Read(one) for one in rollout(cast(Eagle, self.net), batch, self.num_steps, detached=True)]


def top_cross_entropy(logits: Tensor, target: Tensor, top_weight: float) -> tuple[Tensor, Tensor, Tensor]:
    """A `Criterion`: CLASS_WEIGHT * cross entropy + `top_weight` * its part over the target's TOP_K best tokens."""
    log_q = torch.log_softmax(logits, dim=-1)
    q, wanted = log_q.exp(), CLASS_WEIGHT * target
    if top_weight:
        top = target.topk(min(TOP_K, target.shape[-1]), dim=-1)
        wanted = wanted.scatter_add(-1, top.indices, top_weight * top.values)
    gradient = q * wanted.sum(-1, keepdim=True) - wanted
    return -(wanted * log_q).sum(-1), torch.minimum(target, q).sum(-1), gradient
