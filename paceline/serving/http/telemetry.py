"""`Telemetry`: a span and three measurements of every request for OpenTelemetry (extra ``otel``).

Names are those of its conventions for generative models; a `traceparent` header makes the span part of the caller's
trace. Prompts and answers are never told. Where it is sent is said in OpenTelemetry's own variables
(`OTEL_EXPORTER_OTLP_ENDPOINT` and the like). Not for Prometheus (`operations.py`).
"""

import time
from collections.abc import Mapping
from typing import Any

from paceline.errors import InvalidParameter
from paceline.extras import install

_OPERATIONS = {
    "/v1/chat/completions": "chat", "/v1/completions": "text_completion", "/v1/responses": "chat",
    "/v1/messages": "chat",
}  # fmt: skip
_NAME = "paceline"


class Telemetry:
    """ASGI middleware around everything else.

    Args:
        app: what answers; it leaves what it knows of a request in the state's ``noted``.
        tracer_provider, meter_provider: OpenTelemetry's; those that are set for the process when left out.

    Raises:
        InvalidParameter: OpenTelemetry is not installed.
    """

    def __init__(self, app: Any, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        try:
            from opentelemetry import metrics, propagate, trace
        except ModuleNotFoundError:
            raise InvalidParameter("otel", "needs OpenTelemetry", install("otel")) from None
        self._app, self._trace, self._extract = app, trace, propagate.extract
        self._tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider)
        meter = metrics.get_meter(_NAME, meter_provider=meter_provider)
        names = ("request.duration", "time_to_first_token", "time_per_output_token")
        self._histograms = [meter.create_histogram(f"gen_ai.server.{name}", unit="s") for name in names]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        operation = _OPERATIONS.get(scope.get("path", ""))
        if scope["type"] != "http" or operation is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        times = _Times()

        async def timed(message: Any) -> None:
            times.see(message)
            await send(message)

        kind, context = self._trace.SpanKind.SERVER, self._extract(headers)
        with self._tracer.start_as_current_span(operation, context, kind) as span:
            try:
                await self._app(scope, receive, timed)
            finally:
                noted = scope.get("state", {}).get("noted", {})
                self._tell(span, {"gen_ai.operation.name": operation} | _attributes(noted), noted, times)

    def _tell(self, span: Any, known: dict[str, Any], noted: Mapping[str, Any], times: "_Times") -> None:
        """Close a request's span, and measure it."""
        span.update_name(f"{known['gen_ai.operation.name']} {noted.get('model', '')}".strip())
        span.set_attributes(known | {"http.response.status_code": times.status} | _usage(noted))
        if times.status >= 500:
            span.set_status(self._trace.StatusCode.ERROR)
        for histogram, seconds in zip(self._histograms, times.measured(noted), strict=True):
            if seconds is not None:
                histogram.record(seconds, known)


class _Times:
    """When an answer began, said its first word and ended."""

    def __init__(self) -> None:
        self.began, self.status, self.first = time.perf_counter(), 0, None

    def see(self, message: Mapping[str, Any]) -> None:
        """A part of the answer goes out."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message.get("body", b"").startswith(b"data: ") and self.first is None:
            self.first = time.perf_counter() - self.began

    def measured(self, noted: Mapping[str, Any]) -> tuple[float, float | None, float | None]:
        """Seconds of the request, to the first token and of each token after it; the last two of streams only."""
        whole = time.perf_counter() - self.began
        num_tokens = noted.get("usage", {}).get("completion_tokens", 0)
        if self.first is None or num_tokens < 2:
            return whole, self.first, None
        return whole, self.first, (whole - self.first) / (num_tokens - 1)


def _attributes(noted: Mapping[str, Any]) -> dict[str, Any]:
    known = {"gen_ai.provider.name": _NAME}
    return known | ({"gen_ai.request.model": noted["model"]} if noted.get("model") else {})


def _usage(noted: Mapping[str, Any]) -> dict[str, Any]:
    """Counts of tokens, and what became of the drafts."""
    usage, told = noted.get("usage"), {}
    if usage:
        told["gen_ai.usage.input_tokens"] = usage["prompt_tokens"]
        told["gen_ai.usage.output_tokens"] = usage["completion_tokens"]
        told["gen_ai.usage.cache_read.input_tokens"] = usage["prompt_tokens_details"]["cached_tokens"]
    for name in ("acceptance_length", "acceptance_rate"):
        if noted.get(name) is not None:
            told[f"paceline.{name}"] = noted[name]
    return told


def to_collector() -> tuple[Any, Any]:
    """Providers of spans and measurements that send them by OTLP over HTTP, wherever OpenTelemetry's variables say.

    Raises:
        InvalidParameter: OpenTelemetry's SDK or exporter is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        remedy = install("otel")
        raise InvalidParameter("otel", f"needs {error.name}, which is not installed", remedy) from None
    resource = Resource.create({SERVICE_NAME: _NAME})
    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return tracers, MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())], resource)
