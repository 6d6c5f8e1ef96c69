"""Run an ASGI application on a socket, with a graceful shutdown."""

import asyncio
import gc
import socket
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from paceline.errors import InvalidParameter
from paceline.serving.http.gate import Gate

_T = TypeVar("_T")
_AFTER_DRAIN = 5
"""Seconds for connections to close once every answer has ended."""
_BACKLOG = 2048
"""Connections that wait to be accepted; uvicorn's number."""
_HEAD_SECONDS = 60.0
"""Timeout in seconds for receiving the head of a request."""


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop: uvloop's where it is installed, else asyncio's."""
    factory = uvicorn.Config("", log_config=None).get_loop_factory()
    return asyncio.new_event_loop() if factory is None else factory()


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run `main` on a `new_loop` and return its result."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)


def bind(host: str, port: int) -> socket.socket:
    """A socket that is bound, so that a wrong address is known before a model is loaded; it does not listen yet.

    Raises:
        InvalidParameter: there is no such address or port, or somebody has it.
    """
    if not 0 <= port <= 65535:
        raise InvalidParameter("port", f"{port} is no port", "give 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        raise _taken(host, port, error) from None
    bound.set_inheritable(True)
    return bound


def listen(bound: socket.socket) -> None:
    """Listen at a socket of `bind`.

    Raises:
        InvalidParameter: another program that had bound the address as well was the first to listen.
    """
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise _taken(host, port, error) from None


def _taken(host: str, port: int, error: OSError) -> InvalidParameter:
    problem = f"{host}:{port} cannot be listened at ({error.strerror or error})"
    return InvalidParameter("port", problem, "choose another port or address")


def settle_memory() -> None:
    """Freeze the garbage collector's current objects, so that collections while serving do not traverse them."""
    gc.collect()
    gc.freeze()


class _Protocol(H11Protocol):
    """uvicorn's protocol with a timeout for the head of a request."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See asyncio."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        super().connection_lost(exc)
        self._unwatch()

    def _watch(self) -> None:
        """Start the timeout while a head is awaited or incomplete; cancel it once the head is complete."""
        if self.conn.their_state is not h11.IDLE:
            self._unwatch()
        elif self._timer is None:
            self._timer = self.loop.call_later(_HEAD_SECONDS, self.transport.close)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Server(uvicorn.Server):
    """Drains at the first signal: new requests are rejected and open ones continue; a second signal ends them.

    Args:
        app: the application.
        gate: its admission gate.
        drain_seconds: how long open requests may continue.
        on_start: called when the server listens.
    """

    def __init__(self, app: Any, gate: Gate, drain_seconds: float, on_start: Callable[[], None]) -> None:
        how = {"http": _Protocol, "ws": "none"}  # h11 bounds the head of a request, httptools would not
        quiet = {"log_level": "warning", "server_header": False}
        super().__init__(uvicorn.Config(app, timeout_graceful_shutdown=_AFTER_DRAIN, **how, **quiet))
        self._gate, self._seconds, self._on_start = gate, drain_seconds, on_start
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if not self.should_exit:
            self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came; the process ends with 0 once all is done."""
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        if self._draining is None:
            self._draining = asyncio.ensure_future(self._drain())
        else:
            self._gate.shut.set()

    async def _drain(self) -> None:
        await self._gate.drain(self._seconds)
        self.should_exit = True
