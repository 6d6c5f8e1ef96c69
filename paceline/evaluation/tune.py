"""Measuring the pass time t(rows, context) of a loaded model, for `paceline tune`."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from paceline.config import EngineConfig
from paceline.engine.loop.memory import bytes_for
from paceline.engine.loop.target_pass import plain_pass
from paceline.engine.setup.build import build_engine
from paceline.engine.setup.profiles import dtype_of, executor_name, machine, num_threads
from paceline.errors import InvalidParameter
from paceline.models.base import PAGE_SIZE, CausalLM, KVCache, Rows, pages_for
from paceline.models.loaded import LoadedModel
from paceline.models.rows import Logits, Part, build_rows
from paceline.models.state_book import only_time
from paceline.scheduling.budget import TILES, tile_of
from paceline.scheduling.profile import Profile
from paceline.speculation import CostProfile
from paceline.types import NamedProgress, Progress, SamplingParams, silent

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
CONTEXTS = (32, 256, 1024)
FILL_ROWS = 256
SEGMENTS = 8
"""Number of requests in the passes that measure the cost of a further request."""
OVERHEAD_TOKENS, OVERHEAD_CACHE = 24, 1 << 24
"""Number of plain steps for measuring the overhead of a step, and least bytes of their KV cache."""
CHUNK_ROWS = 16
"""Passes with fewer rows are not measured as prompt chunks."""


@dataclass(frozen=True, slots=True)
class TunePlan:
    """What is measured.

    Attributes:
        rows, contexts: the grid; every pass has one request.
        rounds: passes per point; their median is kept.
        seconds_per_point: a point gets no further pass after this time, but at least three.
    """

    rows: Sequence[int] = ROWS
    contexts: Sequence[int] = CONTEXTS
    rounds: int = 15
    seconds_per_point: float = 2.0

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("contexts", 0)):
            values = getattr(self, name)
            if not values or min(values) < least:
                raise InvalidParameter(name, f"{list(values)} will not do", f"give numbers of at least {least}")
        if self.rounds < 1:
            raise InvalidParameter("rounds", f"{self.rounds} is less than 1", "measure each point at least once")

    def at_least(self, rows: int) -> "TunePlan":
        """The part of the grid with at least `rows` rows, or all of it if there is none."""
        return replace(self, rows=[r for r in self.rows if r >= rows] or self.rows)

    def within(self, max_length: int) -> "TunePlan":
        """The part of the grid that fits into `max_length` positions; never empty."""
        rows = [r for r in self.rows if r <= max_length] or [1]
        contexts = [c for c in self.contexts if c + max(rows) <= max_length] or [max(0, max_length - max(rows))]
        return replace(self, rows=rows, contexts=contexts)


def profile_model(
    loaded: LoadedModel, config: EngineConfig, plan: TunePlan, progress: NamedProgress = silent
) -> Profile:
    """Measure a model: decoding passes, prefill passes, cost of a further request, tile and overhead of a step.

    Args:
        progress: called with (what, contexts done, number of contexts).
    """
    source, model = loaded.source, loaded.model

    def told(what: str) -> Progress:
        return lambda done, total: progress(f"{what} of {source.name}", done, total)

    seconds = measure(model, plan, "all", told("decoding passes"))
    return Profile(
        model=source.name,
        fingerprint=source.checkpoint.fingerprint,
        dtype=dtype_of(loaded, config.dtype),
        executor=executor_name(model),
        threads=num_threads(model),
        machine=machine(),
        seconds=seconds,
        prefill_seconds=measure(model, plan.at_least(CHUNK_ROWS), "last", told("prompt passes")),
        segment_seconds=measure_segments(model, plan),
        tile=measure_tile(model, plan),
        step_overhead=measure_overhead(loaded, config, CostProfile.by_context(seconds)),
    )


def fastest_pass(model: CausalLM) -> float:
    """Median seconds of a pass of one row without context, over a few passes: roughly the least that any pass takes."""
    return measure(model, TunePlan([1], [0], rounds=5), "last")[0][1]


def measure_segments(model: CausalLM, plan: TunePlan, num_requests: int = SEGMENTS) -> dict[int, float]:
    """Context to the seconds that a further request adds to a pass of the same number of rows, never negative.

    Compares a pass over `num_requests` requests of one row each with one over a single request of as many rows. Both
    compute the same matrix products, but the former reads the keys and values of all requests.
    """
    limit = model.config.max_position_embeddings
    contexts = [c for c in plan.contexts if c + num_requests <= limit] or [max(0, limit - num_requests)]
    pages = pages_for(max(contexts) + num_requests)
    cache = only_time(model.new_cache(pages * num_requests))
    tables = [range(i * pages, (i + 1) * pages) for i in range(num_requests)]
    token_ids = list(range(1, num_requests + 1))
    found = {}
    for context in contexts:
        together = build_rows([Part(tables[0], context, token_ids)])
        apart = build_rows([Part(table, context, [token]) for table, token in zip(tables, token_ids, strict=True)])
        times = _medians(model, cache, {1: together, num_requests: apart}, plan)
        found[context] = max(0.0, (times[num_requests] - times[1]) / (num_requests - 1))
    return found


def measure_tile(model: CausalLM, plan: TunePlan) -> int | None:
    """The tile of rows, see `tile_of`, measured at the shortest context; None with fewer than three points."""
    points = sorted({rows for width in TILES for rows in (width, width + 1, 2 * width)})
    most = min(model.config.max_position_embeddings, max(plan.rows))
    chosen = [rows for rows in points if rows <= most]
    if len(chosen) < 3:
        return None
    plan = replace(plan, rows=chosen, contexts=[min(plan.contexts)])
    (seconds,) = measure(model, plan, "last").values()
    return tile_of(seconds)


def measure_overhead(
    loaded: LoadedModel, config: EngineConfig, cost: CostProfile, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Median seconds of an engine's plain step minus those of its pass over one row, never negative."""
    room = max(OVERHEAD_CACHE, bytes_for(loaded.model, pages_for(PAGE_SIZE + OVERHEAD_TOKENS), 1))
    engine = build_engine(loaded, replace(config, profile="none", kv_cache_memory_bytes=room), None)
    params = SamplingParams(temperature=0, max_tokens=OVERHEAD_TOKENS, ignore_eos=True)
    engine.add_request("overhead", [1] * PAGE_SIZE, params)
    steps: list[float] = []
    while engine.has_unfinished_requests:
        started = clock()
        engine.step()
        steps.append(clock() - started)
    return max(0.0, median(steps[1:] or steps) - cost(1, PAGE_SIZE))


