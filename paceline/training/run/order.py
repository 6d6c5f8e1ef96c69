"""The reproducible order of training documents."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.training.heads.shards import Document


class Order:
    """Draws documents: every one once per epoch, in a new random order each time.

    Args:
        documents: documents to train on.
        seed: of the random orders.
    """

    def __init__(self, documents: Sequence[Document], seed: int) -> None:
        self._documents, self._rng = list(documents), np.random.default_rng(seed)
        self._left: list[int] = []
        self.epochs = -1

    def take(self, num_rows: int) -> list[Document]:
        """The next documents, until they have at least `num_rows` rows together."""
        taken: list[Document] = []
        while sum(one.num_rows for one in taken) < num_rows:
            if not self._left:
                self._left, self.epochs = self._rng.permutation(len(self._documents)).tolist(), self.epochs + 1
            taken.append(self._documents[self._left.pop()])
        return taken

    def state(self) -> dict[str, Any]:
        """The state for `restore`."""
        return {"left": list(self._left), "epochs": self.epochs, "rng": self._rng.bit_generator.state}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`; documents added since then come in with the next epoch, removed ones are dropped."""
        self._left, self.epochs = [i for i in state["left"] if i < len(self._documents)], state["epochs"]
        self._rng.bit_generator.state = state["rng"]
