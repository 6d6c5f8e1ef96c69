"""Streaming: from a backend's chunks to server-sent events, with several jobs, disconnecting clients and pings.

Not for bodies (`protocol/answers.py`) or error responses (`refusals.py`).
"""

import asyncio
import json
import logging
import time
from asyncio import FIRST_COMPLETED as _FIRST
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from paceline.errors import PacelineError, RequestRejected
from paceline.serving.http.gate import Gate
from paceline.serving.http.refusals import error_body, refusal_of
from paceline.serving.http.rendering import rendered
from paceline.serving.models.job import Backend, Chunk, Job
from paceline.serving.protocol.answers import Answer

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
Chunks = AsyncGenerator[tuple[int, Chunk], None]
"""(index of the prompt, a chunk of its answer)."""

PING = ": ping\n\n"
"""A comment, which clients of server-sent events ignore."""
DONE = "data: [DONE]\n\n"
_PATIENCE = 60.0
"""Seconds without reading after which a client counts as disconnected."""
_SHUT = "the server was shut down before the answer was whole"


class ClientGone(Exception):
    """The client has disconnected."""


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
    """Put the chunks of one job into the queue, followed by None or by the error."""
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


async def bodies(
    chunks: Chunks, first: tuple[int, Chunk] | None, answer: Answer, usage: tuple[bool, bool], raises: bool = False
) -> AsyncGenerator[dict[str, Any] | str, None]:
    """The bodies of a stream's events. An error in the middle of an answer is a body of its own, and the last one.

    Args:
        first: a chunk that was read already.
        usage: whether counts come at the end, and with every event. Without the latter, bodies that add nothing but
            text are JSON already.
        raises: raise an error in the middle of an answer.
    """
    at_end, always = usage
    try:
        if first is not None:
            for body in await _told(answer, first, usage):
                yield body
        async for item in chunks:
            told = None if always else answer.quick(*item, at_end)
            for body in await _told(answer, item, usage) if told is None else (told,):
                yield body
    except Exception as error:
        if raises:
            raise
        if not isinstance(error, PacelineError):  # the client is told no more than that something failed
            _LOG.exception("a stream ended by an unexpected error")
        yield refusal_of(error).body
        return
    closing = answer.closing(at_end)
    if closing is not None:
        yield closing
    if answer.errors:
        yield error_body(answer.errors[0], "request_failed")


async def _told(answer: Answer, item: tuple[int, Chunk], usage: tuple[bool, bool]) -> list[dict[str, Any]]:
    """The bodies of a chunk; those that tell of a whole prompt are made beside the event loop."""
    if item[1].summary.prompt:
        return await asyncio.to_thread(answer.pieces, *item, usage)
    return answer.pieces(*item, usage)


async def events(told: AsyncGenerator[dict[str, Any] | str, None], answer: Answer) -> AsyncGenerator[str, None]:
    """`bodies` of `answer` as server-sent events, with ``[DONE]`` at the end of a stream that ended well.

    Everything after the end of all samples is sent as one piece, to save packets and wake-ups.
    """
    last = ""
    async with aclosing(told):
        async for body in told:
            if isinstance(body, str):
                yield f"data: {body}\n\n"
                continue
            if any("prompt_token_ids" in choice or "prompt_logprobs" in choice for choice in body.get("choices", ())):
                text = f"data: {(await rendered(body)).decode()}\n\n"
            else:
                text = event(body)
            if "error" in body:
                yield last + text
                return
            if answer.is_over:
                last += text
            else:
                yield text
    yield last + DONE


class EventStream(Response):
    """A stream of server-sent events with pings while it is silent; `told` is closed at its end in any case.

    One watcher task runs per stream, none per event. A client that stops reading is disconnected after a minute, so
    that it cannot hold its slot for ever.

    Args:
        told: the events.
        gate: of the server; when it is shut, the stream ends with an error.
        ping: seconds of silence after which a comment is sent.
        problem: from an error's body to its event.
        stack: closed after the stream.
    """

    media_type = "text/event-stream"

    def __init__(
        self, told: AsyncGenerator[str, None], gate: Gate, ping: float, problem: Callable[[dict[str, Any]], str],
        stack: AsyncExitStack,
    ) -> None:  # fmt: skip
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._told, self._gate, self._ping, self._problem, self._stack = told, gate, ping, problem, stack
        self._latest, self._is_sending = time.monotonic(), False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """See ASGI."""
        writer = asyncio.ensure_future(self._write(send))
        gone, shut = asyncio.ensure_future(_gone(receive)), asyncio.ensure_future(self._gate.shut.wait())
        try:
            while True:
                done, _ = await asyncio.wait({writer, gone, shut}, timeout=self._ping, return_when=_FIRST)
                silent = time.monotonic() - self._latest
                if writer in done:
                    return writer.result()
                if gone in done or (self._is_sending and silent >= max(_PATIENCE, self._ping)):
                    return
                if shut in done:
                    await cancelled(writer)
                    await _send(send, self._problem(refusal_of(RequestRejected(_SHUT)).body), False)
                    return
                if silent >= self._ping and not self._is_sending:
                    await asyncio.wait_for(_send(send, PING), _PATIENCE)
        except TimeoutError:
            return
        finally:
            gone.cancel()
            shut.cancel()
            await cancelled(writer)
            await self._told.aclose()
            await self._stack.aclose()

    async def _write(self, send: Any) -> None:
        """Send the whole stream; ends silently when the client has disconnected."""
        self._is_sending = True
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            self._is_sending = False
            async for text in self._told:
                self._latest, self._is_sending = time.monotonic(), True
                await _send(send, text)
                self._is_sending = False
            await _send(send, "", False)
        except OSError:
            return


async def _send(send: Any, text: str, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": more})


async def until_shut(work: Awaitable[_T], gate: Gate) -> _T:
    """The result of `work`. Raises RequestRejected when the server shuts down first."""
    task = asyncio.ensure_future(work)
    shut = asyncio.ensure_future(gate.shut.wait())
    try:
        await asyncio.wait({task, shut}, return_when=_FIRST)
        if not task.done():
            raise RequestRejected(_SHUT)
        return task.result()
    finally:
        shut.cancel()
        await cancelled(task)


async def gathered(chunks: Chunks) -> list[tuple[int, Chunk]]:
    """All chunks."""
    return [item async for item in chunks]


async def unless_gone(request: Request, work: Awaitable[_T]) -> _T:
    """The result of `work`; when the client disconnects first, `work` is cancelled.

    Raises:
        ClientGone: the client disconnected.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=_FIRST)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        gone.cancel()
        await cancelled(task)


def event(body: Any) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(body, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def cancelled(task: "asyncio.Future[Any]") -> None:
    """Cancel a task and wait until it has ended."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


async def _gone(receive: Any) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
