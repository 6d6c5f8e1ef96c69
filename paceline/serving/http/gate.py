"""`Gate`: admission control by the number of open requests, and draining at shutdown."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from paceline.errors import RequestRejected
from paceline.serving.http.refusals import HttpRefusal

_RETRY_SECONDS = 1
"""Retry-After in seconds when the queue is full."""


class Gate:
    """Counts open requests.

    Args:
        most: largest number of open requests, waiting ones included.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.num_inside = 0
        self.num_turned_away = 0
        self.is_draining = False
        self.shut = asyncio.Event()
        """Set when requests that are still open must end."""
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def is_full(self) -> bool:
        """Whether the next request would be rejected."""
        return self.num_inside >= self.most

    @contextmanager
    def inside(self, count: int = 1) -> Generator[None, None, None]:
        """Admit `count` requests for the duration of the context.

        Raises:
            HttpRefusal: 429, too many requests are open.
            RequestRejected: the server is shutting down.
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
        """Admit no further requests, wait until all have ended, and set `shut` after `seconds`."""
        self.is_draining = True
        try:
            await asyncio.wait_for(self._empty.wait(), seconds)
        except TimeoutError:
            self.shut.set()
