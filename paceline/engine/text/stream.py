"""`TextStream`: incremental detokenisation with stop strings and limits of lines.

Text that may turn out to be the beginning of a stop string is held back. Not for stop rules on token ids or lengths:
those are the scheduler's.
"""

from collections.abc import Sequence

from paceline.engine.text.line_reader import LineReader
from paceline.models.text.harmony import decoder_of
from paceline.models.text.tokenizer import Tokenizer


class TextStream:
    """Text of one request's output.

    Args:
        tokenizer: turns ids into text; special tokens are left out.
        stop: strings that end the text.
        keeps_stop: whether the string that ends the text is part of it.
        lines: tells which line ends it, if one does.

    Attributes:
        stop_string: the one that has ended the text.
        is_cut: a line has ended it.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str] = (), keeps_stop: bool = False, lines: LineReader | None = None
    ) -> None:
        self._decoder = decoder_of(tokenizer)
        self._stop, self._keeps_stop = tuple(stop), keeps_stop
        self._held = ""
        self._released: list[str] = []
        self._lines = lines
        self.stop_string: str | None = None
        self.is_cut = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string or a line has ended the text."""
        return self.is_cut or self.stop_string is not None

    @property
    def text(self) -> str:
        """Everything released so far."""
        return "".join(self._released)

    def push(self, token_id: int, may_stop: bool = True) -> str:
        """Add a token; returns the text that it releases. Sets `stop_string` when a stop string is complete.

        With `may_stop` False (before `min_tokens`), a complete stop string is ordinary text, and lines are, too.
        """
        piece = self._decoder.push(token_id)
        if self._lines is not None and (kept := self._lines.read(piece, may_stop)) is not None:
            piece, self.is_cut = kept, True
        if not self._stop:
            self._released.append(piece)
            return piece
        known = len(self._held)
        self._held += piece
        found = ((self._held.find(s, max(0, known + 1 - len(s))), s) for s in self._stop)
        first = min(((at, s) for at, s in found if at >= 0), default=None)
        if may_stop and first is not None:
            self.is_cut = False
            end, self.stop_string = first
            self._held = self._held[: end + len(self.stop_string) * self._keeps_stop]
        return self._release(len(self._held) if self.stopped else len(self._held) - self._suspicious())

    def finish(self) -> str:
        """Release the text that was held back, after the last token."""
        if not self.stopped:
            self._held += self._decoder.flush()
        return self._release(len(self._held))

    def _suspicious(self) -> int:
        """Length of the longest end of the held text that is a proper prefix of a stop string."""
        longest = max(map(len, self._stop), default=1) - 1
        lengths = range(min(longest, len(self._held)), 0, -1)
        return next((n for n in lengths if any(self._begins(s, n) for s in self._stop)), 0)

    def _begins(self, stop: str, length: int) -> bool:
        """Whether the last `length` characters are a proper prefix of `stop`."""
        return len(stop) > length and stop.startswith(self._held[-length:])

    def _release(self, length: int) -> str:
        piece, self._held = self._held[:length], self._held[length:]
        self._released.append(piece)
        return piece
