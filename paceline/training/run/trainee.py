"""What a training run asks of what it trains: a network, a loss on some documents, figures on held-out ones.

Draft heads (`training/heads/recipes/`) and whole draft models (`training/drafts/`) are trainees of one loop.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.training.heads.figures import Evaluation
from paceline.training.heads.shards import Document, TapStore


@dataclass(frozen=True, eq=False, slots=True)
class Moment:
    """Where in a run an update is.

    Attributes:
        done: share of the planned updates that were made before it; 0 while none are planned.
        share: of the answers' rows that take a loss.
        random: source of all that is drawn; its state is in the checkpoint.
    """

    done: float
    share: float
    random: torch.Generator


class Trainee(ABC):
    """Something that learns from documents. Parameters of `net` that need a gradient are trained."""

    net: nn.Module

    @abstractmethod
    def loss(self, store: TapStore, documents: Sequence[Document], moment: Moment) -> Tensor:
        """The loss on these documents, a scalar with a gradient."""

    @abstractmethod
    def evaluate(self, store: TapStore, documents: Sequence[Document]) -> Evaluation:
        """Figures on these documents, which it is not trained on."""

    def rate_factors(self) -> Mapping[str, float]:
        """Learning rates over the loop's, by the beginning of a parameter's name; 1 where none is said."""
        return {}

    def about(self) -> dict[str, int | float | str]:
        """What a run has in common with its checkpoint besides sizes, by the names that a user knows."""
        return {}

    def kept(self) -> dict[str, Tensor]:
        """What a checkpoint holds besides weights, by name."""
        return {}
