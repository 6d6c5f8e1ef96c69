"""`NumbaAutoregressiveNet`: EAGLE-1, 2, 3, 3.1, HASS, P-EAGLE and MTP heads on the CPU kernels.

Each pass is one compiled call, and so is a whole greedy chain (`draft_chains`). Families differ in how the first
layer's input is made of a row's embedding and hidden state (`entrance.py`), and in their norms. Not for files
(`models/heads/layouts`) or for sampling (`drafters/heads`).
"""

import numpy as np

from paceline.models.base import KVCache, Rows
from paceline.models.chains import ChainDraft
from paceline.models.heads.nets import NetOutput
from paceline.models.heads.record import HeadRecord
from paceline.models.numba_executor.heads.entrance import Projection, entrance_of
from paceline.models.numba_executor.heads.greedy import drafted
from paceline.models.numba_executor.heads.layers import LayerBuffers, add_plain_layer, pack_layer
from paceline.models.numba_executor.heads.machine import Tables, batch_of
from paceline.models.numba_executor.heads.material import Material
from paceline.models.numba_executor.heads.program import (
    ARGMAX,
    COPY,
    GATHER,
    NONE,
    NORM,
    NORM_PUT,
    PUT,
    Buffer,
    Buffers,
    Program,
)
from paceline.models.numba_executor.kv_cache import NumbaCache


class NumbaAutoregressiveNet:
    """See `nets.AutoregressiveNet`.

    Args:
        material: the head and what it takes from its target (`build.make_net` makes it).
    """

    draws_chains = verifies_early = False

    def __init__(self, material: Material) -> None:
        self.record: HeadRecord = material.record
        config, self._layer = self.record.config, material.layer
        width, buffers = self._layer.hidden_size, Buffers()
        self._lent = LayerBuffers(buffers, self._layer)
        self._picked = buffers.floats(width, per_asked=True)
        self._read = buffers.codes(width, per_asked=True)
        self._out = buffers.floats(width)
        self._entrance = entrance_of(material, buffers, self._lent)
        self._layers = [
            pack_layer(material.pool, material.tensors, i, self._layer, self._entrance.has_input_norm(i))
            for i in range(config.num_layers)
        ]
        self._norm = material.vector_or_none("norm.weight")
        self._feeds_normed = self._norm != NONE and (config.norm_output or config.family == "mtp")
        self._head = material.head(buffers)
        self._projection = Projection(material, buffers) if self._entrance.projects else None
        self._machine = material.machine(buffers, config.num_layers)
        self._tables = Tables(self._program)

    def new_cache(self, num_pages: int) -> NumbaCache:
        """See `nets.AutoregressiveNet.new_cache`."""
        return self._machine.new_cache(num_pages)

    def project(self, taps: np.ndarray) -> np.ndarray:
        """See `nets.AutoregressiveNet.project`: the families without a projection take the hidden state as it is."""
        return taps if self._projection is None else self._projection.run(self._machine, taps)

    def forward(self, rows: Rows, hidden: np.ndarray, cache: KVCache) -> NetOutput:
        """See `nets.AutoregressiveNet.forward`."""
        self._run(rows, hidden, cache, 0)
        num_rows, asked = len(rows.token_ids), len(rows.logit_rows)
        fed_on = self._out if self._feeds_normed else self._lent.hidden
        logits = self._machine.floats(self._head.logits, asked)[:, : self._head.size]
        return NetOutput(logits, self._machine.floats(fed_on, num_rows))

    def draft_chains(self, rows: Rows, hidden: np.ndarray, cache: KVCache, num_tokens: int) -> ChainDraft:
        """A greedy chain after each row of `rows.logit_rows`, all in one compiled call.

        The chain's rows after position p are written to positions p + 1, p + 2, .. in the pages of the segment, which
        must hold `num_tokens` - 1 more slots.

        Args:
            rows, hidden, cache: as for `forward`; `rows.logit_rows` are the rows to draft after.
            num_tokens: tokens to draft, 1 or more.
        """
        batch = self._run(rows, hidden, cache, num_tokens)
        return drafted(batch, num_tokens, len(rows.logit_rows))

    def _run(self, rows: Rows, hidden: np.ndarray, cache: KVCache, num_tokens: int):
        """One call: a pass where `num_tokens` is 0, else a chain of them."""
        assert isinstance(cache, NumbaCache)
        num_rows, asked = len(rows.token_ids), len(rows.logit_rows)
        table = self._tables(num_tokens, asked > 0)
        batch = batch_of(rows, rows.logit_rows, max(1, num_tokens))
        context = int(max(batch.num_keys.max(), batch.positions.max() + 1))
        self._machine.reserve(max(num_rows, asked), asked, context, len(table))
        self._machine.floats(self._lent.hidden, num_rows)[:] = hidden
        self._machine.run(table, batch, cache)
        return batch

    def _program(self, num_tokens: int, asks: bool) -> Program:
        program = Program()
        self._add_pass(program, 0)
        if self._feeds_normed and not num_tokens:
            self._add_norm(program, 0, self._lent.hidden, self._out)
        if asks:
            program.add(GATHER, 1, self._lent.hidden, self._picked, width=self._picked.width)
            self._add_head(program, 1, self._picked)
        for level in range(1, num_tokens):
            source = self._picked if level == 1 else self._lent.hidden
            program.add(ARGMAX, level, self._head.logits, width=self._head.size)
            self._add_feed(program, level, source)
            self._add_pass(program, level)
            self._add_head(program, level + 1, self._lent.hidden)
        if num_tokens:
            program.add(ARGMAX, num_tokens, self._head.logits, width=self._head.size)
        return program

    def _add_pass(self, program: Program, span: int) -> None:
        """Add all layers, from the rows' tokens and `hidden` to the residual stream."""
        self._entrance.add(program, span, self._layers[0])
        for layer in self._layers[1:]:
            add_plain_layer(program, span, layer, self._lent, self._layer)

    def _add_norm(self, program: Program, span: int, source: Buffer, target: Buffer) -> None:
        program.add(NORM, span, source, target, weight=self._norm, width=source.width)

    def _add_feed(self, program: Program, span: int, source: Buffer) -> None:
        """Add `hidden` = the states that rows of `source` pass to children."""
        if self._feeds_normed:
            self._add_norm(program, span, source, self._lent.hidden)
        elif source is not self._lent.hidden:
            program.add(COPY, span, source, self._lent.hidden, width=source.width)

    def _add_head(self, program: Program, span: int, source: Buffer) -> None:
        code = PUT if self._norm == NONE else NORM_PUT
        program.add(code, span, source, self._read, weight=self._norm, width=source.width)
        self._head.add(program, span, self._read)
