"""The input of an autoregressive head's first layer, from a token's embedding and a hidden state.

Three forms: EAGLE-3 normalises both and concatenates them for a first layer with inputs twice as wide (Li et al. 2025);
EAGLE-1 and 2 project the two to one width and have no norm before the first layer (Li et al. 2024); MTP normalises
both, projects them, and continues with a plain layer (DeepSeek-AI 2024). Not for the layers themselves.
"""

import numpy as np

from paceline.models.numba_executor.heads.interpret import Batch
from paceline.models.numba_executor.heads.layers import Layer, LayerBuffers, add_layer, add_plain_layer
from paceline.models.numba_executor.heads.machine import Machine, Tables, batch_of_states
from paceline.models.numba_executor.heads.material import Material
from paceline.models.numba_executor.heads.program import NONE, NORM, NORM_PUT, PRODUCT, PUT, Buffer, Buffers, Program


class SideBySide:
    """EAGLE-3: norm(embedding) and norm(hidden) concatenated; the residual is hidden, normed or not."""

    projects = True

    def __init__(self, material: Material, buffers: Buffers, lent: LayerBuffers) -> None:
        self._config, self._lent, self._width = material.layer, lent, material.layer.hidden_size
        self._embedding = material.embedding()
        self._embedded, self._pair = buffers.floats(self._width), buffers.codes(2 * self._width)
        self._embed_norm = material.vector("layers.0.input_layernorm.weight")
        self._hidden_norm = material.vector("layers.0.hidden_norm.weight")
        self._norms_residual = material.record.config.norm_before_residual

    def has_input_norm(self, layer: int) -> bool:
        """Whether the layer normalises the residual stream itself."""
        return layer > 0

    def add(self, program: Program, span: int, first: Layer) -> None:
        """Add the first layer, which reads tokens and `hidden`."""
        hidden, pair, width = self._lent.hidden, self._pair, self._width
        self._embedding.add(program, span, self._embedded)
        program.add(NORM_PUT, span, self._embedded, pair, weight=self._embed_norm, width=width)
        if self._norms_residual:
            program.add(NORM, span, hidden, hidden, weight=self._hidden_norm, width=width)
            program.add(PUT, span, hidden, pair, target_column=width, width=width)
        else:
            program.add(NORM_PUT, span, hidden, pair, target_column=width, weight=self._hidden_norm, width=width)
        add_layer(program, span, first, self._lent, self._config, pair)


class Reduced:
    """EAGLE-1, 2 and MTP: the residual stream is a projection of [embedding, hidden], each normed or not."""

    projects = False

    def __init__(self, material: Material, buffers: Buffers, lent: LayerBuffers, norms: tuple[int, int],
                 plain_first: bool) -> None:  # fmt: skip
        self._config, self._lent, self._width = material.layer, lent, material.layer.hidden_size
        self._embedding, self._norms, self._plain_first = material.embedding(), norms, plain_first
        self._embedded, self._pair = buffers.floats(self._width), buffers.codes(2 * self._width)
        self._matrix = material.pool.matrix(material.tensors["fc.weight"])
        self._bias = material.vector_or_none("fc.bias")

    def has_input_norm(self, layer: int) -> bool:
        """Whether the layer normalises the residual stream itself."""
        return layer > 0 or self._plain_first

    def add(self, program: Program, span: int, first: Layer) -> None:
        """Add the first layer, which reads tokens and `hidden`."""
        self._embedding.add(program, span, self._embedded)
        add_reduction(program, span, (self._embedded, self._lent.hidden), self._norms, self._pair, self._lent.hidden,
                      self._matrix, self._bias)  # fmt: skip
        if self._plain_first:
            add_plain_layer(program, span, first, self._lent, self._config)
        else:
            program.add(PUT, span, self._lent.hidden, self._lent.normed, width=self._width)
            add_layer(program, span, first, self._lent, self._config, self._lent.normed)


def add_reduction(program: Program, span: int, sources: tuple[Buffer, Buffer], norms: tuple[int, int], pair: Buffer,
                  target: Buffer, matrix: int, bias: int = NONE) -> None:  # fmt: skip
    """Add `target` = the product of `matrix` and two `sources` of one width side by side, each normed or not."""
    for i, (source, norm) in enumerate(zip(sources, norms, strict=True)):
        code, column = PUT if norm == NONE else NORM_PUT, i * source.width
        program.add(code, span, source, pair, target_column=column, weight=norm, width=source.width)
    program.add(PRODUCT, span, pair, target, weight=matrix, bias=bias)


def entrance_of(material: Material, buffers: Buffers, lent: LayerBuffers) -> SideBySide | Reduced:
    """The form of the record's family."""
    family = material.record.config.family
    if family in ("eagle3", "p_eagle"):
        return SideBySide(material, buffers, lent)
    if family == "mtp":
        norms = material.vector("embed_norm.weight"), material.vector("hidden_norm.weight")
        return Reduced(material, buffers, lent, norms, plain_first=True)
    return Reduced(material, buffers, lent, (NONE, NONE), plain_first=False)


class Projection:
    """`fc` of the target's concatenated hidden states, normed together, separately, or not at all."""

    def __init__(self, material: Material, buffers: Buffers) -> None:
        config, weights = material.record.config, material.tensors["fc.weight"]
        self._num_taps = len(config.taps)
        self.taps = buffers.floats(weights.shape[1])
        self._normed = buffers.codes(weights.shape[1])
        self.result: Buffer = buffers.floats(len(weights))
        self._matrix = material.pool.matrix(weights)
        self._bias = material.vector_or_none("fc.bias")
        self._norms = [material.vector("input_norm.weight")] if config.norm_before_fc else []
        if config.fc_norm:
            self._norms = [material.vector(f"fc_norm.{i}.weight") for i in range(self._num_taps)]
        self._tables, self._batches = Tables(self._program), dict[int, Batch]()

    def run(self, machine: Machine, taps: np.ndarray) -> np.ndarray:
        """[n, hidden] of taps [n, taps * target hidden]."""
        table, count = self._tables(), len(taps)
        batch = self._batches.get(count)
        if batch is None:
            batch = self._batches[count] = batch_of_states(np.zeros(count, np.int32))
        machine.reserve(count, 0, 1, len(table))
        machine.floats(self.taps, count)[:] = taps
        machine.run(table, batch, None)
        return machine.floats(self.result, count)

    def add(self, program: Program, span: int) -> None:
        """Add `result` = the projection of `taps`."""
        parts = max(1, len(self._norms))
        width = self.taps.width // parts
        for i in range(parts):
            norm = self._norms[i] if self._norms else NONE
            program.add(
                NORM_PUT if self._norms else PUT, span, self.taps, self._normed, source_column=i * width,
                target_column=i * width, weight=norm, width=width,
            )  # fmt: skip
        program.add(PRODUCT, span, self._normed, self.result, weight=self._matrix, bias=self._bias)

    def _program(self) -> Program:
        program = Program()
        self.add(program, 0)
        return program
