"""Part of `sarathi.py` that replays a trace of arriving requests, in real time and on a modelled clock."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from common import console
from rich.progress import Progress

from paceline import SamplingParams
from paceline.config import EngineConfig
from paceline.engine.loop.engine import Engine
from paceline.engine.setup.build import build_engine
from paceline.models.loaded import LoadedModel
from paceline.placement.arrivals import poisson_times
from paceline.placement.serving_simulator import ServingModel, TokenRequest, simulate_serving
from paceline.placement.workload import Workload
from paceline.scheduling import SchedulerConfig
from paceline.speculation import CostProfile
from paceline.theory.piggyback import PassTimes

PAGE_SIZE = 16


def synthetic_trace(num_requests: int, seed: int = 0) -> Workload:
    """Conversations with log-normal lengths (medians 900 and 130 tokens), five a second."""
    rng = np.random.default_rng(seed)
    times = poisson_times(5.0, num_requests / 2.5, rng)[:num_requests]
    prompts, outputs = rng.lognormal(np.log(900), 0.7, len(times)), rng.lognormal(np.log(130), 0.8, len(times))
    models = np.zeros(len(times), np.int32)
    return Workload(times, models, np.minimum(prompts, 4000).round(), np.minimum(outputs, 1000).round())


@dataclass(frozen=True)
class Scaled:
    """The part of a trace that fits the machine, with its factors of time and tokens."""

    requests: list[TokenRequest]
    time_factor: float
    token_factor: float
    load: float

    @property
    def at_once(self) -> list[TokenRequest]:
        """The same requests, all there at the start."""
        return [replace(request, arrival=0.0) for request in self.requests]


def scale(trace: Workload, num_requests: int, token_factor: float, load: float, times: PassTimes) -> Scaled:
    """The first requests with scaled tokens, and time stretched until they keep the machine busy for a share `load`.

    Busy time is that of prompts in chunks plus that of outputs in decode-only passes, by `times`.
    """
    assert trace.prompt_tokens is not None and trace.output_tokens is not None
    prompts = np.maximum(1, trace.prompt_tokens[:num_requests] * token_factor).astype(int)
    outputs = np.maximum(2, trace.output_tokens[:num_requests] * token_factor).astype(int)
    busy = float(prompts.sum() * times.per_prefill_token + outputs.sum() * times.per_decode)
    arrivals = trace.times[:num_requests] - trace.times[0]
    factor = busy / load / float(arrivals[-1])
    requests = [TokenRequest(*each) for each in zip((arrivals * factor).tolist(), prompts.tolist(), outputs.tolist(),
                                                    strict=True)]  # fmt: skip
    return Scaled(requests, factor, token_factor, load)


def measured(
    loaded: LoadedModel, config: EngineConfig, policy: str, budget: int, seats: int, requests: Sequence[TokenRequest]
) -> dict:
    """Latencies and throughput of `policy`, measured in real time."""
    limits = {"max_num_seqs": seats, "max_num_batched_tokens": budget, "prefix_caching": False}
    engine = build_engine(loaded, replace(config, scheduler=policy, **limits), None)
    ttft, tbt, seconds = _drive(engine, requests, loaded.model.config.vocab_size, policy)
    return figures(ttft, tbt, sum(request.output_tokens for request in requests), seconds)


def modelled(cost: CostProfile, policy: str, budget: int, seats: int, requests: Sequence[TokenRequest]) -> dict:
    """Latencies and throughput of `policy`, on a virtual clock that advances by `cost`."""
    longest = max(request.prompt_tokens + request.output_tokens for request in requests)
    config = SchedulerConfig(policy, budget, seats, longest, prefix_caching=False)  # type: ignore[arg-type]
    model = ServingModel(cost, config=config, num_pages=seats * (longest // PAGE_SIZE + 1), page_size=PAGE_SIZE)
    result = simulate_serving(requests, model)
    return figures(result.ttft, result.tbt, int(result.output_tokens.sum()), result.seconds)


def figures(ttft: np.ndarray, tbt: np.ndarray, output_tokens: int, seconds: float) -> dict:
    """Percentiles in milliseconds, and output tokens per second."""
    at = {"p50": 50, "p99": 99}
    return {
        **{f"tbt_{name}_ms": 1e3 * float(np.percentile(tbt, q)) for name, q in at.items()},
        **{f"ttft_{name}_ms": 1e3 * float(np.percentile(ttft, q)) for name, q in at.items()},
        "tokens_per_second": output_tokens / seconds,
        "seconds": seconds,
        "tbt_quantiles_ms": [round(1e3 * float(np.percentile(tbt, q)), 3) for q in range(0, 101, 2)],
    }


def _drive(
    engine: Engine, requests: Sequence[TokenRequest], vocab_size: int, policy: str
) -> tuple[np.ndarray, np.ndarray, float]:
    """Seconds to first tokens, seconds between the commits of a request, and seconds in all."""
    rng = np.random.default_rng(2)
    prompts = [rng.integers(0, vocab_size, request.prompt_tokens).tolist() for request in requests]
    pending = deque(range(len(requests)))
    latest: dict[str, float] = {}
    ttft, tbt, done = [], [], 0
    started = time.perf_counter()
    with Progress(console=console) as progress:
        bar = progress.add_task(f"replaying under {policy}", total=len(requests))
        while pending or engine.has_unfinished_requests:
            now = time.perf_counter() - started
            while pending and requests[pending[0]].arrival <= now:
                number = pending.popleft()
                params = SamplingParams(temperature=0, max_tokens=requests[number].output_tokens, ignore_eos=True)
                engine.add_request(str(number), prompts[number], params)
            if not engine.has_unfinished_requests:
                time.sleep(max(0.0, requests[pending[0]].arrival - now))
                continue
            outputs = engine.step()
            now = time.perf_counter() - started
            for output in outputs:
                name = output.request_id
                if name in latest:
                    tbt.append(now - latest[name])
                else:
                    ttft.append(now - requests[int(name)].arrival)
                latest[name] = now
                done += output.finished is not None
            progress.update(bar, completed=done)
    return np.array(ttft), np.array(tbt), time.perf_counter() - started
