"""`LineReader`: ends an answer of code at a line that leaves the block it began in, or at one that comes too late.

These are llama.cpp's ``n_indent`` and ``t_max_predict_ms``, with which editors ask for a completion. Not for stop
strings and lengths, which the engine knows (`SamplingParams`).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LineLimits:
    """What ends an answer at one of its lines.

    Attributes:
        min_indentation: spaces and tabs with which every line but the first and blank ones must begin.
        seconds: time since the first token after which no further line begins; 0 for no such limit.
    """

    min_indentation: int = 0
    seconds: float = 0.0


class LineReader:
    """Reads an answer of one sample as it comes.

    Args:
        limits: what ends it.
        clock: gives seconds.

    Attributes:
        num_tokens: tokens read so far.
    """

    def __init__(self, limits: LineLimits, clock: Callable[[], float] = time.perf_counter) -> None:
        self._limits, self._clock = limits, clock
        self._began: float | None = None
        self._indentation: int | None = None
        self.num_tokens = 0

    def read(self, text: str, num_tokens: int) -> str | None:
        """Read the next part of the answer.

        Returns:
            What is left of `text` where the answer ends in it; None where it goes on.
        """
        self.num_tokens += num_tokens
        if self._began is None:
            self._began = self._clock()
        is_late = 0 < self._limits.seconds < self._clock() - self._began
        for place, letter in enumerate(text):
            if letter == "\n":
                if is_late:
                    return text[:place]
                self._indentation = 0
            elif self._indentation is None:  # inside a line whose beginning was read, or the first one
                continue
            elif letter in " \t":
                self._indentation += 1
            elif letter != "\r" and self._indentation < self._limits.min_indentation:
                return text[:place]
            else:
                self._indentation = None
        return None
