"""`Front`: handles a parsed request body: complete or streamed responses over any backend. For routes see `app.py`."""

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import replace
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from paceline.errors import InvalidParameter
from paceline.serving.http.body import is_long
from paceline.serving.http.gate import Gate
from paceline.serving.http.refusals import HttpRefusal
from paceline.serving.http.rendering import rendered, response
from paceline.serving.http.stream import (
    DONE,
    EventStream,
    bodies,
    cancelled,
    event,
    events,
    gathered,
    run,
    unless_gone,
    until_shut,
)
from paceline.serving.models.job import Backend, Job, TextBackend
from paceline.serving.protocol.answers import Answer, Wish
from paceline.serving.protocol.dialects import AnyBody, Dialect
from paceline.serving.protocol.infill import Infilled, InfillRequest
from paceline.serving.protocol.openai import ChatRequest, CompletionRequest, split_samples
from paceline.serving.settings import Settings

_EARLY_SECONDS = 1.0
"""Seconds after which a stream's headers are sent without its first token; rejections arrive before that."""


class Front:
    """Request handling shared by all endpoints.

    Args:
        backend: runs the requests.
        settings: limits.

    Attributes:
        gate: admits requests.
        text: the backend if it is a `TextBackend`, else None.
    """

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self.backend, self.settings = backend, settings
        self.gate = Gate(settings.max_running + settings.max_queue)
        self.text = backend if isinstance(backend, TextBackend) else None

    def at_hand(self) -> TextBackend:
        """The backend as a `TextBackend`. Raises HttpRefusal (501) if it is none."""
        if self.text is None:
            raise HttpRefusal(501, "a cluster's models are in other processes; ask a server with one model")
        return self.text

    def served_name(self, asked: str | None) -> str:
        """The model a request is for: the one it names, or the only one there is."""
        if asked:
            return asked
        if len(self.backend.models) > 1:
            raise InvalidParameter("model", "is missing", f"name one of {', '.join(self.backend.models)}")
        return self.backend.models[0]

    async def generate(self, request: Request, body: CompletionRequest | ChatRequest) -> Response:
        """The answer to either kind of request, whole or streamed."""
        with as_sent(body.sent_name):
            return await self._generate(request, body)

    async def _generate(self, request: Request, body: CompletionRequest | ChatRequest) -> Response:
        jobs, answer = await self.prepared_aside(request, body)
        request.scope.setdefault("state", {})["noted"] = {"model": body.model, "stream": body.stream}
        if body.stream and not body.echo:
            told, stack = await self._bodies(request, body, jobs, answer)
            return self._stream(events(told, answer), event, stack)
        whole = await unless_gone(request, self.whole(body, jobs, answer))
        request.scope["state"]["noted"] |= answer.noted()
        if not body.stream:
            return await response(whole)
        usage = {} if body.include_usage else {"usage": None}
        told = f"data: {(await rendered(whole | usage)).decode()}\n\n"
        return StreamingResponse(iter([told, DONE]), media_type="text/event-stream")

    async def translated(self, request: Request, asked: AnyBody, dialect: Dialect) -> Response:
        """The response in another protocol."""
        body = dialect.chat_request(asked)
        with as_sent(dialect.sent_name), as_sent(body.sent_name):
            return await self._translated(request, body, dialect)

    async def _translated(self, request: Request, body: ChatRequest, dialect: Dialect) -> Response:
        if body.n != 1:
            raise InvalidParameter("n", "is not part of this protocol", "leave it out")
        body.stream_options.continuous_usage_stats = True
        jobs, answer = await self.prepared_aside(request, body)
        request.scope.setdefault("state", {})["noted"] = {"model": body.model, "stream": body.stream}
        if not body.stream:
            whole = await unless_gone(request, self.whole(body, jobs, answer))
            request.scope["state"]["noted"] |= answer.noted()
            if answer.errors:
                raise HttpRefusal(500, f"the request failed: {answer.errors[0]}")
            return JSONResponse(dialect.answer(whole))
        told, stack = await self._bodies(request, body, jobs, answer)
        return self._stream(_retold(told, dialect, body.model or ""), lambda e: _named(dialect.error_event(e)), stack)

    async def infilled(self, request: Request, asked: InfillRequest) -> Response:
        """The answer to llama.cpp's ``/infill``, whole or streamed."""
        body = asked.completion()
        with as_sent(asked.sent_name):
            jobs, answer = await self.prepared_aside(request, body)
            request.scope.setdefault("state", {})["noted"] = {"model": body.model, "stream": asked.stream}
            infilled = Infilled(asked, body.model or "")
            if asked.stream:
                told, stack = await self._bodies(request, body, jobs, answer)
                return self._stream(_infill_events(told, infilled), event, stack)
            jobs = [replace(job, stream_interval=1) for job in jobs]
            told, stack = await self._bodies(request, body, jobs, answer, raises=True)
            async with stack, aclosing(told):
                work = infilled.whole(cast(AsyncIterator[dict[str, Any]], told))
                whole = await unless_gone(request, until_shut(work, self.gate))
        if "error" in whole:
            raise HttpRefusal(500, f"the request failed: {whole['error']['message']}")
        return JSONResponse(whole)

    def prepared(self, body: CompletionRequest | ChatRequest, caller: str = "") -> tuple[list[Job], Answer]:
        """The jobs that a request of `caller` asks for, and the writer of its answer. Raises InvalidParameter."""
        request_id = f"{'chatcmpl' if isinstance(body, ChatRequest) else 'cmpl'}-{uuid.uuid4().hex}"
        body.model = self.served_name(body.model)
        if caller and not self.settings.shared_cache:
            body.cache_salt = f"{caller} {body.cache_salt}"
        jobs = [self._bounded(job) for job in body.jobs(request_id)]
        wish = _wish(body, jobs, self.settings)
        answer = Answer(request_id, body.model, wish)
        if self.text is None:
            jobs = [single for job in jobs for single in split_samples(job)]
        return jobs, answer

    async def prepared_aside(self, request: Request, body: CompletionRequest | ChatRequest) -> tuple[list[Job], Answer]:
        """`prepared`, on a thread for large requests."""
        if is_long(request):
            return await asyncio.to_thread(self.prepared, body, _caller(request))
        return self.prepared(body, _caller(request))

    async def whole(self, body: CompletionRequest | ChatRequest, jobs: list[Job], answer: Answer) -> dict[str, Any]:
        """The body of a response that is not streamed."""
        with self.gate.inside(self._places(jobs)):
            async with aclosing(run(self.backend, jobs, 1 if self.text else body.num_samples)) as chunks:
                found = await until_shut(gathered(chunks), self.gate)
        return await asyncio.to_thread(answer.whole, found) if jobs[0].detail else answer.whole(found)

    async def _bodies(
        self,
        request: Request,
        body: CompletionRequest | ChatRequest,
        jobs: list[Job],
        answer: Answer,
        *,
        raises: bool = False,
    ) -> tuple[AsyncGenerator[dict[str, Any] | str, None], AsyncExitStack]:
        """The bodies of a stream, and the stack to close after it; they raise errors if `raises`, else tell of them.

        An immediate rejection is raised here, so that the response has its HTTP status.
        """
        async with AsyncExitStack() as stack:
            stack.enter_context(self.gate.inside(self._places(jobs)))
            chunks = run(self.backend, jobs, 1 if self.text else body.num_samples)
            stack.push_async_callback(chunks.aclose)
            first = asyncio.ensure_future(anext(chunks))
            stack.push_async_callback(cancelled, first)
            await unless_gone(request, asyncio.wait({first}, timeout=_EARLY_SECONDS))
            early = first.result() if first.done() else None
            stack.callback(lambda: request.scope["state"]["noted"].update(answer.noted()))
            usage = body.include_usage, bool(body.stream_options.continuous_usage_stats)
            rest = _rest(first, chunks) if early is None else chunks
            return bodies(rest, early, answer, usage, raises), stack.pop_all()
        raise AssertionError("not reached")  # the stack swallows nothing

    def _stream(
        self, told: AsyncGenerator[str, None], problem: Callable[[dict[str, Any]], str], stack: AsyncExitStack
    ) -> Response:
        return EventStream(told, self.gate, self.settings.ping_seconds, problem, stack)

    def _places(self, jobs: list[Job]) -> int:
        """Number of queue slots for `jobs`: their samples, at most the queue's capacity."""
        return min(sum(job.params.n for job in jobs), self.gate.most)

    def _bounded(self, job: Job) -> Job:
        """The job with the server's limits applied."""
        limits = [each for each in (job.timeout, self.settings.request_timeout) if each is not None]
        interval = self.settings.stream_interval if job.stream and not job.trace else 1
        return replace(job, timeout=min(limits, default=None), stream_interval=interval)


