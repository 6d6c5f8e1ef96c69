"""`goes_on`: whether a request's text continues the text that a drafter has read under the same id.

A request id may be reused for another text. Comparing whole texts at every step would be slow, so only the length and
the last few tokens are compared; a mistake would lower acceptance, never exactness.
"""

from collections.abc import Sequence

CHECKED_TAIL = 16
"""Tokens compared."""


def goes_on(token_ids: Sequence[int], num_known: int, tail: Sequence[int]) -> bool:
    """Whether `token_ids` has at least `num_known` tokens, of which the first `num_known` end with `tail`."""
    return len(token_ids) >= num_known and list(token_ids[num_known - len(tail) : num_known]) == list(tail)
