"""Pipeline bubbles: idle time of stages because micro-batches differ, by the kind of difference.

The setting of Agrawal et al. 2023 (SARATHI): there are as many micro-batches as stages, each with its own requests, and
a micro-batch enters again after leaving the last stage. Equal micro-batches keep every stage busy. The real scheduler
plans each micro-batch; passes are simulated as durations. Not for requests of one pass on many models (`simulator/`),
nor for arrivals (`serving_simulator.py`): here all requests are there at the start.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.cost import Device
from paceline.placement.scheduled import context_per_row, refuse_prefix_caching, simulated_request
from paceline.scheduling import PagePool, Scheduler, SchedulerConfig, StepPlan, StepResult

StageSeconds = Callable[[StepPlan], float]
"""Seconds of one stage for a micro-batch; all stages are equal."""

Kind = Literal["prefill_lengths", "prefill_decode", "contexts", "drain"]
"""Cause of a bubble. The first three are the paper's PB1 (both micro-batches prefill, different numbers of tokens), PB2
(one prefills, the other does not) and PB3 (they differ only in their decodes: number or context); ``drain`` is at the
end, when there are fewer micro-batches than stages."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One pass of some requests, with its seconds per stage."""

    prompt_tokens: int
    requests: tuple[int, ...]
    seconds: float = 0.0

    @classmethod
    def of(cls, plan: StepPlan, seconds: float) -> "MicroBatch":
        """The micro-batch of `plan`."""
        prompt_tokens = sum(grant.num_prefill_tokens for grant in plan.grants)
        return cls(prompt_tokens, tuple(int(grant.request.request_id) for grant in plan.grants), seconds)


def kind_of(left: MicroBatch, awaited: MicroBatch) -> Kind:
    """Cause of a stage's idle time after `left` and before `awaited`."""
    if bool(left.prompt_tokens) != bool(awaited.prompt_tokens):
        return "prefill_decode"
    return "contexts" if left.prompt_tokens == awaited.prompt_tokens else "prefill_lengths"


@dataclass(frozen=True)
class PipelineResult:
    """Result of a simulation. `busy` and bubbles are summed over stages.

    Attributes:
        seconds: from the start to the last token.
        busy: seconds of work.
        bubbles: idle seconds between two micro-batches, by cause.
        request_bubbles: float64 [requests], bubbles directly before the micro-batches of each request, without drain.
        num_tokens: prompt and output tokens of all requests.
        num_batches: number of passes of micro-batches.
    """

    seconds: float
    busy: float
    bubbles: dict[Kind, float]
    request_bubbles: np.ndarray
    num_tokens: int
    num_batches: int

    @property
    def throughput(self) -> float:
        """Prompt and output tokens per second."""
        return self.num_tokens / self.seconds

    @property
    def bubble_share(self) -> float:
        """Idle fraction of the stages' time, without the drain."""
        idle = sum(seconds for kind, seconds in self.bubbles.items() if kind != "drain")
        return idle / (self.busy + idle)


def simulate_pipeline(
    lengths: Sequence[tuple[int, int]], config: SchedulerConfig, num_stages: int, stage_seconds: StageSeconds
) -> PipelineResult:
    """Run requests of (prompt, output) tokens through `num_stages` stages, first come, first served.

    Args:
        config: of each micro-batch's scheduler; one has at most `max_num_seqs` requests, and memory for all of them.

    Raises:
        InvalidParameter: no requests or stages, a request that is too long, or prefix caching is on.
    """
    if not lengths or num_stages < 1:
        problem = f"{len(lengths)} requests through {num_stages} stages"
        raise InvalidParameter("lengths", problem, "give at least one of each")
    refuse_prefix_caching(config)
    return _Pipeline(lengths, config, num_stages, stage_seconds).run()


