"""Answers to questions about laws, many rows at once; the arithmetic of `Law` and of the race, on dense rows."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.models.cuda_executor.laws.asked import Asked, Sampled, Trials
from paceline.models.cuda_executor.laws.noise import exponentials
from paceline.models.cuda_executor.laws.warp import edited, law_weights, ordered_sum
from paceline.sampling.answered import Answer, Question

_PICK, _PEAK, _BEST, _ARGMAX = range(4)
"""Columns of the table of answers; the chances of trials follow."""


def answers_of(logits: Tensor, asked: Asked) -> Tensor:
    """[n, 4 + trials] float64 on the device, one row per question; see `read_answers`.

    Args:
        logits: [rows, vocab] float32.
    """
    own, wide = logits if asked.rows is None else logits[asked.rows], asked.wide
    raw_peak, argmax = own.max(dim=-1)
    peak, best, pick, drawn = raw_peak.double(), argmax, argmax, None
    if wide is not None:
        best, pick = argmax.clone(), argmax.clone()
        scores = edited(own[wide.places], wide.edits)
        peak[wide.places], best[wide.places] = scores.max(dim=-1)
        pick[wide.places] = best[wide.places]
        if wide.sampled is not None:
            picks, drawn = _drawn(scores[wide.sampled.places], wide.sampled)
            pick[wide.places[wide.sampled.places]] = picks
    table = torch.stack([pick.double(), peak, best.double(), argmax.double()], dim=1)
    if asked.tried is None:
        return table
    chances = (asked.tried == pick[:, None]).double()
    if wide is not None and wide.sampled is not None and drawn is not None:
        chances[wide.places[wide.sampled.places], : drawn.shape[1]] = drawn
    return torch.cat([table, chances], dim=1)


def _drawn(scores: Tensor, own: Sampled) -> tuple[Tensor, Tensor]:
    """(picks [s], chances of the trials [s, trials]) of the sampled rows, `scores` [s, vocab]."""
    law = law_weights(scores, own.temperature, own.min_p, own.top_k, own.top_p, own.truncates)
    chances = torch.zeros(len(law), len(own.trials), dtype=law.dtype, device=law.device)
    if own.trials:
        law = law / ordered_sum(law)
    for number, trials in enumerate(own.trials):
        chances[trials.rows, number] = law[trials.rows, trials.tokens]
        law = _refused(law, trials)
    return (exponentials(own.keys, law.shape[-1]) / law).argmin(dim=-1), chances


def _refused(law: Tensor, trials: Trials) -> Tensor:
    """norm(max(0, p - q)) of the rows that have a trial, p itself where nothing is left; see `Law.residual`."""
    left = law.clone()
    left.view(-1)[trials.places] = (law.view(-1)[trials.places] - trials.probs).clamp_min(0)
    mass = ordered_sum(left)
    is_refused = torch.zeros_like(mass, dtype=torch.bool)
    is_refused[trials.rows] = True
    return torch.where(is_refused & (mass > 0), left / mass, law)


def read_answers(table: np.ndarray, questions: Sequence[Question | None]) -> list[Answer | None]:
    """The answers of `answers_of`, on the host now, to the questions in order."""
    lines = iter(table.tolist())
    return [None if each is None else _answer(next(lines), len(each.trials)) for each in questions]


def _answer(line: list[float], num_trials: int) -> Answer:
    chances = tuple(line[_ARGMAX + 1 : _ARGMAX + 1 + num_trials])
    return Answer(int(line[_PICK]), chances, line[_PEAK], int(line[_BEST]), int(line[_ARGMAX]))
