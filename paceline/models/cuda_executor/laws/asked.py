"""`Asked`: the questions about the rows of one pass as tensors on the device, sent there before the pass begins.

A copy from ordinary memory waits for whatever the device is doing, so nothing is copied once the pass runs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paceline.models.cuda_executor.laws.noise import keys_tensor
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
class Asked:
    """n questions about rows of logits.

    Attributes:
        rows: [n] which of the pass's rows of logits.
        tried: [n, most trials] tokens tried, -1 after the last.
        wide: [w] questions, of the n, that take more than the largest logit; `edits` are of these.
        sampled: [s] questions, of the w, above temperature 0, and what follows is of these.
        temperature, min_p, top_k, top_p: [s, 1]. keys: [s]. truncates: whether any is cut by top_k or top_p.
        trials: one for each number.
    """

    rows: Tensor
    tried: Tensor
    wide: Tensor
    edits: RowEdits
    sampled: Tensor
    temperature: Tensor
    min_p: Tensor
    top_k: Tensor
    top_p: Tensor
    keys: Tensor
    truncates: bool
    trials: tuple[Trials, ...]

    @classmethod
    def of(cls, questions: Sequence[Question | None], size: int, device: torch.device) -> "Asked":
        """What is asked of rows of `size` logits, in order; None asks nothing."""

        def move(values: np.ndarray) -> Tensor:
            return torch.from_numpy(values).to(device)

        asked = [(row, each) for row, each in enumerate(questions) if each is not None]
        tried = np.full((len(asked), max((len(each.trials) for _, each in asked), default=0)), -1, np.int64)
        for line, (_, each) in zip(tried, asked, strict=True):
            line[: len(each.trials)] = [token for token, _ in each.trials]
        wide = [i for i, (_, each) in enumerate(asked) if each.temperature > 0 or each.edits is not None]
        sampled = [i for i, place in enumerate(wide) if asked[place][1].temperature > 0]
        drawn = [asked[wide[i]][1] for i in sampled]

        def column(name: str, kind: type) -> Tensor:
            return move(np.array([[getattr(each, name)] for each in drawn], kind).reshape(len(drawn), 1))

        return cls(
            move(np.array([row for row, _ in asked], np.int64)),
            move(tried),
            move(np.array(wide, np.int64)),
            RowEdits.of([asked[place][1].edits for place in wide], size, move),
            move(np.array(sampled, np.int64)),
            column("temperature", np.float64), column("min_p", np.float64), column("top_k", np.int64),
            column("top_p", np.float64),
            keys_tensor([each.key for each in drawn]).to(device),
            any(each.top_k or each.top_p < 1 for each in drawn),
            tuple(Trials.of(i, drawn, size, move) for i in range(max((len(q.trials) for q in drawn), default=0))),
        )  # fmt: skip


def _joined(parts: Sequence[np.ndarray], kind: type) -> np.ndarray:
    return np.concatenate([*parts, np.zeros(0, kind)]).astype(kind, copy=False)
