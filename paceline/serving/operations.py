"""Routes for operators and tools: models, health, readiness, version, metrics, state."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from paceline.errors import InvalidParameter
from paceline.serving.front import Front
from paceline.serving.request_log import RequestLog


def add_models(app: FastAPI, front: Front) -> None:
    """What requests may ask for."""

    def entry(name: str) -> dict[str, Any]:
        more = {} if front.text is None else front.text.describe(name)
        return {
            "id": name, "object": "model", "created": 0, "owned_by": "paceline",
            "max_model_len": more.get("max_model_len"),
        }  # fmt: skip

    @app.api_route("/v1/models", methods=["GET", "HEAD"])
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [entry(name) for name in front.backend.models]}

    @app.api_route("/v1/models/{name:path}", methods=["GET", "HEAD"])
    async def model(name: str) -> dict[str, Any]:
        if name not in front.backend.models:
            raise InvalidParameter("model", f"{name!r} is unknown", f"use one of {', '.join(front.backend.models)}")
        return entry(name)


def add_operations(app: FastAPI, front: Front, log: RequestLog) -> None:
    """How the server is."""

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> Response:
        state = front.backend.health()
        return JSONResponse(dict(state), 503 if state["status"] == "down" else 200)

    @app.api_route("/ready", methods=["GET", "HEAD"])
    async def ready() -> Response:
        reason = _why_not_ready(front)
        return JSONResponse({"ready": reason is None, "reason": reason}, 200 if reason is None else 503)

    @app.api_route("/version", methods=["GET", "HEAD"])
    async def tell_version() -> dict[str, str]:
        return {"version": package_version()}

    @app.api_route("/metrics", methods=["GET", "HEAD"])
    async def metrics() -> Response:
        text = await front.backend.metrics() + _own_metrics(front, log)
        prefix = front.settings.metrics_prefix
        if prefix != "paceline":
            text = text.replace(b"paceline:", f"{prefix}:".encode())
        return Response(text, media_type="text/plain; version=0.0.4")

    @app.api_route("/api/state", methods=["GET", "HEAD"])
    async def state() -> dict[str, Any]:
        text = front.at_hand()
        models = {name: dict(text.describe(name)) for name in front.backend.models}
        return {"models": models, "metrics": dict(await text.state()), "requests": front.gate.num_inside}


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
