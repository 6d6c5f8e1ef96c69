"""`LineReader`: where an output of code ends, at a line that leaves the block it began in or at one that is too late.

The limits are llama.cpp's, with which editors ask for completions. Not for stop strings (`stream.py`).
"""

import time
from collections.abc import Callable

from paceline.types import SamplingParams


class LineReader:
    """Reads the text of one sample as it comes.

    Args:
        n_indent, seconds: see `SamplingParams.n_indent` and `t_max_predict_ms`.
        clock: gives seconds.
    """

    def __init__(self, n_indent: int = 0, seconds: float = 0.0, clock: Callable[[], float] = time.perf_counter) -> None:
        self._least, self._seconds, self._clock = n_indent, seconds, clock
        self._began: float | None = None
        self._indentation: int | None = None

    @classmethod
    def of(cls, params: SamplingParams) -> "LineReader | None":
        """That of a sample with these parameters; None where no line ends it."""
        return cls(params.n_indent, params.t_max_predict_ms / 1000) if params.limits_lines else None

    def read(self, text: str, may_end: bool = True) -> str | None:
        """Read the next part of the text.

        Args:
            may_end: whether the text may end in it.

        Returns:
            What is left of `text` where the whole ends in it; None where it goes on.
        """
        if self._began is None:
            self._began = self._clock()
        is_late = may_end and 0 < self._seconds < self._clock() - self._began
        for place, letter in enumerate(text):
            if letter == "\n":
                if is_late:
                    return text[:place]
                self._indentation = 0
            elif self._indentation is None:  # inside a line whose beginning was read, or the first one
                continue
            elif letter in " \t":
                self._indentation += 1
            elif letter != "\r":
                if may_end and self._indentation < self._least:
                    return text[:place]
                self._indentation = None
        return None
