"""Answers to questions about sampling distributions, many rows at once, with the arithmetic of `Law` on dense rows."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from paceline.models.cuda_executor.laws.asked import Sampled, Trials, Wide
from paceline.models.cuda_executor.laws.noise import exponentials
from paceline.models.cuda_executor.laws.warp import edited, law_weights, ordered_sum
from paceline.sampling.answered import Answer, Question

Table = TypeVar("Table", Tensor, np.ndarray)
Race = Callable[[Tensor, Tensor, Wide], Tensor | None]
"""(logits, peaks, a `Wide` that is a race) to its picks [w] float64; None where another way is faster."""
_ARGMAX, _PEAK, _PICK, _BEST = range(4)
"""Columns of the table of answers, whose first two are those of `peaks_of`; the chances of trials follow."""


def picks_of(table: Table) -> Table:
    """[rows] the picks in a table of answers."""
    return table[:, _PICK if table.shape[1] > _PICK else _ARGMAX]


def peaks_of(logits: Tensor) -> Tensor:
    """[rows, 2] float64: argmax (the first on ties) and maximum of logits [rows, vocab]."""
    peak, argmax = logits.max(dim=-1)
    return torch.stack([argmax.double(), peak.double()], dim=1)


def answers_of(logits: Tensor, peaks: Tensor, wide: Wide | None, race: Race | None = None) -> Tensor:
    """The table of answers [rows, n] float64 on the device, for `read_answers`.

    Args:
        logits: [rows, vocab] float32.
        peaks: [rows, 2], `peaks_of` the logits.
        wide: the questions that need more than the peaks.
        race: faster picks for a `Wide` that is nothing but a race.
    """
    if wide is None:
        return peaks
    picks = race(logits, peaks, wide) if race is not None and wide.is_race else None
    if picks is not None:
        argmax = peaks[:, :1]
        table = torch.cat([peaks, argmax, argmax], dim=1)  # an index that is a list would be copied, and waited for
        table[wide.places, _PICK] = picks
        return table
    argmax, peak = peaks[:, _ARGMAX], peaks[:, _PEAK].clone()
    pick, best, drawn = argmax.clone(), argmax.clone(), peaks.new_zeros(len(peaks), 0)
    scores = edited(logits[wide.places], wide.edits)
    peak[wide.places], at = scores.max(dim=-1)
    pick[wide.places] = best[wide.places] = at.double()
    if wide.sampled is not None:
        sampled = wide.places[wide.sampled.places]
        picks, chances = _drawn(scores[wide.sampled.places], wide.sampled)
        pick[sampled] = picks.double()
        drawn = peaks.new_zeros(len(peaks), chances.shape[1])
        drawn[sampled] = chances
    return torch.cat([torch.stack([argmax, peak, pick, best], dim=1), drawn], dim=1)


def _drawn(scores: Tensor, own: Sampled) -> tuple[Tensor, Tensor]:
    """(picks [s], chances of the trials [s, trials]) of the sampled rows, `scores` [s, vocab]."""
    law = law_weights(scores, own.temperature, own.min_p, own.top_k, own.top_p, own.truncates)
    chances = torch.zeros(len(law), len(own.trials), dtype=law.dtype, device=law.device)
    if own.trials:
        law = law / ordered_sum(law)
    for number, trials in enumerate(own.trials):
        chances[trials.rows, number] = law[trials.rows, trials.tokens]
        law = _refused(law, trials)
    noise = exponentials(own.keys, torch.arange(law.shape[-1], device=law.device))
    return (noise / law).argmin(dim=-1), chances


def _refused(law: Tensor, trials: Trials) -> Tensor:
    """norm(max(0, p - q)) for the rows that have a trial, p itself where that is zero; see `Law.residual`."""
    left = law.clone()
    left.view(-1)[trials.places] = (law.view(-1)[trials.places] - trials.probs).clamp_min(0)
    mass = ordered_sum(left)
    is_refused = torch.zeros_like(mass, dtype=torch.bool)
    is_refused[trials.rows] = True
    return torch.where(is_refused & (mass > 0), left / mass, law)


def read_answers(table: np.ndarray, questions: Sequence[Question | None]) -> list[Answer | None]:
    """The answers to `questions` in a table of `answers_of` that was copied to the host."""
    return [None if each is None else _answer(line, each) for line, each in zip(table.tolist(), questions, strict=True)]


def _answer(line: list[float], question: Question) -> Answer:
    argmax = pick = best = int(line[_ARGMAX])
    if len(line) > _BEST:
        pick, best = int(line[_PICK]), int(line[_BEST])
    if not question.trials:
        chances = ()
    elif question.temperature > 0:
        chances = tuple(line[_BEST + 1 : _BEST + 1 + len(question.trials)])
    else:
        chances = tuple([float(token == pick) for token, _ in question.trials])
    return Answer(pick, chances, line[_PEAK], best, argmax)