def arithmetic_stage(
    num_layers: int, hidden_size: int, device: Device, num_devices: int = 1, tile: int = 1
) -> StageSeconds:
    """Seconds of a stage of plain transformer layers over `num_devices` devices, from operations, bytes and links.

    Per layer: 12 h^2 parameters of two bytes, read once; 2 operations per parameter and row, rows rounded up to the
    `tile`; 4 h operations per row and token it attends to; 4 h bytes of keys and values per token read; 2 all-reduces.
    """
    parameters = 12 * hidden_size**2 * num_layers
    width = 4 * hidden_size * num_layers

    def seconds(plan: StepPlan) -> float:
        rows = -(-plan.num_rows // tile) * tile
        linear = max(2 * parameters * rows / device.peak, 2 * parameters / device.bandwidth)
        pairs = sum(g.num_rows * g.start + g.num_rows * (g.num_rows + 1) / 2 for g in plan.grants)
        read = sum(g.start + g.num_rows for g in plan.grants)
        attention = max(width * pairs / device.peak, width * read / device.bandwidth)
        reduce = 2 * num_layers * device.all_reduce_seconds(2 * hidden_size * plan.num_rows, num_devices)
        return (linear + attention) / num_devices + reduce

    return seconds


def measured_stage(pass_seconds: Callable[[int, float], float], num_stages: int) -> StageSeconds:
    """Seconds of a stage with an equal share of a model, from its t(rows, context), e.g. a `CostProfile`."""

    def seconds(plan: StepPlan) -> float:
        return pass_seconds(plan.num_rows, context_per_row(plan.grants)) / num_stages

    return seconds


class _Lane:
    """One micro-batch: its scheduler, its last pass, and when that left the pipeline."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.scheduler = Scheduler(config, PagePool(config.max_num_seqs, config.max_model_len))  # a page per request
        self.plan = StepPlan()
        self.batch: MicroBatch | None = None
        self.left = 0.0

    def commit(self) -> None:
        """Update the scheduler with the tokens of the last pass."""
        results = [
            StepResult(g.request.request_id, g.num_prefill_tokens, (0,) * g.needs_logits) for g in self.plan.grants
        ]
        self.scheduler.update(results, self.left)

    @property
    def has_seat(self) -> bool:
        return self.scheduler.num_running + self.scheduler.num_waiting < self.scheduler.config.max_num_seqs


class _Pipeline:
    """The state of a simulation."""

    def __init__(
        self, lengths: Sequence[tuple[int, int]], config: SchedulerConfig, num_stages: int, stage_seconds: StageSeconds
    ) -> None:
        self.num_tokens = sum(map(sum, lengths))
        self.waiting = deque(simulated_request(index, *length) for index, length in enumerate(lengths))
        self.lanes = deque(_Lane(config) for _ in range(num_stages))
        self.num_stages, self.stage_seconds = num_stages, stage_seconds
        self.free = [0.0] * num_stages
        self.busy, self.num_batches = 0.0, 0
        self.bubbles: dict[Kind, float] = {"prefill_lengths": 0.0, "prefill_decode": 0.0, "contexts": 0.0, "drain": 0.0}
        self.request_bubbles = np.zeros(len(lengths))

    def run(self) -> PipelineResult:
        """Run to the end. Micro-batches leave in the order they entered, so they take turns."""
        while self.lanes:
            lane = self.lanes.popleft()
            lane.commit()
            while self.waiting and lane.has_seat:
                lane.scheduler.add(self.waiting.popleft())
            if lane.scheduler.has_work:
                self._enter(lane)
                self.lanes.append(lane)
        end = self.free[-1]
        return PipelineResult(end, self.busy, self.bubbles, self.request_bubbles, self.num_tokens, self.num_batches)

    def _enter(self, lane: _Lane) -> None:
        """Plan the next pass of `lane` and send it through all stages."""
        under_way = [former.batch for former in (lane, *self.lanes) if former.batch is not None]
        lane.plan = lane.scheduler.schedule(lane.left)
        batch = lane.batch = MicroBatch.of(lane.plan, self.stage_seconds(lane.plan))
        starts = self._starts(lane.left, batch.seconds)
        if under_way:  # the very first micro-batch fills the pipeline
            self._account([start - free for start, free in zip(starts, self.free, strict=True)], batch, under_way)
        self.free = [start + batch.seconds for start in starts]
        lane.left = self.free[-1]
        self.busy += self.num_stages * batch.seconds
        self.num_batches += 1

    def _starts(self, ready: float, seconds: float) -> list[float]:
        """Start time at each stage of a micro-batch that can enter at `ready`."""
        starts = []
        for free in self.free:
            starts.append(max(ready, free))
            ready = starts[-1] + seconds
        return starts

    def _account(self, gaps: list[float], batch: MicroBatch, under_way: list[MicroBatch]) -> None:
        """Attribute the idle time `gaps` [stages] before `batch` to causes.

        The first stage waits for tokens to return, delayed by the slowest micro-batch ahead. Later stages inherit
        that wait; any further wait is for `batch` itself.

        Args:
            under_way: the last micro-batch of every lane, oldest first.
        """
        last = under_way[-1]
        slowest = max(under_way[:-1] or under_way, key=lambda each: each.seconds)
        for gap in gaps:
            inherited = min(gap, gaps[0])
            self._idle(inherited, kind_of(last, slowest), batch)
            self._idle(gap - inherited, kind_of(last, batch), batch)

    def _idle(self, seconds: float, kind: Kind, batch: MicroBatch) -> None:
        """Count idle seconds of a stage before `batch`."""
        if seconds <= 0:
            return
        draining = len(self.lanes) + 1 < self.num_stages
        self.bubbles["drain" if draining else kind] += seconds
        if not draining:
            self.request_bubbles[list(batch.requests)] += seconds
