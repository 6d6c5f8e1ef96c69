"""Mean latency of two models on two devices: one model per device, or both on a pipeline of the two devices.

The smallest case in which model parallelism pays although each model fits on a device (Li et al. 2023, AlpaServe,
section 3.4): a burst for one model can use both devices. Constant service times, Poisson arrivals, first come first
served. Not the place for deadlines, memory or burstier arrivals (`placement/parallel_map.py` simulates those).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import InvalidParameter
from paceline.theory.checks import check_positive
from paceline.theory.curves import Chart, Series
from paceline.theory.queueing import (
    most_communication_overhead,
    most_uneven_overhead,
    pipeline_latency,
    simple_latency,
)
from paceline.theory.tables import Table

LOADS = (0.01, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 1.9)
"""Loads: requests per second times seconds of a pass. Two devices saturate at 2."""

_STEPS = 100


@dataclass(frozen=True, slots=True)
class TwoModels:
    """Mean latencies of two models, apart and together, in the unit that the pass was given in.

    Attributes:
        apart: a device each; infinite when one of the two is overloaded.
        together: both on one pipeline of two stages.
        gain: apart / together; above 1 model parallelism pays.
        most_communication_overhead, most_uneven_overhead: largest overheads at which it still pays, at an even split.
    """

    apart: float
    together: float
    gain: float
    most_communication_overhead: float
    most_uneven_overhead: float


def two_models(
    rate: float, seconds: float, share: float = 0.5, communication: float = 1.0, uneven: float = 1.0
) -> TwoModels:
    """Compare the two ways to use two devices.

    Args:
        rate: requests per second, both models together, below 2 / `seconds`.
        seconds: a pass on one device.
        share: fraction of the requests that are for the first model.
        communication: time of all stages together over that of the pass (alpha in the paper), at least 1.
        uneven: time of the slowest stage over half of that (beta), in [1, 2].

    Raises:
        InvalidParameter: a number outside its range, or a pipeline that cannot keep up.
    """
    check_positive("seconds", seconds)
    check_positive("rate", rate)
    for field, value, most in (("communication", communication, float("inf")), ("uneven", uneven, 2)):
        if not 1 <= value <= most:
            raise InvalidParameter(field, f"{value} is not in [1, {most}]", "give 1 for no overhead")
    whole = communication * seconds
    slowest = uneven * whole / 2
    if rate * slowest >= 1:
        problem = f"{rate} requests keep a stage of {slowest:.4g} s busy {rate * slowest:.3g} times over"
        raise InvalidParameter("rate", problem, f"give less than {1 / slowest:.4g}")
    apart = float(simple_latency(rate, seconds, share))
    together = float(pipeline_latency(rate, whole, slowest))
    load = rate * seconds
    return TwoModels(apart, together, apart / together, most_communication_overhead(load), most_uneven_overhead(load))


def two_models_table(loads: Sequence[float] = LOADS, share: float = 0.5) -> Table:
    """Overheads that may be, and latencies in passes, one row per load (requests per pass)."""
    rows = []
    for load in loads:
        found = two_models(load, 1.0, share)
        rows.append(
            (
                load,
                found.most_communication_overhead,
                found.most_uneven_overhead,
                found.apart,
                found.together,
                found.gain,
            )
        )
    columns = ("load", "communication overhead", "uneven overhead", "apart", "together", "gain")
    return Table("Two models on two devices", columns, tuple(rows))


def overhead_curves() -> Chart:
    """alpha(r) and beta(r): what model parallelism may cost before two separate devices are as good, over the load."""
    loads = [2 * step / _STEPS for step in range(_STEPS)]
    communication = [most_communication_overhead(load) for load in loads]
    uneven = [most_uneven_overhead(load) for load in loads]
    series = (
        Series("communication (alpha)", loads, communication, marked=[communication.index(max(communication))]),
        Series("uneven stages (beta)", loads, uneven),
    )
    return Chart("What model parallelism may cost", "requests per pass", "times the work", series)


def latency_curves(shares: Sequence[float] = (0.5, 0.6, 0.7, 0.8)) -> Chart:
    """Mean latency in passes over the load: apart for several splits of the traffic, together for all of them."""
    loads = [1.9 * step / _STEPS for step in range(1, _STEPS + 1)]
    series = [Series("together", loads, [float(pipeline_latency(load, 1.0, 0.5)) for load in loads])]
    for share in shares:
        stable = [load for load in loads if load * max(share, 1 - share) < 0.95]
        latencies = [float(simple_latency(load, 1.0, share)) for load in stable]
        series.append(Series(f"apart, {share:.0%} for one model", stable, latencies))
    return Chart("Two models on two devices", "requests per pass", "mean latency in passes", tuple(series))


CHARTS = {"overheads": overhead_curves, "latency": latency_curves}
"""The plots by the name the command line gives them."""
