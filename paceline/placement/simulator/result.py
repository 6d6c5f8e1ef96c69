"""`Score` and `SimulationResult`: how a placement fared. Counts and latencies, no judgement."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Score:
    """What a search compares, cheap to make.

    Attributes:
        num_requests: all of the workload, those for models that are placed nowhere included.
        num_served: those that met their deadline.
        latency_sum: seconds, over served requests.
        served: int64 [models], requests served.
        unserved: int64 [models], requests turned away or asking for a model that is placed nowhere.
        busy: float64 [groups], seconds that the mean stage of the group computed.
    """

    num_requests: int
    num_served: int
    latency_sum: float
    served: np.ndarray
    unserved: np.ndarray
    busy: np.ndarray

    @property
    def slo_attainment(self) -> float:
        """Fraction of all requests that finished in time."""
        return self.num_served / self.num_requests

    @property
    def mean_latency_served(self) -> float:
        """Seconds; 0 when nothing was served."""
        return self.latency_sum / self.num_served if self.num_served else 0.0


@dataclass(frozen=True)
class SimulationResult:
    """How a placement fared on a workload.

    Attributes:
        slo_attainment: fraction of all requests that finished in time.
        mean_latency_served: seconds, arrival to finish, over served requests; 0 when nothing was served.
        p99_latency_served: seconds; the latency at rank floor(0.99 n) of the n served, from 0.
        num_requests: all requests; num_rejected: those not served.
        model_attainment: float64 [models], NaN where a model had no requests.
        group_attainment: float64 [groups], of the requests sent to the group; NaN when there were none.
        group_requests: int64 [groups], requests served.
        utilization: float64 [groups, stages], busy fraction of each stage over the workload's duration (NaN beyond the
            group's last stage). Up to 1, a little above when work goes on after the last arrival. Of language models
            over the time until the last answer.
        latencies: float64 [requests], seconds, NaN where a request was not served; None unless asked for.
        routes: int32 [requests], the group that served it or -1; None unless asked for.
    """

    slo_attainment: float
    mean_latency_served: float
    p99_latency_served: float
    num_requests: int
    num_rejected: int
    model_attainment: np.ndarray
    group_attainment: np.ndarray
    group_requests: np.ndarray
    utilization: np.ndarray
    latencies: np.ndarray | None = None
    routes: np.ndarray | None = None


def nearest_rank(values: np.ndarray, fraction: float) -> float:
    """The value at rank floor(fraction n) of n sorted `values`, counted from 0; 0 when there are none."""
    if not len(values):
        return 0.0
    rank = min(int(len(values) * fraction), len(values) - 1)
    return float(np.partition(values, rank)[rank])


def fractions(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """`part` / `whole`, NaN where the whole is 0."""
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
