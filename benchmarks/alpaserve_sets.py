"""Model sets like those of AlpaServe's evaluation: sizes and latencies of its Table 1, with random or recorded traffic.

Splits are even. A pipeline costs 5 % over one device, each doubling of the tensor degree 15 %, each further request
of a batch 80 % of a pass. These are assumptions, because the paper has single-device latencies only. One replica of
BERT-104B needs 16 devices however it is split.
"""

from dataclasses import dataclass
from functools import cache
from math import log2
from pathlib import Path

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement import Case, Cluster, ControllerRules, ModelProfile, ParallelConfig, PlacedModel, Stages
from paceline.placement import Workload as Arrivals
from paceline.placement.arrivals import FIT_WINDOW, draw_for_models, fit, power_law_shares
from paceline.placement.traces import read_arrivals

GB = 2.0**30
USABLE = 14 * GB
PIPELINE_COST, TENSOR_COST, BATCH_COST = 0.05, 0.15, 0.8
BATCH_SIZES = (1, 2, 4, 8, 16)
SMALL_SPLITS = ((1, 1), (1, 2), (1, 4), (1, 8))
LARGE_SPLITS = ((16, 1), (8, 2), (4, 4), (2, 8), (1, 16))

TYPES = {  # GB of weights, seconds on one device
    "bert-1.3b": (2.4, 0.151),
    "bert-2.7b": (5.4, 0.238),
    "bert-6.7b": (13.4, 0.395),
    "bert-104b": (208.0, 4.6),
    "moe-1.3b": (2.6, 0.150),
    "moe-2.4b": (4.8, 0.171),
    "moe-5.3b": (10.6, 0.234),
}
SIX_SMALL = [name for name in TYPES if name != "bert-104b"]


@dataclass(frozen=True)
class ModelSet:
    """Models, devices, and the traffic that the sweeps start from: requests/s of all models together, cv, SLO scale."""

    types: list[str]
    num_devices: int
    rate: float
    cv: float = 3.0
    slo_scale: float = 5.0
    duration: float = 300.0


SETS = {
    "S1": ModelSet(["bert-1.3b"] * 32, 16, rate=40.0),
    "S2": ModelSet(["bert-6.7b"] * 32, 32, rate=30.0),
    "S3": ModelSet(SIX_SMALL * 10, 64, rate=250.0),
    "S4": ModelSet(["bert-104b"] * 4, 64, rate=4.0, duration=2000.0),
}


def profile(kind: str) -> ModelProfile:
    """The profile of a model type with even splits and their overheads."""
    size, seconds = TYPES[kind]
    splits = LARGE_SPLITS if kind == "bert-104b" else SMALL_SPLITS
    return ModelProfile(kind, {ParallelConfig(*split): _stages(size * GB, seconds, *split) for split in splits})


def _stages(size: float, seconds: float, tensor: int, pipeline: int) -> Stages:
    total = seconds / tensor * (1 + TENSOR_COST * log2(tensor)) * (1 + PIPELINE_COST * (pipeline > 1))
    latency = (total / pipeline,) * pipeline
    batches = {many: tuple((1 + BATCH_COST * (many - 1)) * each for each in latency) for many in BATCH_SIZES[1:]}
    return Stages(latency, (size / (tensor * pipeline),) * pipeline, batches)


def make_case(
    name: str, seed: int = 0, quick: bool = False, trace: "Trace | None" = None, max_batch: int = 1, **changed: float
) -> Case:
    """A set as a case, with some of rate_scale, cv, slo_scale and num_devices changed.

    Without a trace, a model's share of the traffic is proportional to 1 / sqrt(rank). Ranks are random, so that no type
    is the most popular. With one, rates over time, shares and burstiness are the trace's, scaled so that all models
    together get the set's requests per second; `cv` is then a factor of the trace's own burstiness, 1 by default.

    Args:
        quick: a quarter of the time.
        max_batch: requests that may share a pass.

    Raises:
        InvalidParameter: the part of the trace has no requests.
    """
    base = SETS[name]
    slo_scale, cv = changed.get("slo_scale", base.slo_scale), changed.get("cv", base.cv)
    shares = np.random.default_rng(seed).permutation(power_law_shares(len(base.types)))
    models = tuple(
        PlacedModel(f"{kind}-{i}", kind, rate, cv, slo_scale * TYPES[kind][1])
        for i, (kind, rate) in enumerate(
            zip(base.types, base.rate * changed.get("rate_scale", 1.0) * shares, strict=True)
        )
    )
    if trace is None:
        arrivals = draw_for_models(models, base.duration / (4 if quick else 1), seed)
    else:
        rate = base.rate * changed.get("rate_scale", 1.0)
        arrivals = trace.arrivals(len(models), rate, changed.get("cv", 1.0), quick, seed)
    cluster = Cluster(int(changed.get("num_devices", base.num_devices)), USABLE)
    rules = ControllerRules(batch_sizes=tuple(size for size in BATCH_SIZES if size <= max_batch))
    return Case(name, cluster, models, {kind: profile(kind) for kind in set(base.types)}, arrivals, rules=rules)


@dataclass(frozen=True)
class Trace:
    """A recorded trace, e.g. Azure's of functions, in a form that `traces.read_arrivals` knows.

    As in the paper (section 6.2), gamma gaps are fitted to every minute of each model, and drawn again at other rates
    and with other burstiness. The paper's traces are Azure's of 2019 (steady) and of 2021 (bursty).

    Args:
        path: of the file.
        minutes: of the trace that are used, from its start; a quarter of them in quick runs.
    """

    path: Path
    minutes: float

    def arrivals(self, num_models: int, rate: float, cv_scale: float, quick: bool, seed: int) -> Arrivals:
        """Arrivals of `num_models` models like the trace's, `rate` requests per second for all together."""
        recorded = _read(self.path, num_models)
        recorded = recorded.between(0.0, FIT_WINDOW * self.minutes / (4 if quick else 1))
        if not recorded.num_requests:
            problem = f"{self.path} has no requests in {self.minutes:g} minutes"
            raise InvalidParameter("trace", problem, "give more --minutes, or cut the file to busier ones")
        fitted = fit(recorded, FIT_WINDOW, num_models)
        scale = rate / fitted.rates.sum(axis=1).mean()
        return fitted.resample(np.random.default_rng(seed), rate_scale=scale, cv_scale=cv_scale)


@cache
def _read(path: Path, num_models: int) -> Arrivals:
    return read_arrivals(path, [str(model) for model in range(num_models)])