def measure(
    model: CausalLM,
    plan: TunePlan,
    logits: Logits = "all",
    progress: Progress = lambda done, total: None,
) -> dict[int, dict[int, float]]:
    """Context to rows to median seconds of a pass.

    The points of a context are interleaved, so that a change of the machine's speed affects all alike, after one
    warm-up pass each.

    Args:
        logits: ``all`` as in decoding and verification, ``last`` as in a prefill.
        progress: called with (contexts done, number of contexts).
    """
    plan = plan.within(model.config.max_position_embeddings)
    rng = np.random.default_rng(0)
    pages = range(pages_for(max(plan.contexts) + max(plan.rows)))
    cache = only_time(model.new_cache(len(pages)))
    tokens = rng.integers(0, model.config.vocab_size, len(pages) * PAGE_SIZE).tolist()
    for start in range(0, max(plan.contexts), FILL_ROWS):
        chunk = tokens[start : min(start + FILL_ROWS, max(plan.contexts))]
        model.forward(build_rows([Part(pages, start, chunk, logits="last")]), cache)
    table: dict[int, dict[int, float]] = {}
    progress(0, len(plan.contexts))
    for number, context in enumerate(plan.contexts):
        parts = {m: Part(pages, context, tokens[context : context + m], logits=logits) for m in plan.rows}
        batches = {m: build_rows([part]) for m, part in parts.items()}
        table[context] = _medians(model, cache, batches, plan)
        progress(number + 1, len(plan.contexts))
    return table


def _medians(model: CausalLM, cache: KVCache, batches: dict[int, Rows], plan: TunePlan) -> dict[int, float]:
    """Key of `batches` to the median seconds of a pass over its batch."""
    times: dict[int, list[float]] = {m: [] for m in batches}
    for rows in batches.values():
        plain_pass(model, rows, cache)
    for _ in range(plan.rounds):
        for m, rows in batches.items():
            if len(times[m]) >= 3 and sum(times[m]) > plan.seconds_per_point:
                continue
            start = time.perf_counter()
            plain_pass(model, rows, cache)
            times[m].append(time.perf_counter() - start)
    return {m: median(t) for m, t in times.items()}
