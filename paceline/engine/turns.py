"""`Turns`: engines that share a device take turns, first come first served, step by step.

Without it two engines of one process would run on more processors than their device has while others are idle, and
would cut up each other's steps while these are not: nobody could say beforehand how long a step takes. It is the rule
that the cluster's simulator plays (`placement/tokens/kernel.py`). Not for one engine, nor for pipelines, whose stages
take what comes in order.
"""

import threading
from collections import deque


class Turns:
    """Entered before a step and left after it."""

    def __init__(self) -> None:
        self._is_free = True
        self._door = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._door:
            if self._is_free:
                self._is_free = False
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()  # until one who leaves hands its turn over

    def __exit__(self, *_: object) -> None:
        with self._door:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_free = True
