"""`Streams`: the requests for some of a workload's models, kept at hand."""

from collections import OrderedDict
from functools import cached_property

import numpy as np

from paceline.placement.workload import Workload

MAX_BYTES = 256 * 2**20
"""Most bytes of streams kept; the ones longest unused go first."""


class Streams:
    """Sub-workloads by set of models. Making one costs its own length, not the workload's."""

    def __init__(self, workload: Workload, num_models: int) -> None:
        self._workload, self._everybody = workload, tuple(range(num_models))
        self._kept: OrderedDict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._num_bytes = 0

    def of(self, models: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Times, float64, and models, int32 and numbered within `models`, of the requests for `models`, in order."""
        if models == self._everybody:
            return self._workload.times, self._workload.models
        if models not in self._kept:
            self._kept[models] = self._make(models)
            self._num_bytes += _size(self._kept[models])
            while self._num_bytes > MAX_BYTES and len(self._kept) > 1:
                self._num_bytes -= _size(self._kept.popitem(last=False)[1])
        self._kept.move_to_end(models)
        return self._kept[models]

    @cached_property
    def _positions(self) -> list[np.ndarray]:
        """Of each model's requests in the workload, int32."""
        models = self._workload.models
        keys = models.astype(np.int16) if len(self._everybody) < 2**15 else models  # NumPy sorts 16 bits by radix
        order = np.argsort(keys, kind="stable").astype(np.int32)
        return np.split(order, np.cumsum(self._workload.counts(len(self._everybody)))[:-1])

    def _make(self, models: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        positions = np.sort(np.concatenate([np.empty(0, np.int32), *(self._positions[model] for model in models)]))
        number = np.zeros(len(self._positions), np.int32)
        number[list(models)] = np.arange(len(models))
        return self._workload.times[positions], number[self._workload.models[positions]]


def _size(stream: tuple[np.ndarray, np.ndarray]) -> int:
    return stream[0].nbytes + stream[1].nbytes
