"""`paceline.testing`'s enumeration over rationals: laws that are equal or are not, with no float in their making."""

from collections.abc import Callable, Hashable
from fractions import Fraction
from numbers import Rational
from typing import Any, TypeVar

from paceline.sampling import enumeration
from paceline.sampling.enumeration import EnumeratedRandomness

T = TypeVar("T", bound=Hashable)


def law_of(run: Callable[[EnumeratedRandomness], T]) -> dict[T, Fraction]:
    """The law of what `run` returns, over every outcome of the randomness it is given."""
    law = enumeration.law_of(run, number=rational)
    if sum(law.values()) != 1:
        raise AssertionError(f"the outcomes carry {sum(law.values())}, not 1")
    return law


def first_outcome() -> EnumeratedRandomness:
    """Randomness that takes the first possibility everywhere."""
    return EnumeratedRandomness(number=rational)


def rational(probability: Any) -> Fraction:
    """Refuses floats: a float in the path would make equality an accident."""
    if not isinstance(probability, Rational):
        raise TypeError(f"{probability!r}, which is no rational number, entered exact arithmetic")
    return Fraction(probability)
