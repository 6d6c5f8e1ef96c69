"""`Asked`: the questions about the rows of one pass as tensors on the device, sent there before the pass begins.

A copy from ordinary memory waits for whatever the device is doing, so nothing is copied once the pass runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.models.cuda_executor.laws.noise import words
from paceline.sampling.answered import Question
from paceline.sampling.edits import Edits

Move = Callable[[np.ndarray], Tensor]


@dataclass(frozen=True, eq=False, slots=True)
class RowEdits:
    """`Edits` of several of w rows of `size` logits; places are row * size + token.

    Attributes:
        biased, bias: [b] places, and what is added there.
        penalised, repetition, subtracted: [k] places and the penalties there.
        forbidden: [n] places.
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
        """Of w rows in order."""
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
    """The trials with one number of s sampled rows.

    Attributes:
        rows: [c] those that have one. tokens: [c] the token tried.
        places, probs: [m] row * size + token, and the chance there under the law that the token was drawn from.
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
    """The s questions about laws above temperature 0.

    Attributes:
        places: [s] which of the wide questions.
        temperature, min_p, top_k, top_p: [s, 1]. keys: [s]. truncates: whether any is cut by top_k or top_p.
        trials: one for each number.
    """

    places: Tensor
    temperature: Tensor
    min_p: Tensor
    top_k: Tensor
    top_p: Tensor
    keys: Tensor
    truncates: bool
    trials: tuple[Trials, ...]

    @classmethod
    def of(cls, wide: Sequence[Question], size: int, move: Move) -> "Sampled | None":
        """Of those `wide` questions that ask for a draw; None when none does."""
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
            tuple(Trials.of(number, own, size, move) for number in range(max(len(each.trials) for each in own))),
        )  # fmt: skip


@dataclass(frozen=True, eq=False, slots=True)
class Wide:
    """The w questions that take more than the largest logit.

    Attributes:
        places: [w] which of all questions.
        edits: of them, None when nothing is edited.
        sampled: of them, None when all are greedy.
    """

    places: Tensor
    edits: RowEdits | None
    sampled: Sampled | None

    @classmethod
    def of(cls, asked: Sequence[Question], size: int, move: Move) -> "Wide | None":
        """Of all questions `asked`; None when the largest logit answers each."""
        places = [place for place, each in enumerate(asked) if each.temperature > 0 or each.edits is not None]
        own = [asked[place] for place in places]
        if not own:
            return None
        edits = [each.edits for each in own]
        return cls(
            move(np.array(places, np.int64)),
            RowEdits.of(edits, size, move) if any(edits) else None,
            Sampled.of(own, size, move),
        )


@dataclass(frozen=True, eq=False, slots=True)
class Asked:
    """n questions about rows of logits; greedy ones without edits cost no copy at all.

    Attributes:
        rows: [n] which of the pass's rows of logits, None for all of them in order.
        tried: [n, most trials] tokens tried, -1 after the last; None when nothing is tried.
        wide: those that take more than the largest logit.
    """

    rows: Tensor | None
    tried: Tensor | None
    wide: Wide | None

    @classmethod
    def of(cls, questions: Sequence[Question | None], size: int, device: torch.device) -> "Asked":
        """What is asked of rows of `size` logits, in order; None asks nothing."""

        def move(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(device)

        asked = [each for each in questions if each is not None]
        rows = [row for row, each in enumerate(questions) if each is not None]
        most = max((len(each.trials) for each in asked), default=0)
        tried = np.full((len(asked), most), -1, np.int64)
        for line, each in zip(tried, asked, strict=True):
            line[: len(each.trials)] = [token for token, _ in each.trials]
        return cls(
            None if len(rows) == len(questions) else move(np.array(rows, np.int64)),
            move(tried) if most else None,
            Wide.of(asked, size, move),
        )


def _joined(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate([*parts, np.zeros(0, kind)]).astype(kind, copy=False)
