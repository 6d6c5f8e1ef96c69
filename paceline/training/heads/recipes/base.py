"""What a recipe is, and what training knows of the target."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from paceline.models.config import ModelConfig
from paceline.models.heads.record import HeadConfig, HeadRecord, TargetPrint
from paceline.training.heads.batches import Batch
from paceline.training.heads.losses import Read


@dataclass(frozen=True, eq=False, slots=True)
class Target:
    """The model that heads are trained for.

    Attributes:
        about: what tells it from others.
        config: its sizes.
        embedding, head: [vocabulary, hidden] bfloat16; one tensor where they are tied.
        norm: [hidden] float32, of its final norm.
        mask_token_id: a token that texts do not hold, whose embedding stands for a place to fill.
    """

    about: TargetPrint
    config: ModelConfig
    embedding: Tensor
    head: Tensor
    norm: Tensor
    mask_token_id: int = 0


class Recipe(ABC):
    """A head in training: its network, and what the network reads for a batch.

    Args:
        target: what it drafts for.
        draft_ids: [m] int32 ascending, the draft vocabulary.
        num_steps: tokens of a draft.
    """

    family: ClassVar[str]
    decay: ClassVar[float] = 0.8
    """Weight of the loss of a step over that of the step before."""

    net: nn.Module

    def __init__(self, target: Target, draft_ids: np.ndarray, num_steps: int) -> None:
        self.draft_ids, self.num_steps = draft_ids, num_steps
        self.rows = target.head[torch.from_numpy(draft_ids).long()].contiguous()
        self.config = self.describe(target, len(draft_ids), num_steps)
        self.net = self.build(target)

    @staticmethod
    @abstractmethod
    def describe(target: Target, draft_vocab_size: int, num_steps: int) -> HeadConfig:
        """The head's description."""

    @abstractmethod
    def build(self, target: Target) -> nn.Module:
        """A new network of this description."""

    @abstractmethod
    def read(self, batch: Batch) -> list[Read]:
        """What makes the logits of every step of the batch's anchors."""

    def further_loss(self, batch: Batch, reads: Sequence[Read], acceptance: Sequence[Tensor]) -> Tensor | None:
        """A loss beside that of the laws; None for none.

        Args:
            acceptance: per step that of its labelled anchors.
        """
        return None

    def record(self, weights: dict[str, Tensor], card: dict[str, object]) -> HeadRecord:
        """The head with these weights."""
        tensors = {name: values.detach().float().cpu().numpy() for name, values in weights.items()}
        names_all = len(self.draft_ids) == self.config.target.vocab_size
        return HeadRecord(self.config, tensors, None if names_all else self.draft_ids, card)


def eagle_taps(num_layers: int) -> tuple[int, int, int]:
    """A low, a middle and a high residual stream (Li et al. 2025): those entering layers 2, n // 2 and n - 3."""
    return (min(2, num_layers - 1), num_layers // 2, max(num_layers - 3, 0))
