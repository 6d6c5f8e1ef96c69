"""Model sets like those of AlpaServe's evaluation: sizes and latencies of its Table 1, with random traffic.

Splits are even. A pipeline costs 5 % over one device, each doubling of the tensor degree 15 %; both are assumptions,
because the paper has single-device latencies only. One replica of BERT-104B needs 16 devices however it is split.
"""

from dataclasses import dataclass
from math import log2

import numpy as np

from paceline.placement import Case, Cluster, ModelProfile, ParallelConfig, PlacedModel, Stages
from paceline.placement.arrivals import draw_for_models, power_law_shares

GB = 2.0**30
USABLE = 14 * GB
PIPELINE_COST, TENSOR_COST = 0.05, 0.15
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
    return Stages((total / pipeline,) * pipeline, (size / (tensor * pipeline),) * pipeline)


def make_case(name: str, seed: int = 0, quick: bool = False, **changed: float) -> Case:
    """A set as a case, with some of rate_scale, cv, slo_scale and num_devices changed.

    A model's share of the traffic is proportional to 1 / sqrt(rank). Ranks are random, so that no type is the most
    popular.
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
    arrivals = draw_for_models(models, base.duration / (4 if quick else 1), seed)
    cluster = Cluster(int(changed.get("num_devices", base.num_devices)), USABLE)
    return Case(name, cluster, models, {kind: profile(kind) for kind in set(base.types)}, arrivals)
