"""`Lane`: one engine on a thread of its own, and who waits for its outputs. A pipeline has as many as it has stages.

What it delivers arrives at the clients' event loops. Not for what clients ask (`async_llm.py`).
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from time import monotonic
from typing import TypeVar

from paceline.engine.engine import Engine, StepOutput
from paceline.engine.engine_thread import EngineThread
from paceline.errors import EngineDead

_T = TypeVar("_T")
_Mail = StepOutput | EngineDead
_PAUSE, _PAUSE_PER_CLIENT, _LONGEST_PAUSE = 0.03, 0.005, 0.2
"""Seconds between wake-ups of an event loop for tokens that can wait: at least, for each client besides, and at most.
Every processor of a small machine is busy with a pass, so whoever wakes up meanwhile holds it up: by 0.25 ms, and
0.06 ms per client. So it takes one to two hundredths of the time, and answers move five to thirty times a second."""
_TURN = 0.01
"""Seconds at most that a first step waits for an event loop to have its turn."""


@dataclass(eq=False, slots=True)
class Client:
    """Who waits for a request; `has_begun` once it was sent something."""

    loop: asyncio.AbstractEventLoop
    inbox: "asyncio.Queue[_Mail]"
    has_begun: bool = False

    async def arrived(self, joined: bool) -> list[_Mail]:
        """What has come since the last time, at least one item; `joined` as of `AsyncLLM.generate`."""
        mail = [await self.inbox.get()]
        while not self.inbox.empty():
            mail.append(self.inbox.get_nowait())
        return _joined(mail) if joined and len(mail) > 1 else mail


class Lane:
    """Clients of one engine.

    Args:
        engine: from now on touched by this lane's thread only.
    """

    def __init__(self, engine: Engine) -> None:
        self.num_open = 0
        """Requests that clients wait for; counted on their event loop."""
        self._clients: dict[str, Client] = {}
        self._held: dict[asyncio.AbstractEventLoop, list[tuple[Client, _Mail]]] = {}
        self._woken = 0.0
        self.thread = EngineThread(engine, self._deliver, self._deliver_death, self._wait_for_callers)

    async def run(self, work: Callable[[Engine], _T]) -> _T:
        """`work` on the engine's thread, between two steps. Raises EngineDead when it has ended."""
        return await asyncio.wrap_future(self.thread.call(work))

    async def join(self, name: str, client: Client, add: Callable[[Engine], None]) -> None:
        """Enter a request that `add` hands to the engine. Raises what `add` raises."""

        def enter(engine: Engine) -> None:
            add(engine)
            self._clients[name] = client
            self._send()  # its prompt is read next, which may take a while

        await self.run(enter)

    def leave(self, name: str, client: Client) -> None:
        """A client is gone: whatever of its request is left ends."""

        def forget(engine: Engine) -> None:
            if self._clients.get(name) is client:
                del self._clients[name]
                engine.abort(name)

        try:
            self.thread.call(forget)
        except EngineDead:
            self._clients.pop(name, None)

    async def abort(self, name: str) -> None:
        """End a request now; its client gets the output so far. Nothing happens when it is not running."""

        def end(engine: Engine) -> None:
            finished = engine.abort(name)
            if finished is not None:
                self._deliver([StepOutput(name, (), finished)])

        await self.run(end)

    def _deliver(self, outputs: Sequence[StepOutput]) -> None:
        """Runs on the engine's thread: first tokens and ends are sent at once, others with what comes in `_PAUSE`."""
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
        """Send what is held: one wake-up per event loop."""
        for loop, mail in self._held.items():
            _wake(loop, mail)
        self._held, self._woken = {}, monotonic()

    def _wait_for_callers(self) -> None:
        """Runs on the engine's thread: returns when every client's event loop has done what it had begun.

        Each has two turns: in the first it may read what was sent to it, in the second it hands that over.
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
    """`mail` with outputs that follow one another and belong to one sample as one output."""
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
