"""Evaluation of a drafter on held-out text by its expected acceptance length, in the one definition used everywhere.

EAL = 1 + sum over k of the probability that the first k drafted tokens are accepted: tokens per pass of the target
with chains of that length. At temperature 0 a drafted token is accepted when it is the target's next token, and
`replayed` counts passes as a decoder would make them. Above 0 it is accepted with probability sum min(p, q), with p
over the whole vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of one evaluation.

    Attributes:
        greedy: acceptance rate of each step, given that the earlier steps were accepted, on greedy answers.
        eal: expected acceptance length on greedy answers.
        replayed: tokens per pass when greedy answers are decoded with these drafts.
        sampled: mean acceptance probability of each step on sampled answers; empty where there are none.
        sampled_eal: expected acceptance length on sampled answers, 0 where there are none.
        num_places: positions of greedy answers from which drafts were made.
    """

    greedy: tuple[float, ...]
    eal: float
    replayed: float
    sampled: tuple[float, ...]
    sampled_eal: float
    num_places: int

    @property
    def score(self) -> float:
        """The mean of both expected lengths, or the one that exists; the checkpoint with the highest score is saved."""
        found = [value for value in (self.eal if self.num_places else 0.0, self.sampled_eal) if value]
        return sum(found) / len(found) if found else 0.0


def expected_length(rates: Sequence[float]) -> float:
    """1 + sum over k of the product of the first k conditional rates."""
    total, product = 1.0, 1.0
    for rate in rates:
        product *= rate
        total += product
    return total


def figures(stood: Sequence[Tensor], means: Sequence[float], num_steps: int) -> Evaluation:
    """The evaluation of drafts of `num_steps` tokens.

    Args:
        stood: per greedy text [positions, steps] 1 where the drafted token is the text's, 0 where not, -1 past the end.
        means: mean acceptance probability of each step on sampled texts; empty where there are no such texts.
    """
    rates, first = _rates(stood, num_steps)
    accepted = [one.clamp(min=0).cumprod(1).sum(1).tolist() for one in stood]
    return Evaluation(
        tuple(rates), expected_length(rates), replayed(accepted), tuple(means),
        expected_length(means) if means else 0.0, len(first),
    )  # fmt: skip


def replayed(accepted: Sequence[Sequence[int]]) -> float:
    """Tokens per pass of decoding texts where a draft from position i has `accepted[text][i]` accepted tokens."""
    tokens = passes = 0
    for text in accepted:
        place = 0
        while place < len(text):
            length = min(1 + int(text[place]), len(text) - place)
            tokens, passes, place = tokens + length, passes + 1, place + length
    return tokens / passes if passes else 0.0


def _rates(stood: Sequence[Tensor], num_steps: int) -> tuple[list[float], Tensor]:
    """Conditional acceptance rate of each step, and [positions, steps] whether all tokens up to a step are accepted.

    Only positions whose earlier steps were accepted, and whose text has a token for the step, count.
    """
    if not stood:
        return [0.0] * num_steps, torch.zeros(0, num_steps)
    values = torch.cat(list(stood))
    first = values.clamp(min=0).cumprod(1)
    reached = torch.cat([torch.ones(len(first), 1), first[:, :-1]], dim=1) * (values >= 0)
    return (first.sum(0) / reached.sum(0).clamp(min=1)).tolist(), first
