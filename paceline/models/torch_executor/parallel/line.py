"""`Line`: threads that wait for each other in the order of their turns. Not for who gets which turn."""

import itertools
import threading


class Line:
    """Turns are numbers, handed out from 0 on; every one that was taken must be left once."""

    def __init__(self) -> None:
        self._turns = itertools.count()
        self._first, self._left = 0, set[int]()
        self._moved = threading.Condition()

    def take(self) -> int:
        """The next turn."""
        return next(self._turns)

    def wait_for(self, turn: int) -> None:
        """Return when everybody before has left."""
        with self._moved:
            self._moved.wait_for(lambda: self._first >= turn)

    def leave(self, turn: int) -> None:
        """Let the next one go on, once those before have left too."""
        with self._moved:
            self._left.add(turn)
            while self._first in self._left:
                self._left.remove(self._first)
                self._first += 1
            self._moved.notify_all()
