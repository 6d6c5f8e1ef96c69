"""What a recipe is."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from paceline.models.heads.record import HeadConfig, HeadRecord
from paceline.training.heads.batches import Batch, make_batch
from paceline.training.heads.evaluate import evaluate
from paceline.training.heads.figures import Evaluation
from paceline.training.heads.losses import LossParts, Read, law_loss
from paceline.training.heads.shards import Document, TapStore
from paceline.training.heads.target import Target
from paceline.training.run.trainee import Moment, Trainee

_HYBRID_FROM = 0.6
"""Share of the run after which the loss is the LK hybrid."""
_ETA = 3.0
REACHED_DECAY = 0.6
"""Decay of recipes that are `as_reached`. Where 0.6 of each step's tokens are accepted, three steps then weigh 1, 0.48
and 0.23; the derivatives of the expected length by their acceptances are as 1 to 0.49 to 0.18."""


class Recipe(Trainee):
    """A head in training: its network, and what the network reads for a batch.

    Args:
        target: what it drafts for.
        draft_ids: [m] int32 ascending, the draft vocabulary.
        num_steps: tokens of a draft.
    """

    family: ClassVar[str]
    decay: ClassVar[float] = 0.8
    """Weight of the loss of a step over that of the step before."""
    as_reached: ClassVar[bool] = False
    """Whether the loss of a step is also multiplied by (1 + acceptance) / 2 of each step before it (D-PACE): a step
    that is seldom reached adds little to the expected length."""
    learns_any_logits: ClassVar[bool] = False
    """Whether a norm of the head's own comes before the output head. Its weights then learn what a target does to its
    logits beyond the product (a factor, nearly a cap), for which layouts of heads have no field."""

    def __init__(self, target: Target, draft_ids: np.ndarray, num_steps: int) -> None:
        self.target, self.draft_ids, self.num_steps = target, draft_ids, num_steps
        self.device = target.head.device
        self.ids = torch.from_numpy(draft_ids).long().to(self.device)
        self.target_head = target.output_head(self.ids)
        self.rows = self.target_head.rows
        self.config = self.describe(target, len(draft_ids), num_steps)
        self.net = self.build(target).to(self.device)

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

    def loss(self, store: TapStore, documents: Sequence[Document], moment: Moment) -> Tensor:
        """The weighted loss of all steps, per anchor."""
        batch = make_batch(store, documents, self.config.taps, moment.share, moment.random, self.device)
        with self.in_halves(self.rows.dtype == torch.bfloat16):
            reads = self.read_in_training(batch, moment)
        total, accepted, count = torch.zeros((), device=self.device), [], max(len(batch.anchors), 1)
        reached = torch.ones(len(batch.anchors), device=self.device)
        for step, read in enumerate(reads):
            kept = batch.labelled(step)
            added = None if read.added is None else (read.added[0][kept], read.added[1])
            weights = reached[kept] * (self.decay**step / count)
            parts = self.step_loss(Read(read.hidden[kept].float(), added), batch.teacher(step), weights, moment)
            total = total + parts.loss
            if self.as_reached:
                reached[kept] *= 0.5 + 0.5 * parts.acceptance
            accepted.append(parts.acceptance)
        further = self.further_loss(batch, reads, accepted)
        return total if further is None else total + further

    def in_halves(self, enabled: bool = True) -> torch.autocast:
        """A context in which products are taken in bfloat16 on this head's device."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=enabled)

    def read_in_training(self, batch: Batch, moment: Moment) -> list[Read]:
        """As `read`, where training reads something else than serving does."""
        return self.read(batch)

    def step_loss(self, read: Read, teacher: Tensor, weights: Tensor, moment: Moment) -> LossParts:
        """The loss of one step: soft cross entropy, towards the end of the run the LK hybrid; see `law_loss`."""
        eta = _ETA if moment.done >= _HYBRID_FROM else None
        return law_loss(read, teacher, self.rows, weights, eta, self.target_head)

    def evaluate(self, store: TapStore, documents: Sequence[Document]) -> Evaluation:
        """See `Trainee.evaluate`."""
        return evaluate(self, store, documents)

    def about(self) -> dict[str, int | float | str]:
        """Curves of other lengths cannot be compared."""
        return {"num_draft_tokens": self.num_steps}

    def kept(self) -> dict[str, Tensor]:
        """The draft vocabulary."""
        return {"draft_ids": torch.from_numpy(self.draft_ids)}

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


def with_norm_of(target: Target, net: nn.Module) -> nn.Module:
    """`net`, whose last norm begins as the target's, since its output head is the target's too."""
    with torch.no_grad():
        net.norm.weight.copy_(target.norm * target.logit_scale)  # type: ignore[union-attr, operator]
    return net
