"""Mean and variance of tokens per pass, and of the time to generate a number of tokens.

The number of tokens a pass emits is random, so the time of an answer is too. Passes are independent and take equally
long, and the last one may emit more than is wanted; so the number of passes is a first passage time, whose law is
computed exactly. Chen et al. 2023, figure 1 (left), shows how its spread grows with the draft length. Works on floats
and Fractions. Not for what makes answers differ besides, such as prompts with other acceptance rates.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import NamedTuple

import numpy as np

from paceline.theory.checks import Number, Probs, as_law, check_count, check_positive


class Moments(NamedTuple):
    """Mean and variance of a number, and its standard deviation."""

    mean: Number
    variance: Number

    @property
    def deviation(self) -> float:
        """The square root of the variance."""
        return sqrt(max(self.variance, 0))


def tokens_per_pass(accepted: Probs) -> Moments:
    """Mean and variance of the tokens that a pass emits: one more than it accepts.

    Args:
        accepted: [g + 1] probabilities that 0 .. g drafted tokens are accepted: `accepted_count_law`, or measured.
    """
    return _moments(as_law("accepted", accepted), 1, 1)


def passes_law(accepted: Probs, num_tokens: int) -> np.ndarray:
    """[num_tokens + 1] probabilities that 0 .. num_tokens passes are needed for `num_tokens` tokens.

    Computed pass by pass: the probabilities of 0 .. num_tokens - 1 tokens so far, which a pass shifts and mixes.

    Args:
        accepted: as in `tokens_per_pass`.
        num_tokens: at least 1, the pass that reads the prompt not counted.
    """
    check_count("num_tokens", num_tokens, least=1)
    emitted = np.concatenate([[0], as_law("accepted", accepted)])
    short = np.array([1, *[0] * (num_tokens - 1)])
    unfinished = [1]
    for _ in range(num_tokens):
        short = np.convolve(short, emitted)[:num_tokens]
        unfinished.append(short.sum())
    return np.array([0, *(before - after for before, after in pairwise(unfinished))])


def generation_time(accepted: Probs, num_tokens: int, pass_time: Number) -> Moments:
    """Mean and variance of the time to generate `num_tokens` tokens.

    For many tokens they approach N / mu and N sigma^2 / mu^3 times `pass_time` and its square, mu and sigma^2 being the
    `tokens_per_pass` (the central limit theorem of renewal theory).

    Args:
        accepted, num_tokens: as in `passes_law`.
        pass_time: of a pass with its drafts, in any unit; g c + 1 in plain passes.
    """
    check_positive("pass_time", pass_time)
    return _moments(passes_law(accepted, num_tokens), 0, pass_time)


def _moments(law: Sequence[Number] | np.ndarray, first: int, unit: Number) -> Moments:
    """Of `unit` times a number that is `first`, `first` + 1, ... with the probabilities of `law`."""
    values = [(first + place) * unit for place in range(len(law))]
    mean = sum(value * chance for value, chance in zip(values, law, strict=True))
    return Moments(mean, sum((value - mean) ** 2 * chance for value, chance in zip(values, law, strict=True)))
