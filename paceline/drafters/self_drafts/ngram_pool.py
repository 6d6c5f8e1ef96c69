"""`NGramPool`: n-grams by their first token, the latest few of each. The memory of the lookahead drafter."""

from collections.abc import Sequence


class NGramPool:
    """Stores n-grams by first token, evicting the least recently used ones.

    Args:
        capacity: n-grams kept per first token.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._rests: dict[int, dict[tuple[int, ...], None]] = {}  # oldest first

    def add(self, gram: Sequence[int]) -> None:
        """Store `gram` (at least two tokens) as the latest n-gram of its first token."""
        first, *rest = gram
        rests = self._rests.setdefault(first, {})
        rests.pop(tuple(rest), None)
        rests[tuple(rest)] = None
        if len(rests) > self._capacity:
            del rests[next(iter(rests))]

    def add_all(self, token_ids: Sequence[int], size: int) -> None:
        """Store every n-gram of `size` tokens of a text."""
        for end in range(size, len(token_ids) + 1):
            self.add(token_ids[end - size : end])

    def latest(self, first: int, count: int) -> list[tuple[int, ...]]:
        """The continuations stored for `first`, the latest first, at most `count`."""
        return list(reversed(self._rests.get(first, {})))[:count]
