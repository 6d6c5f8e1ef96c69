"""`EngineMetrics`: what an engine has done since it was made, in plain Python. Prometheus text is `prometheus.py`'s.

Names are vLLM's where vLLM has them. Tokens after a stop rule are never emitted and never counted.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.speculation import StepOutcome
from paceline.types import FinishReason, RequestOutput

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of the buckets of latencies; one more bucket holds what is longer."""


TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
"""The same for counts of tokens, as vLLM has them."""


class Histogram:
    """Counts of values by bucket.

    Args:
        bounds: upper bounds of the buckets; one more holds what is larger.
    """

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """`count` times the same value."""
        self.counts[bisect_left(self.bounds, seconds)] += count
        self.sum += seconds * count

    def add(self, other: "Histogram") -> None:
        """What another with the same bounds has seen."""
        self.counts = [own + its for own, its in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def record(self) -> dict[str, Any]:
        """Counts by upper bound and the sum, JSON-ready."""
        return {"buckets": dict(zip((*self.bounds, "inf"), self.counts, strict=True)), "sum": self.sum}


class Pages(Protocol):
    """Of a cache."""

    num_pages: int

    @property
    def num_held(self) -> int:
        """That requests hold."""
        ...


class Counts(Protocol):
    """What a scheduler counts itself."""

    prefix_cache_queries: int
    prefix_cache_hits: int

    @property
    def num_running(self) -> int:
        """Requests that hold pages."""
        ...

    @property
    def num_waiting(self) -> int:
        """Requests that do not."""
        ...

    @property
    def pool(self) -> Pages:
        """The cache's."""
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
        """One more engine's."""
        for name in ("prefix_cache_queries", "prefix_cache_hits", "num_running", "num_waiting"):
            setattr(self, name, getattr(self, name) + getattr(counts, name))
        self.num_held, self.num_pages = self.num_held + counts.pool.num_held, self.num_pages + counts.pool.num_pages


class EngineMetrics:
    """Counters and histograms of one engine; `scheduler` is asked for what it counts itself.

    Attributes:
        num_passes: passes of the target.
        rows: rows of these passes by kind: ``prefill``, ``decode`` (one per decoding request), ``draft``.
        accepted_per_draft: entry a counts the verified drafts of which a tokens were accepted.
        emitted_per_draft: entry e counts the verified drafts after which e tokens were emitted (acceptance length).
        finished: samples by finish reason.
        num_lossy_requests: finished requests of which a lossy rule judged drafts.
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
        """What another engine has done; these must have been made with an `Occupancy`."""
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
        """One pass and what it committed at `now`, after `num_preempted` requests were preempted."""
        self.num_passes += 1
        self.num_preemptions += num_preempted
        self.iteration_tokens_total.observe(step.num_prefill_rows + step.num_tokens)
        rows = self.rows
        rows["prefill"] += step.num_prefill_rows
        rows["decode"] += step.num_decodes
        rows["draft"] += step.num_draft_tokens
        gaps: Counter[float] = Counter()  # requests that run together share their gap
        for outcome in step.requests:
            count = outcome.num_new
            if not count:
                continue
            self.generation_tokens += count
            last = self._last_token_times.pop(outcome.request_id, None)
            if not outcome.finished:
                self._last_token_times[outcome.request_id] = now
            if last is not None:
                gaps[now - last] += 1
            if outcome.num_draft_tokens:
                self.spec_decode_num_draft_tokens += outcome.num_draft_tokens
                self.accepted_per_draft[outcome.num_accepted] += 1
                self.emitted_per_draft[count] += 1
        for gap, count in gaps.items():
            self.inter_token_latency_seconds.observe(gap, count)

    def observe_sample(self, request_id: str, reason: FinishReason) -> None:
        """A sample ended."""
        self.finished[reason] += 1

    def observe_request(self, output: RequestOutput) -> None:
        """A request ended with all of its samples."""
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
        """Verified drafts."""
        return self.accepted_per_draft.total()

    @property
    def spec_decode_num_accepted_tokens(self) -> int:
        """Drafted tokens that joined an output."""
        return sum(accepted * count for accepted, count in self.accepted_per_draft.items())

    @property
    def spec_decode_num_accepted_tokens_per_pos(self) -> list[int]:
        """Entry i counts the drafts of which at least i + 1 tokens were accepted."""
        longest = max(self.accepted_per_draft, default=0)
        return [sum(n for accepted, n in self.accepted_per_draft.items() if accepted > i) for i in range(longest)]

    def counters(self) -> dict[str, int]:
        """Everything that only grows."""
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
        """What is so now."""
        pool = self._scheduler.pool
        return {
            "num_requests_running": self._scheduler.num_running,
            "num_requests_waiting": self._scheduler.num_waiting,
            "kv_cache_usage_perc": pool.num_held / pool.num_pages,
        }

    def histograms(self) -> dict[str, Histogram]:
        """Latencies by name."""
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
