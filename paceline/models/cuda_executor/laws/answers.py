"""Answers to questions about laws, many rows at once; the arithmetic of `Law` and of the race, on dense rows."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.models.cuda_executor.laws.asked import Asked, Trials
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
    own = logits[asked.rows]
    raw_peak, argmax = own.max(dim=-1)
    peak, best, pick = raw_peak.double(), argmax.clone(), argmax.clone()
    drawn = torch.zeros(0, 0, dtype=torch.float64, device=logits.device)
    if len(asked.wide):
        scores = edited(own[asked.wide], asked.edits)
        peak[asked.wide], best[asked.wide] = scores.max(dim=-1)
        pick[asked.wide] = best[asked.wide]
        if len(asked.sampled):
            picks, drawn = _drawn(scores[asked.sampled], asked)
            pick[asked.wide[asked.sampled]] = picks
    chances = (asked.tried == pick[:, None]).double()
    if len(asked.trials):
        chances[asked.wide[asked.sampled], : drawn.shape[1]] = drawn
    return torch.cat([torch.stack([pick.double(), peak, best.double(), argmax.double()], dim=1), chances], dim=1)


def _drawn(scores: Tensor, asked: Asked) -> tuple[Tensor, Tensor]:
    """(picks [s], chances of the trials [s, trials]) of the sampled rows, `scores` [s, vocab]."""
    law = law_weights(scores, asked.temperature, asked.min_p, asked.top_k, asked.top_p, asked.truncates)
    chances = torch.zeros(len(law), len(asked.trials), dtype=law.dtype, device=law.device)
    if asked.trials:
        law = law / ordered_sum(law)
    for number, trials in enumerate(asked.trials):
        chances[trials.rows, number] = law[trials.rows, trials.tokens]
        law = _refused(law, trials)
    return (exponentials(asked.keys, law.shape[-1]) / law).argmin(dim=-1), chances


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
