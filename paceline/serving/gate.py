"""`Gate`: how many requests are inside, and whether any more come in. What they do there is not its business."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from paceline.errors import RequestRejected
from paceline.serving.refusals import HttpRefusal

_RETRY_SECONDS = 1
"""When to come again, in seconds, to a queue that is full."""


class Gate:
    """Counts requests.

    Args:
        most: requests inside at once, waiting ones included.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.num_inside = 0
        self.num_turned_away = 0
        self.is_draining = False
        self.shut = asyncio.Event()
        """Set when whoever is still inside must leave."""
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def is_full(self) -> bool:
        """Whether the next request would be turned away."""
        return self.num_inside >= self.most

    @contextmanager
    def inside(self, count: int = 1) -> Generator[None, None, None]:
        """Let `count` requests in, which leave together.

        Raises:
            HttpRefusal: 429, too many are inside.
            RequestRejected: the server is going down.
        """
        if self.is_draining:
            raise RequestRejected("the server is shutting down")
        if self.num_inside + count > self.most:
            self.num_turned_away += count
            problem = (
                f"{self.num_inside} requests are being answered or waiting, the most is {self.most}; try again later"
            )
            raise HttpRefusal(429, problem, {"Retry-After": str(_RETRY_SECONDS)})
        self.num_inside += count
        self._empty.clear()
        try:
            yield
        finally:
            self.num_inside -= count
            if not self.num_inside:
                self._empty.set()

    async def drain(self, seconds: float) -> None:
        """Let nobody in any more, wait until all have left, and turn out whoever is inside after `seconds`."""
        self.is_draining = True
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError:
            self.shut.set()
