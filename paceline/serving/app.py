"""The HTTP front: OpenAI's endpoints over any `Backend`. It knows neither engines nor clusters."""

import asyncio
import json
import math
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse

from paceline.errors import EngineDead, GroupLost, InvalidParameter, PacelineError, RequestRejected, WorkerDied
from paceline.serving.job import Backend, Chunk, Job
from paceline.serving.protocol import Answer, ChatRequest, CompletionRequest, error_body

_T = TypeVar("_T")

CLIENT_CLOSED_REQUEST = 499


class ClientGone(Exception):
    """Nobody waits for the answer."""


def build_app(backend: Backend) -> FastAPI:
    """The application; its end closes `backend`."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await backend.close()

    app = FastAPI(title="Paceline", lifespan=lifespan)
    app.add_exception_handler(PacelineError, _refusal)
    app.add_exception_handler(RequestValidationError, _bad_body)
    app.add_exception_handler(ClientGone, _nobody)

    @app.post("/v1/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        name = f"cmpl-{uuid.uuid4().hex}"
        return await _answer(backend, body.job(name), Answer(name, body.model, False), request, body.include_usage)

    @app.post("/v1/chat/completions")
    async def chat_completions(body: ChatRequest, request: Request) -> Response:
        name = f"chatcmpl-{uuid.uuid4().hex}"
        return await _answer(backend, body.job(name), Answer(name, body.model, True), request, body.include_usage)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        entries = [{"id": name, "object": "model", "created": 0, "owned_by": "paceline"} for name in backend.models]
        return {"object": "list", "data": entries}

    @app.get("/health")
    async def health() -> Response:
        state = backend.health()
        return JSONResponse(dict(state), 503 if state["status"] == "down" else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(await backend.metrics(), media_type="text/plain; version=0.0.4")

    return app


async def _answer(backend: Backend, job: Job, answer: Answer, request: Request, include_usage: bool) -> Response:
    """Either form. The first piece is awaited before the status is sent, so that a refusal has a status of its own."""
    chunks = backend.generate(job)
    first = await _unless_gone(request, anext(chunks), chunks)
    if job.stream:
        events = _events(chunks, first, answer, include_usage)
        return StreamingResponse(events, media_type="text/event-stream")
    return JSONResponse(await _unless_gone(request, _gather(chunks, first, answer), chunks))


async def _gather(chunks: AsyncGenerator[Chunk, None], first: Chunk, answer: Answer) -> dict[str, Any]:
    texts, last = [first.text], first
    async for last in chunks:
        texts.append(last.text)
    return answer.whole("".join(texts), last)


async def _events(
    chunks: AsyncGenerator[Chunk, None], first: Chunk, answer: Answer, include_usage: bool
) -> AsyncIterator[str]:
    """Server-sent events. An error in the middle of an answer is an event of its own, and the stream ends there."""
    async with aclosing(chunks):
        yield _event(answer.piece(first, True))
        last = first
        try:
            async for last in chunks:
                yield _event(answer.piece(last, False))
        except PacelineError as error:
            yield _event(error_body(str(error), type(error).__name__))
            return
        if include_usage:
            yield _event(answer.closing_usage(last))
        yield "data: [DONE]\n\n"


def _event(body: dict[str, Any]) -> str:
    return f"data: {json.dumps(body, ensure_ascii=False)}\n\n"


async def _unless_gone(request: Request, work: Any, chunks: AsyncGenerator[Chunk, None]) -> Any:
    """What `work` returns; when the client goes away first, `work` and the request end.

    Raises:
        ClientGone: it did.
    """
    task = asyncio.ensure_future(_as_coroutine(work))
    gone = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
            await chunks.aclose()


async def _as_coroutine(work: Coroutine[Any, Any, _T]) -> _T:
    return await work


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _refusal(_: Request, error: Exception) -> Response:
    """A status for everything that is refused or fails on purpose."""
    headers = {}
    if isinstance(error, InvalidParameter):
        status = 404 if error.field == "model" else 400
        body = error_body(str(error), "invalid_request_error", error.field)
    elif isinstance(error, RequestRejected):
        status = 503 if error.seconds_late is None else 429
        headers = {"Retry-After": str(max(1, math.ceil(error.seconds_late or 1)))}
        body = error_body(str(error), "request_rejected")
    else:
        gone = isinstance(error, GroupLost | EngineDead | WorkerDied)
        status = 503 if gone else 500
        body = error_body(str(error), type(error).__name__)
    return JSONResponse(body, status, headers)


async def _bad_body(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"] if part != "body") or "body"
    return JSONResponse(error_body(f"{field}: {first['msg']}", "invalid_request_error", field), 400)


async def _nobody(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)