@contextmanager
def as_sent(sent_name: Callable[[str], str]) -> Iterator[None]:
    """Rename fields in InvalidParameter errors to the client's names by `sent_name`."""
    try:
        yield
    except InvalidParameter as error:
        name = sent_name(error.field)
        if name == error.field:
            raise
        raise error.about(name) from error


def _caller(request: Request) -> str:
    return request.scope.get("state", {}).get("caller", "")


async def _retold(
    told: AsyncGenerator[dict[str, Any] | str, None], dialect: Dialect, model: str
) -> AsyncGenerator[str, None]:
    """A stream of chat completions in another protocol."""
    async with aclosing(told):
        async for each in dialect.events(cast(AsyncIterator[dict[str, Any]], told), model):
            yield _named(each)


async def _infill_events(
    told: AsyncGenerator[dict[str, Any] | str, None], infilled: Infilled
) -> AsyncGenerator[str, None]:
    async with aclosing(told):
        async for body in infilled.pieces(cast(AsyncIterator[dict[str, Any]], told)):
            yield event(body)


def _named(body: dict[str, Any]) -> str:
    return f"event: {body['type']}\ndata: {json.dumps(body, ensure_ascii=False)}\n\n"


async def _rest(first: "asyncio.Future[Any]", chunks: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Yield `first`, which is being awaited, and then the other chunks."""
    yield await first
    async for item in chunks:
        yield item


def _wish(body: CompletionRequest | ChatRequest, jobs: list[Job], settings: Settings) -> Wish:
    return Wish(
        is_chat=isinstance(body, ChatRequest),
        logprobs=body.logprobs is not None and body.logprobs is not False,
        echo=body.echo,
        only_echo=body.only_echo,
        token_ids=body.return_token_ids,
        prompt_logprobs=body.prompt_logprobs is not None,
        trace=body.paceline.trace,
        stats=body.paceline.stats or body.paceline.trace or settings.spec_decode_metrics,
        num_samples=body.num_samples,
        num_kept=body.n if body.num_samples != body.n else None,
        prompts=[job.prompt for job in jobs],
        tools=body.choice_of_tools() if isinstance(body, ChatRequest) and "tools" in jobs[0].template else None,
    )
