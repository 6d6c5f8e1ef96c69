"""`Prediction`: predicted output, a text that the client expects most of the answer to repeat, used as draft.

Example: a code file to be edited. Drafting from it needs no model, and its drafts are verified like any others, so it
never changes the text. Not for lookups in prompts (`drafters/lookup/ngram.py`).
"""

from collections.abc import Sequence

_GRAM = 3
"""Tokens that must match to resume a prediction after the answer has deviated from it."""
_FIRST, _MOST = 8, 32
"""Initial and largest draft length, in tokens."""


class Prediction:
    """The position of an answer in its prediction.

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
        """Number of tokens to draft now; 0 where the answer has left the prediction."""
        return 0 if self._at is None else min(self._width, len(self._tokens) - self._at)

    def draft(self, most: int) -> tuple[int, ...]:
        """The predicted next tokens, at most `most`."""
        return () if self._at is None else self._tokens[self._at : self._at + min(most, self.wanted)]

    def follow(self, token_ids: Sequence[int]) -> None:
        """Advance by `token_ids`, which the answer has grown by."""
        for token in token_ids:
            self._tail = [*self._tail[1 - _GRAM :], token]
            if self._at is not None and self._at < len(self._tokens) and self._tokens[self._at] == token:
                self._at += 1
            else:
                self._at = self._found()
            self._latest = self._latest if self._at is None else self._at

    def judge(self, num_drafted: int, num_accepted: int) -> None:
        """Adapt the draft length after a verification: double it after full acceptance, else halve it."""
        whole = num_accepted == num_drafted
        self._width = min(_MOST, 2 * self._width) if whole else max(1, self._width // 2)

    def _found(self) -> int | None:
        """Position after the answer's last `_GRAM` tokens in the prediction: the next at or after the latest position,
        else the first occurrence; None without one."""
        places = self._places.get(tuple(self._tail), ())
        return next((place for place in places if place >= self._latest), places[0] if places else None)
