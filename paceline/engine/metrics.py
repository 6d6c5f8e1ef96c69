"""`EngineMetrics`: counters and histograms of an engine since its construction. Prometheus text: `prometheus.py`.

Names are vLLM's where vLLM has them. Tokens after a stop are neither emitted nor counted.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.speculation import StepOutcome
from paceline.types import FinishReason, RequestOutput

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of latency buckets, in seconds; one more bucket holds larger values."""


TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
"""Upper bounds of token-count buckets, as in vLLM."""


class Histogram:
    """Counts of values by bucket.

    Args:
        bounds: upper bounds of the buckets, ascending; one more bucket holds larger values.
    """

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Add the value `seconds` (or tokens) `count` times."""
        self.counts[bisect_left(self.bounds, seconds)] += count
        self.sum += seconds * count

    def add(self, other: "Histogram") -> None:
        """Add the counts of another histogram with the same bounds."""
        self.counts = [own + its for own, its in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def record(self) -> dict[str, Any]:
        """Counts by upper bound and the sum, JSON-ready."""
        return {"buckets": dict(zip((*self.bounds, "inf"), self.counts, strict=True)), "sum": self.sum}


class Pages(Protocol):
    """The pages of a KV cache."""

    num_pages: int

    @property
    def num_held(self) -> int:
        """Pages that requests hold."""
        ...


class Counts(Protocol):
    """The counters that a scheduler keeps itself."""

    prefix_cache_queries: int
    prefix_cache_hits: int

    @property
    def num_running(self) -> int:
        """Requests that hold pages."""
        ...

    @property
    def num_waiting(self) -> int:
        """Requests that hold no pages yet."""
        ...

    @property
    def pool(self) -> Pages:
        """The cache's pages."""
        ...


@dataclass(slots=True)
class Occupancy:
    """`Counts` and `Pages` of several engines, added up."""

    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_held: int = 0
    num_pages: int = 0

    @property
    def pool(self) -> "Occupancy":
        """See `Counts.pool`."""
        return self

    def add(self, counts: Counts) -> None:
        """Add another engine's counts."""
        for name in ("prefix_cache_queries", "prefix_cache_hits", "num_running", "num_waiting"):
            setattr(self, name, getattr(self, name) + getattr(counts, name))
        self.num_held, self.num_pages = self.num_held + counts.pool.num_held, self.num_pages + counts.pool.num_pages


