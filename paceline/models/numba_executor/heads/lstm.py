"""LSTM layers of draft networks as operations, and the cache that keeps their states in the slots of pages.

A row continues from the state of any earlier row. The products with inputs are one for all rows; those with earlier
states are one per wave of rows that can run together (`models/heads/waves.py`). Not for a network as a whole
(`falcon.py`).
"""

from collections.abc import Sequence

import numpy as np

from paceline.models.base import PAGE_SIZE
from paceline.models.numba_executor.heads.material import Material
from paceline.models.numba_executor.heads.program import GATHER, LSTM, PRODUCT, PUT, Buffers, Program
from paceline.models.numba_executor.kv_cache import NumbaCache


class LstmCache:
    """Keys and values, and states [slots, LSTM layers, output | cell] float32 beside them; see `KVCache`."""

    def __init__(self, layers: NumbaCache, num_lstm_layers: int, hidden: int) -> None:
        self.layers, self.num_pages = layers, layers.num_pages
        self.states = np.zeros((layers.num_pages * PAGE_SIZE, num_lstm_layers, 2 * hidden), np.float32)

    @property
    def num_bytes(self) -> int:
        """See `KVCache.num_bytes`."""
        return self.layers.num_bytes + self.states.nbytes

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """See `KVCache.move`; states go along."""
        self.layers.move(sources, destinations)
        self.states[np.asarray(destinations)] = self.states[np.asarray(sources)]

    def read(self, slots: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """See `KVCache.read`."""
        return self.layers.read(slots)


class LstmBuffers:
    """Buffers that LSTM layers of width `hidden` share."""

    def __init__(self, buffers: Buffers, hidden: int) -> None:
        self.entered, self.gates = buffers.floats(4 * hidden), buffers.floats(4 * hidden)
        self.above, self.codes = buffers.floats(hidden), buffers.codes(hidden)


class LstmLayer:
    """The layer of torch's tensors ``lstm.*_l{number}``.

    Rows of `read` are its inputs, rows of `states` its [output | cell], after which come those that a run continues.
    """

    def __init__(self, material: Material, buffers: Buffers, lent: LstmBuffers, number: int) -> None:
        tensors, pool = material.tensors, material.pool
        inputs = tensors[f"lstm.weight_ih_l{number}"]
        self._inputs, self._recurrent = pool.matrix(inputs), pool.matrix(tensors[f"lstm.weight_hh_l{number}"])
        self._bias = pool.vector(tensors[f"lstm.bias_ih_l{number}"] + tensors[f"lstm.bias_hh_l{number}"])
        self._lent = lent
        self.read, self.states = buffers.codes(inputs.shape[1]), buffers.floats(2 * lent.above.width)

    def add(self, program: Program, num_waves: int) -> None:
        """Add the states of all rows of a batch of waves (`machine.batch_of_waves`)."""
        lent, width = self._lent, self._lent.above.width
        program.add(PRODUCT, 0, self.read, lent.entered, weight=self._inputs, bias=self._bias)
        for wave in range(num_waves):
            above, own = 1 + 2 * wave, 2 + 2 * wave
            program.add(GATHER, above, self.states, lent.above, width=width)
            program.add(PUT, above, lent.above, lent.codes, width=width)
            program.add(GATHER, own, lent.entered, lent.gates, width=4 * width)
            program.add(PRODUCT, above, lent.codes, lent.gates, weight=self._recurrent, flag=1)
            program.add(LSTM, above, lent.gates, self.states, width=width)
