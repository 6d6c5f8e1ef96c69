"""`goes_on`: whether an id still stands for the text that a drafter has read.

An id may come back with another text. To compare all of it would cost more with every step, so the last few tokens and
the length decide; a mistake would cost acceptance, never exactness.
"""

from collections.abc import Sequence

CHECKED_TAIL = 16
"""Tokens compared."""


def goes_on(token_ids: Sequence[int], num_known: int, tail: Sequence[int]) -> bool:
    """True when `token_ids` is the text whose first `num_known` tokens end with `tail`, perhaps longer."""
    return len(token_ids) >= num_known and list(token_ids[num_known - len(tail) : num_known]) == list(tail)
