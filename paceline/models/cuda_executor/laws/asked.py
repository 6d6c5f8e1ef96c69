"""`Wide`: the questions about the rows of one pass as tensors on the device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from paceline.models.cuda_executor.laws.noise import words
from paceline.sampling.answered import Question
from paceline.sampling.edits import Edits

Move = Callable[[np.ndarray], Tensor]
_FEW, _HALF = 1024, 0.5
"""Largest top_k and smallest top_p for draws without sorting: each token that a race gives is outside a nucleus with
probability 1 - top_p, and then another one is looked for."""


@dataclass(frozen=True, eq=False, slots=True)
class RowEdits:
    """`Edits` of w rows of `size` logits; places are flat indices row * size + token.

    Attributes:
        biased, bias: [b] places, and the biases added there.
        penalised, repetition, subtracted: [k] places and the penalties there.
        forbidden: [n] places of forbidden tokens.
        masked, allowed: [g] rows, and [g, size] bool which tokens these allow.
    """

    biased: Tensor
    bias: Tensor
    penalised: Tensor
    repetition: Tensor
    subtracted: Tensor
    forbidden: Tensor
    masked: Tensor
    allowed: Tensor

    @classmethod
    def of(cls, edits: Sequence[Edits | None], size: int, move: Move) -> "RowEdits":
        """The edits of w rows in order."""
        own = [(row, each.within(size)) for row, each in enumerate(edits) if each is not None]
        masks = [(row, each.allowed) for row, each in own if each.allowed is not None]
        allowed = np.zeros((len(masks), size), bool)
        for line, (_, mask) in zip(allowed, masks, strict=True):
            line[: len(mask)] = mask[:size]
        return cls(
            move(_joined([row * size + each.bias_ids for row, each in own], np.int64)),
            move(_joined([each.bias for _, each in own], np.float64)),
            move(_joined([row * size + each.penalised for row, each in own], np.int64)),
            move(_joined([np.full(len(each.penalised), each.repetition) for _, each in own], np.float64)),
            move(_joined([each.subtracted for _, each in own], np.float64)),
            move(_joined([row * size + each.forbidden for row, each in own], np.int64)),
            move(np.array([row for row, _ in masks], np.int64)),
            move(allowed),
        )


@dataclass(frozen=True, eq=False, slots=True)
class Trials:
    """The trials at one position in the sequences of trials of s sampled rows.

    Attributes:
        rows: [c] rows that have such a trial. tokens: [c] the tokens tried.
        places, probs: [m] flat indices row * size + token, and the draft probabilities there.
    """

    rows: Tensor
    tokens: Tensor
    places: Tensor
    probs: Tensor

    @classmethod
    def of(cls, number: int, questions: Sequence[Question], size: int, move: Move) -> "Trials":
        """Trial `number` of those `questions` that have it."""
        own = [(row, *each.trials[number]) for row, each in enumerate(questions) if number < len(each.trials)]
        return cls(
            move(np.array([row for row, _, _ in own], np.int64)),
            move(np.array([token for _, token, _ in own], np.int64)),
            move(_joined([row * size + law.tokens for row, _, law in own], np.int64)),
            move(_joined([np.asarray(law.probs, np.float64) for _, _, law in own], np.float64)),
        )


@dataclass(frozen=True, eq=False, slots=True)
class Sampled:
    """The s questions with a temperature above 0.

    Attributes:
        places: [s] indices into the w questions of `Wide`.
        temperature, min_p, top_k, top_p: [s, 1]. keys: [s]. truncates: whether any row uses top_k or top_p.
        largest_k, smallest_p: the largest top_k and the smallest top_p; 0 and 1 where no row uses them.
        trials: one `Trials` for each position.
    """

    places: Tensor
    temperature: Tensor
    min_p: Tensor
    top_k: Tensor
    top_p: Tensor
    keys: Tensor
    truncates: bool
    largest_k: int
    smallest_p: float
    trials: tuple[Trials, ...]

    @classmethod
    def of(cls, wide: Sequence[Question], size: int, move: Move) -> "Sampled | None":
        """The questions among `wide` that require sampling; None when none does."""
        places = [place for place, each in enumerate(wide) if each.temperature > 0]
        own = [wide[place] for place in places]
        if not own:
            return None

        def column(name: str, kind: type) -> Tensor:
            return move(np.array([[getattr(each, name)] for each in own], kind))

        return cls(
            move(np.array(places, np.int64)),
            column("temperature", np.float64), column("min_p", np.float64), column("top_k", np.int64),
            column("top_p", np.float64),
            move(words([each.key for each in own])),
            any(each.top_k or each.top_p < 1 for each in own),
            max(each.top_k for each in own),
            min(each.top_p for each in own),
            tuple(Trials.of(number, own, size, move) for number in range(max(len(each.trials) for each in own))),
        )  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True)
class Wide:
    """The w questions that need more than the argmax of their row of logits.

    Attributes:
        places: [w] indices of their rows.
        edits: edits of their logits; None when there are none.
        sampled: the questions that require sampling; None when all are greedy.
    """

    places: Tensor
    edits: RowEdits | None
    sampled: Sampled | None

    def with_keys(self, keys: Tensor) -> "Wide":
        """The same questions with the noise `keys`, one for each row of logits."""
        own = self.sampled
        return self if own is None else replace(self, sampled=replace(own, keys=keys[self.places[own.places]]))

    @property
    def is_race(self) -> bool:
        """Whether each pick is drawn from a law without edits and trials, of which top_k leaves few tokens or all, and
        top_p most of the mass."""
        own = self.sampled
        if own is None or self.edits is not None or own.trials:
            return False
        return len(own.places) == len(self.places) and own.largest_k <= _FEW and own.smallest_p >= _HALF

    @classmethod
    def of(cls, questions: Sequence[Question | None], size: int, move: Move) -> "Wide | None":
        """The questions (or None) about rows of `size` logits in order; None when the argmax answers all of them.

        Args:
            move: copies an array to the device.
        """
        own = [
            (place, each) for place, each in enumerate(questions)
            if each is not None and not each.takes_argmax
        ]  # fmt: skip
        if not own:
            return None
        edits = [each.edits for _, each in own]
        return cls(
            move(np.array([place for place, _ in own], np.int64)),
            RowEdits.of(edits, size, move) if any(edits) else None,
            Sampled.of([each for _, each in own], size, move),
        )


def _joined(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate([*parts, np.zeros(0, kind)]).astype(kind, copy=False)
