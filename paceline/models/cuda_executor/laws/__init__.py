"""Logit processing, sampling and verification of many rows on the device, for the questions of `sampling/answered.py`.

All operations are elementwise, in exact integers, or sums in a fixed order, so that a row's answer does not depend on
the rows of its batch. The NumPy classes `Warper`, `Law` and `CounterRandomness` are the reference.
"""

from paceline.models.cuda_executor.laws.answers import answers_of, peaks_of, picks_of, read_answers
from paceline.models.cuda_executor.laws.asked import Wide

__all__ = ["Wide", "answers_of", "peaks_of", "picks_of", "read_answers"]
