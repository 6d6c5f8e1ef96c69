"""The controller's state as Prometheus text, under ``paceline_cluster``. Needs the extra ``serve``."""

from collections.abc import Sequence

from paceline.serving.cluster.controller import Controller, Health


def controller_text(controller: Controller) -> bytes:
    """Prometheus text: requests by outcome, and queue and state of every group."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest
    from prometheus_client.core import CounterMetricFamily

    registry = CollectorRegistry()
    requests = CounterMetricFamily("paceline_cluster_requests", "Requests by what became of them.", labels=["outcome"])
    for outcome, count in controller.counts.items():
        requests.add_metric([outcome], count)
    registry.register(_Fixed(requests))  # type: ignore[arg-type]
    sizes = Gauge("paceline_cluster_queue", "Accepted requests that have not ended.", ["group"], registry=registry)
    ready = Gauge("paceline_cluster_group_ready", "1 when the group runs.", ["group"], registry=registry)
    for group, (waiting, health) in enumerate(zip(controller.queues, controller.health, strict=True)):
        sizes.labels(group).set(len(waiting))
        ready.labels(group).set(health is Health.READY)
    return generate_latest(registry)


def merged_text(texts: Sequence[bytes]) -> bytes:
    """Merge the Prometheus texts of all groups: every family once, every sample with a ``group`` label."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import Metric
    from prometheus_client.parser import text_string_to_metric_families

    families: dict[str, Metric] = {}
    for group, text in enumerate(texts):
        for family in text_string_to_metric_families(text.decode()):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                merged.add_sample(sample.name, {**sample.labels, "group": str(group)}, sample.value)
    registry = CollectorRegistry()
    for family in families.values():
        registry.register(_Fixed(family))  # type: ignore[arg-type]
    return generate_latest(registry)


class _Fixed:
    """A collector of one given metric family."""

    def __init__(self, family) -> None:
        self._family = family

    def collect(self):
        return [self._family]
