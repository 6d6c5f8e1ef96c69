"""OpenTelemetry is told of every request: a span in the caller's trace, its counts and three measurements; no text."""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

pytest.importorskip("opentelemetry.sdk")

import httpx
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from paceline.serving.http.telemetry import Telemetry, to_collector
from tests.serving.conftest import MODEL

TEXT = {"model": MODEL, "prompt": "abcabcabc", "temperature": 0, "max_tokens": 8, "ignore_eos": True}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def told(serving, *bodies):
    """Spans, and counts of measurements by name, of requests one after the other."""
    spans, reader, tracers = InMemorySpanExporter(), InMemoryMetricReader(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))

    async def scene():
        async with serving() as client:
            app = Telemetry(client.app, tracers, MeterProvider([reader]))
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as watched:
                for body in bodies:
                    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
                    await watched.post("/v1/completions", json=body, headers=headers)
                await watched.get("/health")

    asyncio.run(scene())
    data = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    counts = {metric.name: sum(point.count for point in metric.data.data_points) for metric in data}
    return spans.get_finished_spans(), counts


def test_a_request_is_a_span_of_its_callers_trace_with_its_counts(serving):
    [whole, stream], counts = told(serving, TEXT, TEXT | {"stream": True})
    for span in (whole, stream):
        known = dict(span.attributes)
        assert span.name == f"text_completion {MODEL}"
        assert f"{span.context.trace_id:032x}" == TRACE and f"{span.parent.span_id:016x}" == PARENT
        assert known["gen_ai.usage.output_tokens"] == 8 and known["gen_ai.usage.input_tokens"] == 9
        assert known["gen_ai.request.model"] == MODEL and known["http.response.status_code"] == 200
        assert not any("abc" in str(value) for value in known.values())
    assert counts == {"gen_ai.server.request.duration": 2, "gen_ai.server.time_to_first_token": 1,
                      "gen_ai.server.time_per_output_token": 1}  # fmt: skip


def test_a_refused_request_is_told_too(serving):
    [span], counts = told(serving, TEXT | {"temperature": -1})
    assert span.attributes["http.response.status_code"] == 400 and counts == {"gen_ai.server.request.duration": 1}


def test_where_it_is_sent_is_opentelemetrys_own_business(monkeypatch):
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    paths = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    tracers, meters = to_collector()
    assert tracers.resource.attributes["service.name"] == "paceline"
    tracers.get_tracer("t").start_span("one").end()
    meters.get_meter("m").create_histogram("h").record(1.0)
    tracers.shutdown()
    meters.shutdown()
    server.shutdown()
    assert sorted(set(paths)) == ["/v1/metrics", "/v1/traces"]
