"""Open loop: requests arrive at predetermined times, whether or not earlier ones have finished.

A closed loop, with a fixed number of concurrent requests, waits for a slow arm; users do not. Not for statistics of
the times (`summary.py`), nor for servers (`server_arm.py`).
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

from paceline.engine.llm import LLM
from paceline.types import RequestOutput, SamplingParams

MOST_ARRIVALS = 12
"""Largest number of requests of a cell; a cell is one cluster of the interval."""


def arrival_times(rate: float, count: int, seed: int) -> tuple[float, ...]:
    """Arrival times in seconds of a Poisson process with `rate` requests per second; the first of `count` is at 0."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, count - 1)
    return (0.0, *np.cumsum(gaps).tolist())


def answers_as_they_arrive(
    llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], starts: Sequence[float],
    cache_salt: str, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], None] = time.sleep,
) -> list[tuple[RequestOutput, float]]:  # fmt: skip
    """(output, seconds from its arrival until it was added to the engine after the current step) of each prompt.

    Args:
        prompts: token ids.
        starts: seconds from now at which each of them arrives, ascending.
        cache_salt: as in `Engine.add_request`.
    """
    engine, began = llm.engine, clock()
    names = [f"arrival-{number}" for number in range(len(prompts))]
    late: list[float] = []
    finished: dict[str, RequestOutput] = {}
    while len(finished) < len(names):
        while (number := len(late)) < len(names) and starts[number] <= clock() - began:
            engine.add_request(names[number], prompts[number], llm.prepared(params[number]), cache_salt=cache_salt)
            late.append(clock() - began - starts[number])
        if engine.has_unfinished_requests:
            finished |= {output.request_id: output.finished for output in engine.step() if output.finished}
        else:
            sleep(max(0.0, starts[len(late)] - (clock() - began)))
    return [(finished[name], waited) for name, waited in zip(names, late, strict=True)]
