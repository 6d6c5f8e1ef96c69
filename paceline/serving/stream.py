"""From a backend's chunks to what goes over the wire: several jobs at once, clients that leave, events and pings.

Not for bodies (`answers.py`) or statuses (`refusals.py`).
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import Request

from paceline.errors import RequestRejected
from paceline.serving.answers import Answer
from paceline.serving.gate import Gate
from paceline.serving.job import Backend, Chunk, Job
from paceline.serving.refusals import error_body, refusal_of
from paceline.serving.rendering import rendered

_T = TypeVar("_T")
Chunks = AsyncGenerator[tuple[int, Chunk], None]
"""(number of the prompt, a chunk of its answer)."""

PING = ": ping\n\n"
"""A comment, which every reader of server-sent events passes over."""
DONE = "data: [DONE]\n\n"


class ClientGone(Exception):
    """Nobody waits for the answer."""


async def run(backend: Backend, jobs: Sequence[Job], num_samples: int) -> Chunks:
    """The chunks of all jobs as they come. With one job per sample, jobs are grouped by `num_samples`."""
    if len(jobs) == 1:
        async with aclosing(backend.generate(jobs[0])) as chunks:
            async for chunk in chunks:
                yield 0, chunk
        return
    queue: asyncio.Queue[tuple[int, Chunk] | BaseException | None] = asyncio.Queue()
    tasks = [asyncio.ensure_future(_feed(backend, job, i, num_samples, queue)) for i, job in enumerate(jobs)]
    try:
        num_open = len(tasks)
        while num_open:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _feed(backend: Backend, job: Job, number: int, num_samples: int, queue: asyncio.Queue[Any]) -> None:
    """Put the chunks of one job into the queue, None after them, or what went wrong."""
    place, index = divmod(number, num_samples)
    try:
        async with aclosing(backend.generate(job)) as chunks:
            async for chunk in chunks:
                queue.put_nowait((place, _at(chunk, index)))
        queue.put_nowait(None)
    except Exception as error:
        queue.put_nowait(error)


def _at(chunk: Chunk, index: int) -> Chunk:
    return replace(chunk, index=index) if index else chunk


async def events(
    chunks: Chunks, first: tuple[int, Chunk] | None, answer: Answer, usage: tuple[bool, bool], gate: Gate, ping: float
) -> AsyncIterator[str]:
    """Server-sent events. An error in the middle of an answer is an event of its own, and the stream ends there.

    Args:
        first: a chunk that was read already.
        usage: whether counts come at the end, and with every event.
        ping: seconds of silence after which a comment is sent.
    """
    at_end, always = usage
    async with aclosing(chunks):
        if first is not None:
            yield await _told(answer, first, always)
        try:
            async for item in patiently(chunks, gate, ping):
                yield PING if item is None else await _told(answer, item, always)
        except Exception as error:
            yield event(refusal_of(error).body)
            return
        closing = answer.closing(at_end)
        if closing is not None:
            yield event(closing)
        if answer.errors:
            yield event(error_body(answer.errors[0], "request_failed"))
            return
        yield DONE


async def _told(answer: Answer, item: tuple[int, Chunk], always: bool) -> str:
    """The event of a chunk; one that tells of a whole prompt is written beside the event loop."""
    if not item[1].summary.prompt:
        return event(answer.piece(*item, always))
    body = await asyncio.to_thread(answer.piece, *item, always)
    return f"data: {(await rendered(body)).decode()}\n\n"


async def patiently(chunks: Chunks, gate: Gate, ping: float) -> AsyncGenerator[tuple[int, Chunk] | None, None]:
    """The chunks, with None for every `ping` seconds of silence.

    Raises:
        RequestRejected: the server is going down and waits no longer.
    """
    shut = asyncio.ensure_future(gate.shut.wait())
    pending: asyncio.Future[Any] = asyncio.ensure_future(_next(chunks))
    try:
        while True:
            done, _ = await asyncio.wait({pending, shut}, timeout=ping, return_when=asyncio.FIRST_COMPLETED)
            if pending in done:
                item = pending.result()
                if item is None:
                    return
                pending = asyncio.ensure_future(_next(chunks))
                yield item
            elif shut in done:
                raise RequestRejected("the server was shut down before the answer was whole")
            else:
                yield None
    finally:
        shut.cancel()
        await _cancelled(pending)


async def gather(chunks: Chunks, gate: Gate) -> list[tuple[int, Chunk]]:
    """All chunks. Raises RequestRejected when the server goes down."""
    return [item async for item in patiently(chunks, gate, 3600.0) if item is not None]


async def unless_gone(request: Request, work: Awaitable[_T]) -> _T:
    """What `work` returns; when the client goes away first, `work` is cancelled.

    Raises:
        ClientGone: it did.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        gone.cancel()
        await _cancelled(task)


def event(body: Any) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


async def _next(chunks: Chunks) -> tuple[int, Chunk] | None:
    """The next chunk, None after the last one."""
    return await anext(chunks, None)


async def _cancelled(task: "asyncio.Future[Any]") -> None:
    """End a task that nobody reads any more, and wait until it has."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
