"""`Front`: from a request's body to its answer, whole or streamed, over any backend. Routes are `app.py`'s."""

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import ExitStack, aclosing
from dataclasses import replace
from typing import Any, cast

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from paceline.errors import InvalidParameter
from paceline.serving.answers import Answer, Wish
from paceline.serving.body import is_long
from paceline.serving.dialects import AnyBody, Dialect
from paceline.serving.gate import Gate
from paceline.serving.job import Backend, Job, TextBackend
from paceline.serving.protocol import ChatRequest, CompletionRequest, split_samples
from paceline.serving.refusals import HttpRefusal
from paceline.serving.rendering import rendered, response
from paceline.serving.settings import Settings
from paceline.serving.stream import DONE, PING, events, gather, run, unless_gone

_STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
_EARLY_SECONDS = 1.0
"""After this a stream's headers are sent without its first token: a refusal would have come by then."""


class Front:
    """What all endpoints share.

    Args:
        backend: answers.
        settings: limits.
    """

    def __init__(self, backend: Backend, settings: Settings) -> None:
        self.backend, self.settings = backend, settings
        self.gate = Gate(settings.max_running + settings.max_queue)

    def at_hand(self) -> TextBackend:
        """The same. Raises HttpRefusal, 501, where it has not."""
        if self.text is None:
            raise HttpRefusal(501, "a cluster's models are in other processes; ask a server with one model")
        return self.text

    @property
    def text(self) -> TextBackend | None:
        """The backend, where it has its models at hand."""
        return cast(TextBackend, self.backend) if hasattr(self.backend, "tokenize") else None

    def served_name(self, asked: str | None) -> str:
        """The model a request is for: the one it names, or the only one there is."""
        if asked:
            return asked
        if len(self.backend.models) > 1:
            raise InvalidParameter("model", "is missing", f"name one of {', '.join(self.backend.models)}")
        return self.backend.models[0]

    async def generate(self, request: Request, body: CompletionRequest | ChatRequest) -> Response:
        """The answer to either kind of request, whole or streamed."""
        jobs, answer = await self._prepared(request, body)
        request.scope.setdefault("state", {})["noted"] = {"model": body.model, "stream": body.stream}
        if body.stream and not body.echo:
            return await self._streamed(request, body, jobs, answer)
        whole = await unless_gone(request, self.whole(body, jobs, answer))
        request.scope["state"]["noted"] |= answer.noted()
        if not body.stream:
            return await response(whole)
        usage = {} if body.include_usage else {"usage": None}
        told = f"data: {(await rendered(whole | usage)).decode()}\n\n"
        return StreamingResponse(iter([told, DONE]), media_type="text/event-stream")

    async def translated(self, request: Request, asked: AnyBody, dialect: Dialect) -> Response:
        """The answer in another protocol."""
        body = dialect.chat_request(asked)
        if body.n != 1:
            raise InvalidParameter("n", "is not part of this protocol", "leave it out")
        body.stream_options.include_usage = True
        jobs, answer = await self._prepared(request, body)
        request.scope.setdefault("state", {})["noted"] = {"model": body.model, "stream": body.stream}
        if not body.stream:
            whole = await unless_gone(request, self.whole(body, jobs, answer))
            request.scope["state"]["noted"] |= answer.noted()
            return JSONResponse(dialect.answer(whole))
        plain = await self._streamed(request, body, jobs, answer)
        told = _retold(plain.body_iterator, dialect, body.model or "")
        return StreamingResponse(told, media_type="text/event-stream", headers=_STREAM_HEADERS)

    def prepared(self, body: CompletionRequest | ChatRequest, caller: str = "") -> tuple[list[Job], Answer]:
        """The jobs that a request of `caller` asks for, and the writer of its answer. Raises InvalidParameter."""
        request_id = f"{'chatcmpl' if isinstance(body, ChatRequest) else 'cmpl'}-{uuid.uuid4().hex}"
        body.model = self.served_name(body.model)
        if caller and not self.settings.shared_cache:
            body.cache_salt = f"{caller} {body.cache_salt}"
        jobs = [self._with_tools(self._bounded(job), body) for job in body.jobs(request_id)]
        answer = Answer(request_id, body.model, _wish(body, jobs, self.settings))
        if self.text is None:
            jobs = [single for job in jobs for single in split_samples(job)]
        return jobs, answer

    async def _prepared(self, request: Request, body: CompletionRequest | ChatRequest) -> tuple[list[Job], Answer]:
        """`prepared`, beside the event loop where there is much to prepare."""
        if is_long(request):
            return await asyncio.to_thread(self.prepared, body, _caller(request))
        return self.prepared(body, _caller(request))

    async def whole(self, body: CompletionRequest | ChatRequest, jobs: list[Job], answer: Answer) -> dict[str, Any]:
        """The body of an answer in one piece."""
        with self.gate.inside(len(jobs)):
            async with aclosing(run(self.backend, jobs, 1 if self.text else body.n)) as chunks:
                found = await gather(chunks, self.gate)
        return await asyncio.to_thread(answer.whole, found) if jobs[0].detail else answer.whole(found)

    async def _streamed(self, request: Request, body: Any, jobs: list[Job], answer: Answer) -> StreamingResponse:
        """The first piece is awaited a little before the status is sent, so that a refusal has a status of its own."""
        stack = ExitStack()
        stack.enter_context(self.gate.inside(len(jobs)))
        chunks = run(self.backend, jobs, 1 if self.text else body.n)
        first = asyncio.ensure_future(anext(chunks))
        try:
            await unless_gone(request, asyncio.wait({first}, timeout=_EARLY_SECONDS))
            early = first.result() if first.done() else None
        except BaseException:
            await _ended(first)
            await chunks.aclose()
            stack.close()
            raise
        usage = body.include_usage, bool(body.stream_options.continuous_usage_stats)
        rest = _rest(first, chunks) if early is None else chunks
        told = events(rest, early, answer, usage, self.gate, self.settings.ping_seconds)
        stack.callback(lambda: request.scope["state"]["noted"].update(answer.noted()))
        return StreamingResponse(_within(stack, told), media_type="text/event-stream", headers=_STREAM_HEADERS)

    def _with_tools(self, job: Job, body: CompletionRequest | ChatRequest) -> Job:
        """The job with its tools told in words, where the model's chat template does not know of tools."""
        if "tools" not in job.template or not isinstance(body, ChatRequest) or self.text is None:
            return job
        if job.model not in self.backend.models or self.text.describe(job.model)["reads_tools"]:
            return job
        return replace(job, messages=body.choice_of_tools().explained(job.messages))

    def _bounded(self, job: Job) -> Job:
        """The job with the server's own time limit."""
        limits = [each for each in (job.timeout, self.settings.request_timeout) if each is not None]
        return replace(job, timeout=min(limits)) if limits else job


