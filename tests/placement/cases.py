"""Small cases of our own: two model types, a few devices, arrivals drawn from a seed."""

from paceline.placement import Case, Cluster, ModelProfile, ParallelConfig, PlacedModel, Stages
from paceline.placement.arrivals import draw_for_models

GB = 2.0**30


def even_profile(name: str, seconds: float, size: float, penalty: float = 1.0, degrees=(1, 2, 4)) -> ModelProfile:
    """Split evenly over 1, 2, 4 ... stages; more than one stage costs `penalty` times the work."""
    entries = {}
    for degree in degrees:
        each = seconds / degree * (1 if degree == 1 else penalty)
        entries[ParallelConfig(1, degree)] = Stages((each,) * degree, (size / degree,) * degree)
    return ModelProfile(name, entries)


PROFILES = {
    "small": even_profile("small", 0.1, 2 * GB, penalty=1.05),
    "large": even_profile("large", 0.4, 8 * GB, penalty=1.02),
}


def make_case(num_small=3, num_large=1, num_devices=4, slo_scale=3.0, rate=3.0, cv=3.0, duration=200.0, seed=0) -> Case:
    kinds = ["small"] * num_small + ["large"] * num_large
    models = tuple(
        PlacedModel(f"m{i}", kind, rate * (1 if kind == "small" else 0.2), cv, slo_scale * PROFILES[kind].fastest(1))
        for i, kind in enumerate(kinds)
    )
    return Case("own", Cluster(num_devices, 9 * GB), models, PROFILES, draw_for_models(models, duration, seed))