class EngineMetrics:
    """Counters and histograms of one engine.

    Args:
        scheduler: read for the counters that it keeps itself.

    Attributes:
        num_passes: passes of the target.
        rows: rows of these passes by kind: ``prefill``, ``decode`` (one per decoding request), ``draft``.
        accepted_per_draft: verified drafts by number of accepted tokens.
        emitted_per_draft: verified drafts by number of emitted tokens (acceptance length).
        finished: samples by finish reason.
        num_lossy_requests: finished requests whose drafts were verified by a lossy rule.
    """

    def __init__(self, scheduler: Counts) -> None:
        self._scheduler = scheduler
        self.num_passes = 0
        self.rows = {"prefill": 0, "decode": 0, "draft": 0}
        self.prompt_tokens = self.generation_tokens = 0
        self.num_preemptions = self.num_lossy_requests = 0
        self.spec_decode_num_draft_tokens = 0
        self.accepted_per_draft: Counter[int] = Counter()
        self.emitted_per_draft: Counter[int] = Counter()
        self.finished: Counter[FinishReason] = Counter()
        self.time_to_first_token_seconds = Histogram()
        self.inter_token_latency_seconds = Histogram()
        self.e2e_request_latency_seconds = Histogram()
        self.request_queue_time_seconds = Histogram()
        self.request_prefill_time_seconds = Histogram()
        self.request_decode_time_seconds = Histogram()
        self.request_prompt_tokens = Histogram(TOKENS)
        self.request_generation_tokens = Histogram(TOKENS)
        self.iteration_tokens_total = Histogram(TOKENS)
        self._last_token_times: dict[str, float] = {}

    def add(self, other: "EngineMetrics") -> None:
        """Add another engine's metrics. `self` must have been constructed with an `Occupancy`."""
        assert isinstance(self._scheduler, Occupancy)
        self._scheduler.add(other._scheduler)
        for name, value in vars(other).items():
            own = getattr(self, name)
            if isinstance(value, Histogram):
                own.add(value)
            elif isinstance(value, Counter):
                own.update(value)
            elif isinstance(value, int):
                setattr(self, name, own + value)
        self.rows = {kind: count + other.rows[kind] for kind, count in self.rows.items()}

    def observe_step(self, step: StepOutcome, num_preempted: int, now: float) -> None:
        """Count one step, whose tokens were committed at time `now` and which preempted `num_preempted` requests."""
        self.num_passes += 1
        self.num_preemptions += num_preempted
        num_tokens = step.num_tokens
        self.generation_tokens += num_tokens
        self.iteration_tokens_total.observe(step.num_prefill_rows + num_tokens)
        rows = self.rows
        rows["prefill"] += step.num_prefill_rows
        rows["decode"] += step.num_decodes
        rows["draft"] += step.num_draft_tokens
        gaps: dict[float, int] = {}  # requests that run together mostly have equal gaps
        for outcome in step.requests:
            count = outcome.num_new
            if not count:
                continue
            last = self._last_token_times.pop(outcome.request_id, None)
            if not outcome.finished:
                self._last_token_times[outcome.request_id] = now
            if last is not None:
                gaps[now - last] = gaps.get(now - last, 0) + 1
            if outcome.num_draft_tokens:
                self.spec_decode_num_draft_tokens += outcome.num_draft_tokens
                self.accepted_per_draft[outcome.num_accepted] += 1
                self.emitted_per_draft[count] += 1
        for gap, count in gaps.items():
            self.inter_token_latency_seconds.observe(gap, count)

    def observe_sample(self, request_id: str, reason: FinishReason) -> None:
        """Count a finished sample, after its last step."""
        self.finished[reason] += 1
        self._last_token_times.pop(request_id, None)

    def observe_request(self, output: RequestOutput) -> None:
        """Count a request whose samples have all finished."""
        metrics = output.metrics
        self.prompt_tokens += len(output.prompt_token_ids)
        self.num_lossy_requests += output.lossy
        self.e2e_request_latency_seconds.observe(metrics.total_seconds)
        if metrics.queue_seconds is not None:
            self.request_queue_time_seconds.observe(metrics.queue_seconds)
        if metrics.first_token_seconds is not None:
            self.time_to_first_token_seconds.observe(metrics.first_token_seconds)
            self.request_decode_time_seconds.observe(metrics.total_seconds - metrics.first_token_seconds)
            if metrics.queue_seconds is not None:
                self.request_prefill_time_seconds.observe(metrics.first_token_seconds - metrics.queue_seconds)
        self.request_prompt_tokens.observe(len(output.prompt_token_ids))
        for sample in output.outputs:
            self.request_generation_tokens.observe(len(sample.token_ids))

    @property
    def spec_decode_num_drafts(self) -> int:
        """Number of verified drafts."""
        return self.accepted_per_draft.total()

    @property
    def spec_decode_num_accepted_tokens(self) -> int:
        """Number of accepted draft tokens that were emitted."""
        return sum(accepted * count for accepted, count in self.accepted_per_draft.items())

    @property
    def spec_decode_num_accepted_tokens_per_pos(self) -> list[int]:
        """Entry i counts the drafts of which at least i + 1 tokens were accepted."""
        longest = max(self.accepted_per_draft, default=0)
        return [sum(n for accepted, n in self.accepted_per_draft.items() if accepted > i) for i in range(longest)]

    def counters(self) -> dict[str, int]:
        """The monotonic counters by name."""
        return {
            "spec_decode_num_drafts": self.spec_decode_num_drafts,
            "spec_decode_num_draft_tokens": self.spec_decode_num_draft_tokens,
            "spec_decode_num_accepted_tokens": self.spec_decode_num_accepted_tokens,
            "prompt_tokens": self.prompt_tokens,
            "generation_tokens": self.generation_tokens,
            "num_preemptions": self.num_preemptions,
            "num_lossy_requests": self.num_lossy_requests,
            "prefix_cache_queries": self._scheduler.prefix_cache_queries,
            "prefix_cache_hits": self._scheduler.prefix_cache_hits,
            "num_passes": self.num_passes,
        }

    def gauges(self) -> dict[str, float]:
        """Current values by name."""
        pool = self._scheduler.pool
        return {
            "num_requests_running": self._scheduler.num_running,
            "num_requests_waiting": self._scheduler.num_waiting,
            "kv_cache_usage_perc": pool.num_held / pool.num_pages,
        }

    def histograms(self) -> dict[str, Histogram]:
        """The histograms (latencies and token counts) by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Histogram)}

    def record(self) -> dict[str, Any]:
        """Everything as one JSON-ready mapping."""
        return {
            **self.counters(),
            **self.gauges(),
            "spec_decode_num_accepted_tokens_per_pos": self.spec_decode_num_accepted_tokens_per_pos,
            "acceptance_length": dict(sorted(self.emitted_per_draft.items())),
            "rows": dict(self.rows),
            "request_success": dict(self.finished),
            **{name: histogram.record() for name, histogram in self.histograms().items()},
        }
