"""The HTTP application: routes and error responses. It is independent of engines and clusters."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import IO, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paceline.errors import PacelineError
from paceline.serving.http.body import read_body
from paceline.serving.http.front import Front, as_sent
from paceline.serving.http.guard import Guard
from paceline.serving.http.operations import model_routes, operation_routes
from paceline.serving.http.playground import page_routes
from paceline.serving.http.refusals import Refusal, error_body, refusal_of
from paceline.serving.http.request_log import RequestLog
from paceline.serving.http.stream import ClientGone
from paceline.serving.http.unserved import unserved
from paceline.serving.models.job import Backend
from paceline.serving.protocol.anthropic import Messages
from paceline.serving.protocol.dialects import AnyBody
from paceline.serving.protocol.infill import InfillRequest
from paceline.serving.protocol.openai import ChatRequest, CompletionRequest
from paceline.serving.protocol.responses import Responses
from paceline.serving.protocol.tokenizing import DetokenizeRequest, TokenizeRequest
from paceline.serving.settings import Settings

CLIENT_CLOSED_REQUEST = 499


def build_app(
    backend: Backend, settings: Settings | None = None, log: IO[str] | None = None, telemetry: Any = None
) -> Any:
    """The application; its end closes `backend`.

    Args:
        settings: limits; None takes the defaults.
        log: file for one line of JSON per request.
        telemetry: wraps the application with OpenTelemetry (`telemetry.Telemetry`); None for none.

    Returns:
        An ASGI application; its attribute `front` holds the admission gate.
    """
    settings = settings or Settings()
    front = Front(backend, settings)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await backend.close()

    routes = [*_generation_routes(front), *model_routes(front), *(page_routes() if settings.page else ())]
    app = Starlette(routes=routes, exception_handlers=_handlers(), lifespan=lifespan)
    logged = RequestLog(Guard(app, settings), log, frozenset(route.path for route in routes))
    app.router.routes += operation_routes(front, logged)
    whole: Any = logged if telemetry is None else telemetry(logged)
    whole.front = front
    return whole


def _handlers() -> dict[Any, Any]:
    """Exception handlers, which return errors."""

    async def refused(request: Request, error: Exception) -> Response:
        return refusal_of(error).response(request.url.path)

    async def not_there(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = unserved(request.method, request.url.path, (error.headers or {}).get("Allow"))
        body = error_body(message, "invalid_request_error")
        return Refusal(error.status_code, body, error.headers or {}).response(request.url.path)

    async def nobody(_: Request, __: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    return {
        Exception: refused, PacelineError: refused, HTTPException: not_there, ClientGone: nobody,
        ClientDisconnect: nobody,
    }  # fmt: skip


def _generation_routes(front: Front) -> list[Route]:
    most = front.settings.max_body_bytes

    async def completions(request: Request) -> Response:
        return await front.generate(request, await read_body(request, CompletionRequest, most))

    async def chat_completions(request: Request) -> Response:
        return await front.generate(request, await read_body(request, ChatRequest, most))

    async def responses(request: Request) -> Response:
        return await front.translated(request, await read_body(request, AnyBody, most), Responses())

    async def messages(request: Request) -> Response:
        return await front.translated(request, await read_body(request, AnyBody, most), Messages())

    async def infill(request: Request) -> Response:
        return await front.infilled(request, await read_body(request, InfillRequest, most))

    async def count_tokens(request: Request) -> Response:
        dialect = Messages(generates=False)
        body = dialect.chat_request(await read_body(request, AnyBody, most))
        with as_sent(dialect.sent_name), as_sent(body.sent_name):
            jobs, _ = front.prepared(body)
            return JSONResponse({"input_tokens": len(await front.at_hand().tokenize(jobs[0]))})

    async def tokenize(request: Request) -> Response:
        body = await read_body(request, TokenizeRequest, most)
        text, asked = front.at_hand(), body.request()
        if isinstance(asked, ChatRequest):
            with as_sent(asked.sent_name):
                jobs, _ = await front.prepared_aside(request, asked)
                tokens = await text.tokenize(jobs[0])
        else:
            tokens = await text.tokenize(replace(asked, model=front.served_name(body.model)))
        model = front.served_name(body.model)
        told = asyncio.to_thread(body.answer, tokens, text.describe(model).get("max_model_len"))
        return JSONResponse(await told)

    async def detokenize(request: Request) -> Response:
        body = await read_body(request, DetokenizeRequest, most)
        prompt = await front.at_hand().detokenize(front.served_name(body.model), body.tokens)
        return JSONResponse({"prompt": prompt})

    answered = {
        "/v1/completions": completions, "/v1/chat/completions": chat_completions, Responses.path: responses,
        Messages.path: messages, f"{Messages.path}/count_tokens": count_tokens, "/tokenize": tokenize,
        "/detokenize": detokenize, "/infill": infill,
    }  # fmt: skip
    return [Route(path, answer, methods=["POST"]) for path, answer in answered.items()]
