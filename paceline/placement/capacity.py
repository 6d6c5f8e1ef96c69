"""The largest request rate that one engine serves within latency objectives (the capacity of Sarathi-Serve).

Agrawal et al. 2024, section 5.1: the largest rate with the P99 time between tokens within its limit and a stable queue.
Here the time to first token has a limit too, which bounds the queue. Simulated with the engine's own scheduler
(`serving_simulator.py`); not for several models or devices (`search/`).
"""

from dataclasses import dataclass, replace

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.serving_simulator import ServingModel, ServingResult, TokenRequest, simulate_serving
from paceline.placement.tokens import TokenProfile
from paceline.placement.tokens.requests import drawn_lengths
from paceline.scheduling import SchedulerConfig
from paceline.types import Progress

MOST_DOUBLINGS = 40
PAGE_SIZE = 16
MOST_TOKENS = 1e8
"""Largest number of tokens of all requests together, because each is a number in memory."""
TOLERANCE = 0.02
"""Relative tolerance of the bisection for the rate."""


@dataclass(frozen=True)
class Traffic:
    """Poisson requests for one model.

    Args:
        prompt_tokens, output_tokens: means. length_cv: coefficient of variation of both.
        num_requests: number of requests at every rate; the same draws, scaled in time.

    Raises:
        InvalidParameter: lengths below 1, more than `MOST_TOKENS` in all, a negative seed, or fewer than 100 requests:
            too few for a P99.
    """

    prompt_tokens: float
    output_tokens: float
    length_cv: float = 0.0
    num_requests: int = 500
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("prompt_tokens", 1), ("output_tokens", 1), ("length_cv", 0), ("num_requests", 100)):
            if not least <= getattr(self, name) < 1e6:
                raise InvalidParameter(name, f"{getattr(self, name)}", f"give {least} or more, up to a million")
        if self.seed < 0:
            raise InvalidParameter("seed", f"{self.seed}", "give 0 or more")
        tokens = self.num_requests * (self.prompt_tokens + self.output_tokens)
        if tokens > MOST_TOKENS:
            problem = f"{self.num_requests} requests have {tokens:.3g} tokens"
            raise InvalidParameter(
                "num_requests", problem, f"give fewer or shorter ones, {MOST_TOKENS:.0e} tokens in all"
            )

    @property
    def longest(self) -> int:
        """Largest number of tokens of a request, prompt and answer."""
        return max(each.prompt_tokens + each.output_tokens for each in self.requests(1.0))

    def requests(self, rate: float) -> list[TokenRequest]:
        """The requests, arriving at `rate` per second."""
        rng = np.random.default_rng(self.seed)
        times = np.cumsum(rng.exponential(1.0, self.num_requests)) / rate
        prompts = drawn_lengths(self.prompt_tokens, self.length_cv, self.num_requests, rng).astype(int)
        outputs = drawn_lengths(self.output_tokens, self.length_cv, self.num_requests, rng).astype(int)
        return [TokenRequest(*each) for each in zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True)]


@dataclass(frozen=True)
class Promise:
    """Latency objectives for the given quantile of requests.

    Args:
        between: limit on the time between tokens, in seconds. first: limit on the time to the first token.

    Raises:
        InvalidParameter: seconds that are not above 0, or a quantile outside (0, 1).
    """

    between: float
    first: float
    quantile: float = 0.99

    def __post_init__(self) -> None:
        for name in ("between", "first"):
            if not getattr(self, name) > 0:
                raise InvalidParameter(name, f"{getattr(self, name)} s", "give seconds above 0")
        if not 0 < self.quantile < 1:
            raise InvalidParameter("quantile", f"{self.quantile}", "give a part of 1, e.g. 0.99")

    def seen(self, result: ServingResult) -> tuple[float, float]:
        """(time between tokens, time to first token) in seconds at the quantile; the former is NaN for one-token
        answers."""
        between = float(np.quantile(result.tbt, self.quantile)) if len(result.tbt) else float("nan")
        return between, float(np.quantile(result.ttft, self.quantile))

    def is_kept(self, result: ServingResult) -> bool:
        """Whether both quantiles are within their limits; for one-token answers only that of the first token counts."""
        between, first = self.seen(result)
        return not between > self.between and first <= self.first


