"""`Prediction`: text a request expects much of its answer to repeat, followed and drafted as long as it does.

A code file to be edited, say. The prediction needs no model and is verified like any draft, so it never changes the
text. Not for lookups in prompts (`drafters/ngram.py`).
"""

from collections.abc import Sequence

_GRAM = 3
"""Tokens that must agree before a prediction that was left is followed again."""
_FIRST, _MOST = 8, 32
"""Tokens drafted at first, and at most."""


class Prediction:
    """Where an answer stands in its prediction.

    Args:
        token_ids: the prediction.
    """

    def __init__(self, token_ids: Sequence[int]) -> None:
        self._tokens = tuple(token_ids)
        self._at: int | None = 0
        self._width = _FIRST
        self._tail: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}
        for end in range(_GRAM, len(self._tokens) + 1):
            self._places.setdefault(self._tokens[end - _GRAM : end], []).append(end)
        self._latest = 0

    @property
    def wanted(self) -> int:
        """Tokens worth drafting now."""
        return 0 if self._at is None else min(self._width, len(self._tokens) - self._at)

    def draft(self, most: int) -> tuple[int, ...]:
        """What should follow, at most `most` tokens."""
        return () if self._at is None else self._tokens[self._at : self._at + min(most, self.wanted)]

    def follow(self, token_ids: Sequence[int]) -> None:
        """The answer has grown by `token_ids`."""
        for token in token_ids:
            self._tail = [*self._tail[1 - _GRAM :], token]
            if self._at is not None and self._at < len(self._tokens) and self._tokens[self._at] == token:
                self._at += 1
            else:
                self._at = self._found()
            self._latest = self._latest if self._at is None else self._at

    def judge(self, num_drafted: int, num_accepted: int) -> None:
        """A draft of it was verified: longer ones where all of it stood, shorter ones where it did not."""
        whole = num_accepted == num_drafted
        self._width = min(_MOST, 2 * self._width) if whole else max(1, self._width // 2)

    def _found(self) -> int | None:
        """Where the answer's last tokens stand in the prediction: the next from the latest one on, or the first."""
        places = self._places.get(tuple(self._tail), ())
        return next((place for place in places if place >= self._latest), places[0] if places else None)
