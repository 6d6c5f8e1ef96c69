"""Metrics of an engine as Prometheus text, under ``paceline:`` and vLLM's names. Needs the extra ``serve``."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from paceline.engine.metrics import EngineMetrics, Histogram
from paceline.errors import InvalidParameter
from paceline.extras import install

if TYPE_CHECKING:
    from prometheus_client import Metric

PREFIX = "paceline:"
MEANINGS: Mapping[str, str] = {
    "num_requests_running": "samples that hold cache pages",
    "num_requests_waiting": "samples that hold no cache pages",
    "kv_cache_usage_perc": "pages that requests hold, as a share of all (0 to 1); idle cached pages count as free",
    "prompt_tokens": "tokens of finished requests' prompts",
    "generation_tokens": "tokens generated",
    "prefix_cache_queries": "tokens of admitted requests",
    "prefix_cache_hits": "tokens of admitted requests that were found in the prefix cache",
    "num_preemptions": "times a request lost its pages to others",
    "request_success": "samples ended, by stop, length, abort, timeout or error",
    "spec_decode_num_drafts": "drafts verified",
    "spec_decode_num_draft_tokens": "drafted nodes verified",
    "spec_decode_num_accepted_tokens": "drafted tokens that joined an output",
    "spec_decode_num_accepted_tokens_per_pos": "drafts of which at least position + 1 tokens were accepted",
    "spec_decode_acceptance_length": "drafts after which that number of tokens was emitted in one pass",
    "num_lossy_requests": "finished requests whose drafts a lossy rule judged",
    "num_passes": "passes of the target",
    "rows": "rows of the target's passes, by prefill, decode or draft",
    "request_prefill_time_seconds": "first scheduled step to the first token",
    "request_decode_time_seconds": "first token to the end",
    "request_prompt_tokens": "tokens of a request's prompt",
    "request_generation_tokens": "tokens of each sample of a request",
    "iteration_tokens_total": "prompt rows read and tokens committed in a pass",
    "request_queue_time_seconds": "arrival to the first step that computed something",
    "time_to_first_token_seconds": "arrival to the first token",
    "inter_token_latency_seconds": "between two steps that emitted tokens of a request",
    "e2e_request_latency_seconds": "arrival to the end",
}
"""What every metric counts or measures, as docs/metrics.md has it too."""


def prometheus_text(metrics: EngineMetrics, model_name: str) -> bytes:
    """The metrics in Prometheus text format, the body of ``/metrics``.

    Raises:
        InvalidParameter: prometheus-client is not installed.
    """
    return _text(_Families(metrics, model_name))


def gauges_text(values: Mapping[str, tuple[str, float]], model_name: str) -> bytes:
    """Gauges in Prometheus text format.

    Args:
        values: name to (what it measures, value).

    Raises:
        InvalidParameter: prometheus-client is not installed.
    """
    return _text(_Gauges(values, model_name))


def _text(families: "_Families | _Gauges") -> bytes:
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ModuleNotFoundError:
        problem = "Prometheus text needs prometheus-client"
        raise InvalidParameter("metrics", problem, install("serve")) from None

    registry = CollectorRegistry()
    registry.register(families)  # type: ignore[arg-type]
    return generate_latest(registry)


class _Gauges:
    """A Prometheus collector over values."""

    def __init__(self, values: Mapping[str, tuple[str, float]], model_name: str) -> None:
        self._values, self._model = values, model_name

    def collect(self) -> "list[Metric]":
        return _gauges(self._values, self._model)


class _Families:
    """A Prometheus collector over one engine's metrics."""

    def __init__(self, metrics: EngineMetrics, model_name: str) -> None:
        self._metrics, self._model = metrics, model_name

    def collect(self) -> "list[Metric]":
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        metrics = self._metrics
        families = _gauges({name: (MEANINGS[name], value) for name, value in metrics.gauges().items()}, self._model)
        for name, value in metrics.counters().items():
            families.append(counter := CounterMetricFamily(PREFIX + name, _describe(name), labels=["model_name"]))
            counter.add_metric([self._model], value)
        for name, label, values in self._labelled():
            labels = ["model_name", label]
            families.append(counter := CounterMetricFamily(PREFIX + name, _describe(name), labels=labels))
            for key, value in values:
                counter.add_metric([self._model, str(key)], value)
        for name, histogram in metrics.histograms().items():
            families.append(family := HistogramMetricFamily(PREFIX + name, _describe(name), labels=["model_name"]))
            family.add_metric([self._model], _cumulative(histogram), histogram.sum)
        return families

    def _labelled(self):
        """Yield (name, label, (label value, count) pairs) of the counters with a label besides the model's."""
        metrics = self._metrics
        per_position = metrics.spec_decode_num_accepted_tokens_per_pos
        yield "spec_decode_num_accepted_tokens_per_pos", "position", enumerate(per_position)
        yield "spec_decode_acceptance_length", "tokens", sorted(metrics.emitted_per_draft.items())
        yield "rows", "kind", metrics.rows.items()
        yield "request_success", "finished_reason", sorted(metrics.finished.items())


def _gauges(values: Mapping[str, tuple[str, float]], model_name: str) -> "list[Metric]":
    from prometheus_client.core import GaugeMetricFamily

    families: list[Metric] = []
    for name, (meaning, value) in values.items():
        families.append(gauge := GaugeMetricFamily(PREFIX + name, _sentence(meaning), labels=["model_name"]))
        gauge.add_metric([model_name], value)
    return families


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


def _describe(name: str) -> str:
    return _sentence(MEANINGS[name])


def _sentence(meaning: str) -> str:
    return f"{meaning[0].upper()}{meaning[1:]}."