@dataclass(frozen=True)
class Capacity:
    """The largest rate within the latency objectives.

    Attributes:
        token_budget: rows of a step.
        rate: requests per second; 0 where even a single request exceeds the limits.
        between, first: seconds at that rate, at the promise's quantile; NaN where the rate is 0, `between` also
            for one-token answers.
        throughput: output tokens per second at that rate.
    """

    token_budget: int
    rate: float
    between: float
    first: float
    throughput: float


def engine_for(traffic: Traffic, profile: TokenProfile) -> ServingModel:
    """An engine with the times, concurrency and memory of `profile`, and a model length that fits every request.

    Raises:
        InvalidParameter: a request does not fit into the memory even alone.
    """
    longest = traffic.longest
    config = SchedulerConfig(prefix_caching=False, max_num_seqs=profile.seats, max_model_len=longest)
    needed = -(-longest // PAGE_SIZE)
    num_pages = int(min(needed * profile.seats, profile.kv_tokens // PAGE_SIZE))
    if num_pages < needed:
        problem = f"{profile.kv_tokens:g} tokens, the longest request has {longest}"
        raise InvalidParameter("kv_tokens", problem, f"give {needed * PAGE_SIZE} or more, or shorter requests")
    return ServingModel(profile, config=config, num_pages=num_pages, page_size=PAGE_SIZE)


def capacity(model: ServingModel, traffic: Traffic, promise: Promise, token_budget: int | None = None) -> Capacity:
    """The largest rate within the objectives, by bisection with the same draws at every rate.

    Args:
        token_budget: of the scheduler, overriding the model's.

    Raises:
        InvalidParameter: the scheduler rejects a request, or no rate exceeds the limits.
    """
    if token_budget is not None:
        tile = min(model.config.tile, token_budget)
        model = replace(model, config=replace(model.config, max_num_batched_tokens=token_budget, tile=tile))
    budget = model.config.max_num_batched_tokens
    slow = 1e-6
    if not promise.is_kept(simulate_serving(traffic.requests(slow), model)):
        return Capacity(budget, 0.0, float("nan"), float("nan"), 0.0)
    low, high = slow, _lone_rate(model, traffic)
    for _ in range(MOST_DOUBLINGS):
        if not promise.is_kept(simulate_serving(traffic.requests(high), model)):
            break
        low, high = high, 2 * high
    else:
        raise InvalidParameter("promise", "is kept at every rate", "give shorter times, or more requests")
    while high > low * (1 + TOLERANCE):
        middle = (low * high) ** 0.5 if high > 2 * low else (low + high) / 2
        if promise.is_kept(simulate_serving(traffic.requests(middle), model)):
            low = middle
        else:
            high = middle
    result = simulate_serving(traffic.requests(low), model)
    return Capacity(budget, low, *promise.seen(result), result.throughput)


def capacities(
    model: ServingModel, traffic: Traffic, promise: Promise, budgets: list[int], progress: Progress | None = None
) -> list[Capacity]:
    """`capacity` at every token budget: small ones give short times between tokens, large ones fast prefills."""
    found = []
    for budget in budgets:
        found.append(capacity(model, traffic, promise, budget))
        if progress is not None:
            progress(len(found), len(budgets))
    return found


def _lone_rate(model: ServingModel, traffic: Traffic) -> float:
    """Requests per second when served one after the other."""
    steps = traffic.output_tokens + traffic.prompt_tokens / model.config.max_num_batched_tokens
    return 1 / (steps * model.target_seconds(1))
