"""Warp, race and verification of many rows at once, as tensors: answers to the questions of `sampling/answered.py`.

Everything is done entry by entry, by exact integers, or by sums in one order, so that a row's answer does not depend on
the rows beside it. numpy's `Warper`, `Law` and `CounterRandomness` are the twins.
"""

from paceline.models.cuda_executor.laws.answers import answers_of, peaks_of, read_answers
from paceline.models.cuda_executor.laws.asked import Wide

__all__ = ["Wide", "answers_of", "peaks_of", "read_answers"]