def _caller(request: Request) -> str:
    return request.scope.get("state", {}).get("caller", "")


async def _retold(lines: Any, dialect: Dialect, model: str) -> AsyncIterator[str]:
    """A stream of chat completions in another protocol."""
    problems: list[dict[str, Any]] = []

    async def bodies() -> AsyncIterator[dict[str, Any]]:
        async for line in lines:
            if line not in (PING, DONE):
                told = json.loads(line.removeprefix("data: "))
                if "error" in told:
                    problems.append(told)
                    return
                yield told

    try:
        async for each in dialect.events(bodies(), model):
            if problems:
                break
            yield f"event: {each['type']}\ndata: {json.dumps(each, ensure_ascii=False)}\n\n"
        if problems:
            error = {"type": "error", "error": problems[0]["error"]}
            yield f"event: error\ndata: {json.dumps(error, ensure_ascii=False)}\n\n"
    finally:
        await lines.aclose()


async def _rest(first: "asyncio.Future[Any]", chunks: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """All chunks, of which the first is being awaited."""
    try:
        yield await first
        async for item in chunks:
            yield item
    finally:
        await _ended(first)
        await chunks.aclose()


async def _within(stack: ExitStack, told: AsyncIterator[str]) -> AsyncIterator[str]:
    """`told`; `stack` is closed after it, however it ends."""
    with stack:
        try:
            async for each in told:
                yield each
        finally:
            await told.aclose()  # type: ignore[attr-defined]


async def _ended(task: "asyncio.Future[Any]") -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


def _wish(body: CompletionRequest | ChatRequest, jobs: list[Job], settings: Settings) -> Wish:
    return Wish(
        is_chat=isinstance(body, ChatRequest),
        logprobs=jobs[0].params.logprobs is not None,
        echo=body.echo,
        only_echo=body.only_echo,
        token_ids=body.return_token_ids,
        prompt_logprobs=body.prompt_logprobs is not None,
        trace=body.paceline.trace,
        stats=body.paceline.stats or body.paceline.trace or settings.spec_decode_metrics,
        num_samples=body.n,
        prompts=[job.prompt for job in jobs],
        tools=body.choice_of_tools() if isinstance(body, ChatRequest) and "tools" in jobs[0].template else None,
    )
