"""`Turns`: engines that share a device take turns, first come first served, step by step.

Without it two engines of one process would run on more processors than their device has while others are idle, and
would cut up each other's steps while these are not: nobody could say beforehand how long a step takes, and one that
was let in later would hold up those before it. It is the rule that the cluster's simulator plays
(`placement/tokens/kernel.py`). In a pipeline a turn ends when the first stage is done with the step's pass.
"""

import threading
from collections import deque


class Turns:
    """Entered before a step and left after it, or by `leave` before that. A thread has one turn at a time."""

    def __init__(self) -> None:
        self._door = threading.Lock()
        self._line: deque[threading.Event] = deque()
        self._own = threading.local()

    def reserve(self) -> None:
        """Take this thread's place in the line, which it has to enter or to leave soon; a place it has it keeps."""
        if self._place is not None:
            return
        self._own.place = place = threading.Event()
        with self._door:
            if not self._line:
                place.set()
            self._line.append(place)

    def leave(self) -> None:
        """Give up this thread's turn, or its place in the line. Nothing happens where it has none."""
        place, self._own.place = self._place, None
        if place is None:
            return
        with self._door:
            self._line.remove(place)
            if self._line:
                self._line[0].set()

    def __enter__(self) -> None:
        self.reserve()
        assert self._place is not None
        self._place.wait()

    def __exit__(self, *_: object) -> None:
        self.leave()

    @property
    def _place(self) -> threading.Event | None:
        return getattr(self._own, "place", None)
