"""Routes for operators and tools: models, health, readiness, version, metrics, state."""

import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from paceline.errors import UnknownModel
from paceline.serving.http.front import Front
from paceline.serving.http.request_log import RequestLog


def model_routes(front: Front) -> list[Route]:
    """What requests may ask for."""
    started = int(time.time())

    def entry(name: str) -> dict[str, Any]:
        longest = front.backend.describe(name)["max_model_len"]
        return {"id": name, "object": "model", "created": started, "owned_by": "paceline", "max_model_len": longest}

    async def models(_: Request) -> Response:
        return JSONResponse({"object": "list", "data": [entry(name) for name in front.backend.models]})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in front.backend.models:
            raise UnknownModel("model", f"{name[:100]!r} is unknown", f"use one of {', '.join(front.backend.models)}")
        return JSONResponse(entry(name))

    return [Route("/v1/models", models), Route("/v1/models/{name:path}", model)]


def operation_routes(front: Front, log: RequestLog) -> list[Route]:
    """How the server is."""

    async def health(_: Request) -> Response:
        state = front.backend.health()
        return JSONResponse(dict(state), 503 if state["status"] == "down" else 200)

    async def ready(_: Request) -> Response:
        reason = _why_not_ready(front)
        return JSONResponse({"ready": reason is None, "reason": reason}, 200 if reason is None else 503)

    async def tell_version(_: Request) -> Response:
        return JSONResponse({"version": package_version()})

    async def metrics(_: Request) -> Response:
        text = await front.backend.metrics() + _own_metrics(front, log)
        prefix = front.settings.metrics_prefix
        if prefix != "paceline":
            text = text.replace(b"paceline:", f"{prefix}:".encode())
        return Response(text, media_type="text/plain; version=0.0.4")

    async def state(_: Request) -> Response:
        models = {name: dict(front.backend.describe(name)) for name in front.backend.models}
        counters = {} if front.text is None else dict(await front.text.state())  # a cluster's are in /metrics
        return JSONResponse({"models": models, "metrics": counters, "requests": front.gate.num_inside})

    return [
        Route("/health", health), Route("/ready", ready), Route("/version", tell_version), Route("/metrics", metrics),
        Route("/api/state", state),
    ]  # fmt: skip


def _why_not_ready(front: Front) -> str | None:
    """Why no more requests should be sent here now; None when they may."""
    if front.gate.is_draining:
        return "draining"
    state = front.backend.health()
    if state["status"] == "down":
        return str(state.get("reason", "down"))
    return "the queue is full" if front.gate.is_full else None


def _own_metrics(front: Front, log: RequestLog) -> bytes:
    """Counts of the front itself, as Prometheus text."""
    lines = ["# HELP paceline:http_requests_total Answers by path and status.",
             "# TYPE paceline:http_requests_total counter"]  # fmt: skip
    for (path, status), count in sorted(log.counts.items()):
        lines.append(f'paceline:http_requests_total{{path="{path}",status="{status}"}} {count}')
    lines += ["# HELP paceline:http_requests_open Requests being answered or waiting.",
              "# TYPE paceline:http_requests_open gauge", f"paceline:http_requests_open {front.gate.num_inside}",
              "# HELP paceline:http_requests_turned_away_total Requests refused because the queue was full.",
              "# TYPE paceline:http_requests_turned_away_total counter",
              f"paceline:http_requests_turned_away_total {front.gate.num_turned_away}"]  # fmt: skip
    return ("\n".join(lines) + "\n").encode()


def package_version() -> str:
    """Of Paceline."""
    try:
        return version("paceline")
    except PackageNotFoundError:
        return "unknown"
