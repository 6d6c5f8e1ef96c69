"""Shared by the benchmarks of the HTTP server: a server in this process, and its clients in another one.

Clients have their own process because in this one they would compete with the server for Python's lock (GIL).
"""

import asyncio
import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import httpx

from paceline import LLM
from paceline.engine.async_llm import AsyncLLM
from paceline.serving.http.app import build_app
from paceline.serving.http.run import Server, bind, new_loop, settle_memory
from paceline.serving.models.local import LocalBackend
from paceline.serving.models.model_spec import ModelSpec
from paceline.serving.settings import Settings

NAME = "served"
JSON_TYPE = {"content-type": "application/json"}


class Served:
    """A running server.

    Attributes:
        address: of its API, without a path.
        loop: what it runs on.
    """

    def __init__(self, address: str, loop: asyncio.AbstractEventLoop) -> None:
        self.address, self.loop = address, loop

    def num_tasks(self) -> int:
        """Tasks on the loop."""

        async def count() -> int:
            return len(asyncio.all_tasks()) - 1

        return asyncio.run_coroutine_threadsafe(count(), self.loop).result(60)


@contextmanager
def served(
    llm: LLM, settings: Settings | None = None, loop: asyncio.AbstractEventLoop | None = None
) -> Iterator[Served]:
    """A server around `llm`, which nobody else may use from then on.

    It runs on `loop`; on one as `paceline serve` has when left out.
    """
    backend = LocalBackend([ModelSpec(NAME, llm.model_name)], lambda _: AsyncLLM(llm))
    app, bound, ready = build_app(backend, settings), bind("127.0.0.1", 0), threading.Event()
    settle_memory()
    server = Server(app, app.front.gate, 5.0, ready.set)
    loop = loop or new_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve(sockets=[bound])))
    thread.start()
    if not ready.wait(60):
        raise SystemExit("the server does not listen")
    try:
        yield Served(f"http://127.0.0.1:{bound.getsockname()[1]}", loop)
    finally:
        server.should_exit = True
        thread.join(60)


@contextmanager
def elsewhere() -> Iterator[Callable[..., Any]]:
    """A function (work, *arguments) that runs `work` in another process, always the same, and returns its result."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(time.time).result()
        yield lambda work, *arguments: pool.submit(work, *arguments).result()


class Reading(asyncio.Protocol):
    """A client of one streamed answer that uses little CPU time, because it shares the processors with the server.

    The response is parsed only when it is complete. The request is HTTP/1.0, whose responses end with the connection
    and are not chunked.

    Args:
        path: of the endpoint.
        body: of the request, which is made to stream and to count its tokens.
    """

    def __init__(self, path: str, body: dict[str, Any]) -> None:
        asked = json.dumps(body | {"stream": True, "stream_options": {"include_usage": True}}).encode()
        lines = [f"POST {path} HTTP/1.0", "Host: localhost", "Content-Type: application/json"]
        head = "\r\n".join([*lines, f"Content-Length: {len(asked)}", "", ""])
        self._request, self._parts = head.encode() + asked, list[bytes]()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connected(cls, address: str, path: str, body: dict[str, Any]) -> "Reading":
        """One that has a connection and has not asked yet."""
        url = httpx.URL(address)
        _, reading = await asyncio.get_running_loop().create_connection(lambda: cls(path, body), url.host, url.port)
        return reading

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def ask(self) -> None:
        """Send the request."""
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)

    def answer(self) -> tuple[str, int]:
        """Text and number of tokens. Raises RuntimeError unless it is a whole stream."""
        head, _, stream = b"".join(self._parts).partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0] or not stream.endswith(b"data: [DONE]\n\n"):
            raise RuntimeError(f"no whole stream: {head[:200]!r} ... {stream[-200:]!r}")
        told = [json.loads(event[6:]) for event in stream.split(b"\n\n") if event.startswith(b"data: {")]
        choices = [choice for each in told for choice in each["choices"]]
        texts = [choice.get("text") or choice.get("delta", {}).get("content", "") for choice in choices]
        return "".join(texts), told[-1]["usage"]["completion_tokens"]


def ask_all(address: str, path: str, bodies: Sequence[dict[str, Any]]) -> tuple[list[str], int, float]:
    """All requests at once: texts, tokens of all, and seconds from the first request to the last piece."""

    async def run() -> tuple[list[str], int, float]:
        readings = [await Reading.connected(address, path, body) for body in bodies]
        began = time.perf_counter()
        for reading in readings:
            reading.ask()
        await asyncio.wait({reading.ended for reading in readings})
        seconds = time.perf_counter() - began
        answers = [reading.answer() for reading in readings]
        return [text for text, _ in answers], sum(count for _, count in answers), seconds

    return asyncio.run(run())
