"""Argument checks of the closed forms, in one place for uniform error messages.

Not the place for checks of user requests (`types.py`) or of configuration (`config.py`).
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from paceline.errors import InvalidParameter
from paceline.limits import is_whole

Number = float | Fraction
"""A scalar of the closed forms. Fractions in, Fractions out; a float anywhere makes the result a float."""

Probs = Sequence[Number] | np.ndarray
"""A dense law [vocab]: floats, or Fractions for exact arithmetic."""

_SUM_TOLERANCE = 1e-2  # a flat float16 row over 150,000 tokens is off by 0.004; logits are off by far more


def check_rate(field: str, value: Number) -> None:
    """Raise InvalidParameter for a `value` outside [0, 1] or NaN."""
    if not 0 <= value <= 1:
        raise InvalidParameter(field, f"{value} is not in [0, 1]", "give a probability")


def check_cost(field: str, value: Number) -> None:
    """Raise InvalidParameter for a time or cost that is negative, infinite or NaN."""
    if not 0 <= value < float("inf"):
        raise InvalidParameter(field, f"{value} is not 0 or more", "give a finite time or ratio of times")


def check_positive(field: str, value: Number) -> None:
    """Raise InvalidParameter for a time, rate or number that is not above zero."""
    if not 0 < value < float("inf"):
        raise InvalidParameter(field, f"{value} is not above 0", "give a finite number above 0")


def check_count(field: str, value: int, least: int = 0) -> None:
    """Raise InvalidParameter for a number of tokens, children or passes that is below `least` or not whole."""
    remedy = f"give a whole number of at least {least}"
    if not is_whole(value):
        raise InvalidParameter(field, f"{value!r} is no whole number", remedy)
    if value < least:
        raise InvalidParameter(field, f"{value} is less than {least}", remedy)


def as_law(field: str, probs: Probs) -> np.ndarray:
    """`probs` as an array [vocab], float64 or object (Fractions).

    Raises:
        InvalidParameter: not one-dimensional, negative somewhere, or not summing to 1.
    """
    law = np.asarray(probs)
    if law.ndim != 1 or len(law) == 0:
        raise InvalidParameter(field, f"has shape {law.shape}", "give one row of probabilities, [vocab]")
    if law.dtype.kind == "f":
        law = law.astype(np.float64)
    if not (law >= 0).all():
        raise InvalidParameter(field, "has negative or undefined entries", "give probabilities, not logits")
    if abs(law.sum() - 1) > _SUM_TOLERANCE:
        raise InvalidParameter(field, f"sums to {float(law.sum()):.4f}", "normalise it to 1")
    return law


def as_pair(target_probs: Probs, draft_probs: Probs) -> tuple[np.ndarray, np.ndarray]:
    """Target and draft laws as two arrays [vocab] of one length.

    Raises:
        InvalidParameter: either is no law, or their vocabularies differ in size.
    """
    target, draft = as_law("target_probs", target_probs), as_law("draft_probs", draft_probs)
    if len(target) != len(draft):
        problem = f"has {len(draft)} entries, the target has {len(target)}"
        raise InvalidParameter("draft_probs", problem, "spread both over the same vocabulary")
    return target, draft
