"""`Lane`: one engine on its own thread, and the clients that wait for its outputs. A pipeline has a lane per stage.

Outputs are delivered to the clients' event loops. Not for the clients' interface (`engine/async_llm.py`).
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import TypeVar

from paceline.engine.loop.engine import Engine
from paceline.engine.loop.step import StepOutput
from paceline.engine.threads.engine_thread import EngineThread
from paceline.errors import EngineDead

_T = TypeVar("_T")
_Mail = StepOutput | EngineDead
_PAUSE, _PAUSE_PER_CLIENT, _LONGEST_PAUSE = 0.03, 0.005, 0.2
"""Seconds between wake-ups of an event loop for tokens that are not urgent: minimum, addition per client, and maximum.
On a small machine a pass uses every processor, so each wake-up delays the pass, by 0.25 ms plus 0.06 ms per client.
With these pauses wake-ups take 1 to 2 % of the time, and streams advance 5 to 30 times a second."""
_TURN = 0.01
"""Longest time in seconds that a first step waits for an event loop's iteration."""


@dataclass(eq=False, slots=True)
class Client:
    """A client that waits for one request; `has_begun` is set once something was sent to it."""

    loop: asyncio.AbstractEventLoop
    inbox: "asyncio.Queue[_Mail]"
    has_begun: bool = False

    async def arrived(self, joined: bool) -> list[_Mail]:
        """Items that arrived since the last call; waits for at least one. `joined`: see `AsyncLLM.generate`."""
        mail = [await self.inbox.get()]
        while not self.inbox.empty():
            mail.append(self.inbox.get_nowait())
        return _joined(mail) if joined and len(mail) > 1 else mail


class Lane:
    """Clients of one engine.

    Args:
        engine: from now on used by this lane's thread only.
        weights: see `EngineThread`.
    """

    def __init__(self, engine: Engine, weights: AbstractContextManager[None]) -> None:
        self.num_open = 0
        """Number of requests that clients wait for; changed on their event loop only."""
        self._clients: dict[str, Client] = {}
        self._held: dict[asyncio.AbstractEventLoop, list[tuple[Client, _Mail]]] = {}
        self._woken = 0.0
        self.thread = EngineThread(engine, self._deliver, self._deliver_death, self._wait_for_callers, weights)

    async def run(self, work: Callable[[Engine], _T]) -> _T:
        """Run `work` on the engine's thread between two steps. Raises EngineDead when that thread has ended."""
        return await asyncio.wrap_future(self.thread.call(work))

    async def run_passes(self, work: Callable[[Engine], _T]) -> _T:
        """As `run`, for `work` that runs passes: no other engine on the same weights does so meanwhile."""
        return await self.run(partial(self.thread.with_weights, work))

    async def join(self, name: str, client: Client, add: Callable[[Engine], None]) -> None:
        """Register a client for a request that `add` gives to the engine. Raises what `add` raises."""

        def enter(engine: Engine) -> None:
            add(engine)
            self._clients[name] = client
            self._send()  # the prefill comes next and may take a while, so held outputs go out first

        await self.run(enter)

    def leave(self, name: str, client: Client) -> None:
        """Unregister a client and abort its request, if that is still running."""

        def forget(engine: Engine) -> None:
            if self._clients.get(name) is client:
                del self._clients[name]
                engine.abort(name)

        try:
            self.thread.call(forget)
        except EngineDead:
            self._clients.pop(name, None)

    async def abort(self, name: str) -> None:
        """End a request now; its client receives the output so far. Does nothing when the request is not running."""

        await self.run(lambda engine: self._deliver(engine.end(name)))

    def _deliver(self, outputs: Sequence[StepOutput]) -> None:
        """Queue outputs for their clients, on the engine's thread.

        First tokens and final outputs are sent at once, others together after a pause; see `_PAUSE`.
        """
        is_urgent = False
        for output in outputs:
            client = self._clients.get(output.request_id)
            if client is not None:
                self._held.setdefault(client.loop, []).append((client, output))
                is_urgent |= output.finished is not None or not client.has_begun
                client.has_begun = True
        pause = min(_PAUSE + _PAUSE_PER_CLIENT * len(self._clients), _LONGEST_PAUSE)
        if is_urgent or monotonic() - self._woken >= pause:
            self._send()

    def _send(self) -> None:
        """Send the queued outputs: one wake-up per event loop."""
        for loop, mail in self._held.items():
            _wake(loop, mail)
        self._held, self._woken = {}, monotonic()

    def _wait_for_callers(self) -> None:
        """Wait, on the engine's thread, until every client's event loop has run two iterations (at most `_TURN` each).

        In the first iteration a client can read what was sent to it, in the second it can submit its next request.
        """
        for loop in 2 * list({client.loop for client in self._clients.values()}):
            turn = threading.Event()
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(turn.set)
                turn.wait(_TURN)

    def _deliver_death(self, death: EngineDead) -> None:
        self._send()
        for client in list(self._clients.values()):
            _wake(client.loop, [(client, death)])


def _joined(mail: Sequence[_Mail]) -> list[_Mail]:
    """`mail` with consecutive outputs of the same sample merged into one."""
    together: list[_Mail] = []
    for item in mail:
        match together[-1:], item:
            case [StepOutput(completion=None) as last], StepOutput(index=index) if index == last.index:
                together[-1] = replace(item, tokens=last.tokens + item.tokens, draft=None)
            case _:
                together.append(item)
    return together


def _wake(loop: asyncio.AbstractEventLoop, mail: list[tuple[Client, _Mail]]) -> None:
    def put() -> None:
        for client, item in mail:
            client.inbox.put_nowait(item)

    try:
        loop.call_soon_threadsafe(put)
    except RuntimeError:  # the loop is closed: its clients are gone
        return
