"""`Edits`: a request's changes of single logits before temperature, as data.

`Warper.edits` constructs them. They are applied in numpy here, or to many rows at once on a device by the cuda
executor.
"""

from dataclasses import dataclass

import numpy as np

NO_IDS = np.zeros(0, np.int64)
NOTHING = np.zeros(0)


@dataclass(frozen=True, eq=False, slots=True)
class Edits:
    """Changes of one row of logits, in the order of the fields.

    Attributes:
        bias_ids, bias: [b] ids, and what is added to their logits.
        penalised, subtracted: [k] ids, and what is subtracted after `repetition`, which divides positive logits and
            multiplies others (Keskar et al. 2019, CTRL).
        forbidden: [n] ids set to -inf; may contain duplicates.
        allowed: [v] bool; ids where it is False, and ids from v on, are set to -inf too. None allows all.
    """

    bias_ids: np.ndarray
    bias: np.ndarray
    penalised: np.ndarray
    subtracted: np.ndarray
    repetition: float
    forbidden: np.ndarray
    allowed: np.ndarray | None

    def within(self, size: int) -> "Edits":
        """The same without ids from `size` on, for a row of a smaller vocabulary."""
        biased, punished = self.bias_ids < size, self.penalised < size
        return Edits(
            self.bias_ids[biased], self.bias[biased], self.penalised[punished], self.subtracted[punished],
            self.repetition, self.forbidden[self.forbidden < size], self.allowed,
        )  # fmt: skip

    def apply(self, scores: np.ndarray) -> None:
        """Change `scores` [vocab] float64 in place."""
        own = self.within(len(scores))
        scores[own.bias_ids] += own.bias
        old = scores[own.penalised]
        scores[own.penalised] = np.where(old > 0, old / own.repetition, old * own.repetition) - own.subtracted
        scores[own.forbidden] = -np.inf
        if own.allowed is not None:
            np.copyto(scores[: len(own.allowed)], -np.inf, where=~own.allowed[: len(scores)])
            scores[len(own.allowed) :] = -np.inf
