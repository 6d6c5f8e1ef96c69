"""`Turns`: engines that share a device run their steps one at a time, first come first served.

Without turns, concurrent steps of several engines would compete for the same processors: the duration of a step could
not be predicted, and a step that began later would delay earlier ones. The cluster's simulator uses the same rule
(`placement/tokens/kernel.py`). In a pipeline a turn ends when the first stage has finished the step's pass.
On a GPU the pass of an engine's next step may be under way when its turn ends; passes run in order there.
"""

import threading
from collections import deque


class Turns:
    """A first-come-first-served lock, held during a step as a context manager or until `leave`. One turn per thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: deque[threading.Event] = deque()
        self._own = threading.local()

    def reserve(self) -> None:
        """Take a place in the queue for this thread, unless it has one. It must be entered or left soon."""
        if self._place is not None:
            return
        self._own.place = place = threading.Event()
        with self._lock:
            if not self._line:
                place.set()
            self._line.append(place)

    def leave(self) -> None:
        """Give up this thread's turn or its place in the queue; does nothing where it has neither."""
        place, self._own.place = self._place, None
        if place is None:
            return
        with self._lock:
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
