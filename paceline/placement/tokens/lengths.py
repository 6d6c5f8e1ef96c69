"""`Lengths`: how long a model's answers are, from those that were given. A mean, which no order of answers changes."""

PRIOR_TOKENS = 128.0
"""Tokens that an answer is expected to have before any was seen."""
PRIOR_WEIGHT = 8
"""Answers that the prior counts as."""


class Lengths:
    """Of one model's answers.

    Args:
        expected: tokens before any was seen.
    """

    def __init__(self, expected: float = PRIOR_TOKENS) -> None:
        self._sum, self._count = PRIOR_WEIGHT * expected, PRIOR_WEIGHT

    def learn(self, num_tokens: float) -> None:
        """An answer had this number of tokens."""
        self._sum, self._count = self._sum + num_tokens, self._count + 1

    def expected(self, most: float = float("inf")) -> float:
        """Mean tokens, or `most` where that is fewer."""
        return min(most, self._sum / self._count)
