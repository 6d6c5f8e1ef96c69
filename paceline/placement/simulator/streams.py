"""`Streams`: the requests for some of a workload's models, kept at hand."""

from collections import OrderedDict

import numpy as np

from paceline.placement.workload import Workload

MAX_BYTES = 256 * 2**20
"""Most bytes of streams kept; the ones longest unused go first."""


class Streams:
    """Sub-workloads by set of models. Making one costs its own length, not the workload's."""

    def __init__(self, workload: Workload, num_models: int) -> None:
        self._workload = workload
        order = np.argsort(workload.models, kind="stable").astype(np.int32)
        counts = np.bincount(workload.models, minlength=num_models)
        self._positions = np.split(order, np.cumsum(counts)[:-1])
        self._kept: OrderedDict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._num_bytes = 0

    def of(self, models: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Times, float64, and models, int32 and numbered within `models`, of the requests for `models`, in order."""
        if models not in self._kept:
            self._kept[models] = self._make(models)
            self._num_bytes += _size(self._kept[models])
            while self._num_bytes > MAX_BYTES and len(self._kept) > 1:
                self._num_bytes -= _size(self._kept.popitem(last=False)[1])
        self._kept.move_to_end(models)
        return self._kept[models]

    def _make(self, models: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        positions = np.sort(np.concatenate([np.empty(0, np.int32), *(self._positions[model] for model in models)]))
        number = np.zeros(len(self._positions), np.int32)
        number[list(models)] = np.arange(len(models))
        return self._workload.times[positions], number[self._workload.models[positions]]


def _size(stream: tuple[np.ndarray, np.ndarray]) -> int:
    return stream[0].nbytes + stream[1].nbytes
