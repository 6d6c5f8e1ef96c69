"""`TextIndex`: token ids of growing texts, each linked with the place where the same token stood before.

A lookup walks from occurrence to occurrence, latest first, so it costs what a token's occurrences cost and not what the
text does; a token takes 12 bytes. Not for choosing what to draft (`grow.py`).
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from paceline.models.compiled.disk import keep_on_disk
from paceline.models.compiled.kernel import entry

SEPARATOR = -1
"""Stands between texts of one index; matches end there."""
_LEAST_ROOM = 256


@entry
def link(tokens, previous, heads, start, end):
    """Link tokens [start, end) with the latest earlier tokens of the same bucket."""
    mask = len(heads) - 1
    for i in range(start, end):
        bucket = tokens[i] & mask
        previous[i] = heads[bucket]
        heads[bucket] = i


@cache
def _link() -> Callable[..., None]:
    """`link`, kept on disk until this file changes."""
    return keep_on_disk(link, [Path(__file__)])


class TextIndex:
    """One or more texts.

    Attributes:
        tokens: [room] int32; `length` of them are set, `SEPARATOR` between texts.
        previous: [room] int32, an earlier place of the same bucket, -1 for none.
        heads: [power of two] int32, the latest place of each bucket (token id modulo their number), -1 for none.
        begin: places before it are forgotten.
    """

    def __init__(self) -> None:
        self.length = self.begin = 0
        self._make_room(_LEAST_ROOM)

    def append(self, token_ids: Sequence[int] | np.ndarray) -> None:
        """Lengthen the text."""
        end = self.length + len(token_ids)
        if end > len(self.tokens):
            self._make_room(2 * end)
        self.tokens[self.length : end] = token_ids
        _link()(self.tokens, self.previous, self.heads, self.length, end)
        self.length = end

    def _make_room(self, room: int) -> None:
        """Arrays for `room` tokens, linked anew."""
        size = 1 << (room - 1).bit_length()
        tokens = np.empty(size, dtype=np.int32)
        if self.length:
            tokens[: self.length] = self.tokens[: self.length]
        self.tokens, self.previous = tokens, np.empty(size, dtype=np.int32)
        self.heads = np.full(size, -1, dtype=np.int32)
        _link()(self.tokens, self.previous, self.heads, 0, self.length)


class PastOutputs:
    """The latest outputs, `max_tokens` of them at most; the oldest leave first.

    Attributes:
        index: where they are looked up.
        num_tokens: how many are kept.
    """

    def __init__(self, max_tokens: int) -> None:
        self.index = TextIndex()
        self._max_tokens = max_tokens
        self.num_tokens = 0
        self._outputs: deque[np.ndarray] = deque()

    def add(self, token_ids: Sequence[int]) -> None:
        """Take in an output and let the oldest go; one that cannot fit is cut at its end."""
        kept = np.array(token_ids[: self._max_tokens], dtype=np.int32)
        if not len(kept):
            return
        self._outputs.append(kept)
        self.num_tokens += len(kept)
        while self.num_tokens > self._max_tokens:
            oldest = self._outputs.popleft()
            self.num_tokens -= len(oldest)
            self.index.begin += len(oldest) + 1
        if self.index.begin > self._max_tokens:  # as many are forgotten as are kept: begin anew
            self.index = TextIndex()
            for output in self._outputs:
                self._append(output)
        else:
            self._append(kept)

    def _append(self, output: np.ndarray) -> None:
        self.index.append(np.append(output, np.int32(SEPARATOR)))
