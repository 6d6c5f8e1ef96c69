"""`Trainee`: the interface of the training loop to what it trains: network, loss, evaluation on held-out text.

Draft heads (`training/heads/recipes/`), draft models (`training/drafts/`) and targets with heads (`training/joint/`)
share one loop.
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
    """State of a run at one update.

    Attributes:
        done: share of the planned updates made so far; about 0 while their number is not known.
        share: of the answers' rows that take a loss.
        random: generator of all random numbers of an update; checkpoints contain its state.
    """

    done: float
    share: float
    random: torch.Generator


class Trainee(ABC):
    """A model in training. Parameters of `net` that require a gradient are trained."""

    net: nn.Module

    @abstractmethod
    def loss(self, store: TapStore, documents: Sequence[Document], moment: Moment) -> Tensor:
        """The loss on these documents, a scalar with a gradient."""

    @abstractmethod
    def evaluate(self, store: TapStore, documents: Sequence[Document]) -> Evaluation:
        """Evaluate on these held-out documents."""

    def rate_factors(self) -> Mapping[str, float]:
        """Factors of the learning rate, by prefix of a parameter's name; 1 for other names."""
        return {}

    def about(self) -> dict[str, int | float | str]:
        """Settings that a resumed run must share with its checkpoint, by the names that error messages show."""
        return {}

    def kept(self) -> dict[str, Tensor]:
        """Further tensors of a checkpoint, by name; a resumed run must have the same."""
        return {}
