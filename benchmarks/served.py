"""What the programs about the HTTP server share: a server in this process, its clients in another one.

The clients have a process of their own because they would take Python's attention from the server otherwise.
"""

import asyncio
import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx

from paceline import LLM
from paceline.engine.async_llm import AsyncLLM
from paceline.serving.app import build_app
from paceline.serving.local import LocalBackend
from paceline.serving.model_spec import ModelSpec
from paceline.serving.run import Server, bind, settle_memory
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
def served(llm: LLM, settings: Settings | None = None) -> Iterator[Served]:
    """A server around `llm`, which nobody else may use from then on."""
    backend = LocalBackend([ModelSpec(NAME, llm.model_name)], lambda _: AsyncLLM(llm))
    app, bound, ready = build_app(backend, settings), bind("127.0.0.1", 0), threading.Event()
    settle_memory()
    server = Server(app, app.front.gate, 5.0, ready.set)
    loop = asyncio.new_event_loop()
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
    """(work, its arguments...) to what it returns, worked out in another process, which is kept."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(time.time).result()
        yield lambda work, *arguments: pool.submit(work, *arguments).result()


async def streamed(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> tuple[str, int, list[float]]:
    """Text of a streamed answer, its number of tokens, and when pieces came."""
    texts, times, num_tokens = [], [], 0
    asked = body | {"stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", path, json=asked) as answer:
        answer.raise_for_status()
        async for line in answer.aiter_lines():
            if not line.startswith("data: {"):
                continue
            told = json.loads(line[6:])
            for choice in told["choices"]:
                texts.append(choice.get("text") or choice.get("delta", {}).get("content", ""))
                times.append(time.perf_counter())
            num_tokens = told["usage"]["completion_tokens"] if told.get("usage") else num_tokens
    return "".join(texts), num_tokens, times


def ask_all(address: str, path: str, bodies: Sequence[dict[str, Any]]) -> tuple[list[str], int, float]:
    """All requests at once: texts, tokens of all, and seconds from the first request to the last piece."""

    async def run() -> tuple[list[str], int, float]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=address, timeout=600, limits=limits) as client:
            await client.get("/health")
            began = time.perf_counter()
            answers = await asyncio.gather(*(streamed(client, path, body) for body in bodies))
            return [a[0] for a in answers], sum(a[1] for a in answers), time.perf_counter() - began

    return asyncio.run(run())
