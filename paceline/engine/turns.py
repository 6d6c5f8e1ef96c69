"""`Turns`: engines that share a device take turns, first come first served, step by step.

Without it two engines of one process would run on more processors than their device has while others are idle, and
would cut up each other's steps while these are not: nobody could say beforehand how long a step takes. It is the rule
that the cluster's simulator plays (`placement/tokens/kernel.py`). Not for one engine.
"""

import threading
from collections import deque


class Turns:
    """Entered before a step and left after it.

    Args:
        count: steps that may run at once, a pipeline's stages.
    """

    def __init__(self, count: int = 1) -> None:
        self._free = count
        self._door = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._door:
            if self._free:
                self._free -= 1
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
                self._free += 1
