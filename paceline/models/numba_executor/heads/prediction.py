"""A target's own layer for multi-token prediction on the CPU kernels; see `models/heads/prediction.py`."""

from functools import partial
from typing import Any

import numpy as np

from paceline.models.dtypes import has_blocks
from paceline.models.heads.prediction import PredictionNet
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.numba_executor.heads.entrance import add_reduction
from paceline.models.numba_executor.heads.machine import Tables, batch_of_states
from paceline.models.numba_executor.heads.material import Material
from paceline.models.numba_executor.heads.program import Buffers, Program
from paceline.models.numba_executor.weights import BLOCKS, load_layers
from paceline.models.states import States


def prediction_net(material: Material, target: NumbaModel) -> "NumbaPredictionNet":
    """The net of a record with a layer in the target's files, on the target's threads and with its tables.

    Raises:
        UnsupportedModel: the kernels do not cover the layer.
    """
    record, dtype = material.record, target.dtype_choice.name
    assert record.layer is not None
    how: dict[str, Any] = {"load": partial(load_layers, beside=target.shared_weights)}
    stays_in_blocks = has_blocks(record.layer)
    if dtype == BLOCKS and not stays_in_blocks:  # then tables of blocks do not fit, and it has its own
        dtype, how = "w8a8", {}
    layer = NumbaModel(record.layer, dtype, kv_cache_dtype=target.cache_dtype, team=target.team, **how)
    return NumbaPredictionNet(record, layer, _Entrance(material))


class NumbaPredictionNet(PredictionNet):
    """See `PredictionNet`."""

    def with_vocabulary(self, size: int) -> "NumbaPredictionNet":
        """A net with the same weights and caches that scores only the first `size` tokens."""
        assert isinstance(self._layer, NumbaModel)
        return NumbaPredictionNet(self.record, self._layer.with_vocabulary(size), self._entrance)


class _Entrance:
    """The projection of normed embeddings and hidden states."""

    def __init__(self, material: Material) -> None:
        config, buffers = material.target_config, Buffers()
        width = config.hidden_size
        self._embedding = material.embedding()
        self._embedded, self._hidden, self._out = (buffers.floats(width) for _ in range(3))
        self._pair = buffers.codes(2 * width)
        self._norms = material.vector("embed_norm.weight"), material.vector("hidden_norm.weight")
        self._matrix = material.pool.matrix(material.tensors["fc.weight"])
        self._machine = material.machine(buffers, 0, config.norm_eps)
        self._tables = Tables(self._program)

    def __call__(self, tokens: np.ndarray, hidden: States) -> np.ndarray:
        """See `prediction.Entrance`."""
        table = self._tables()
        self._machine.reserve(len(tokens), 0, 1, len(table))
        self._machine.floats(self._hidden, len(tokens))[:] = np.asarray(hidden)
        self._machine.run(table, batch_of_states(tokens), None)
        return self._machine.floats(self._out, len(tokens))

    def _program(self) -> Program:
        program = Program()
        self._embedding.add(program, 0, self._embedded)
        sources = self._embedded, self._hidden
        add_reduction(program, 0, sources, self._norms, self._pair, self._out, self._matrix)
        return program
