"""`Line`: a ticket lock, which lets threads proceed in the order of their tickets."""

import itertools
import threading


class Line:
    """A queue of numbered turns from 0 on; every turn that was taken must be left exactly once."""

    def __init__(self) -> None:
        self._turns = itertools.count()
        self._first, self._left = 0, set[int]()
        self._moved = threading.Condition()

    def take(self) -> int:
        """The next turn."""
        return next(self._turns)

    def wait_for(self, turn: int) -> None:
        """Wait until all earlier turns have been left."""
        with self._moved:
            self._moved.wait_for(lambda: self._first >= turn)

    def leave(self, turn: int) -> None:
        """End `turn`; later ones can proceed once all before them have been left."""
        with self._moved:
            self._left.add(turn)
            while self._first in self._left:
                self._left.remove(self._first)
                self._first += 1
            self._moved.notify_all()
