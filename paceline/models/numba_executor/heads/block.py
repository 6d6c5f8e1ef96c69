"""`NumbaBlockNet`: DFlash and DSpark heads on the CPU kernels: all levels in one pass over keys projected from taps.

Reading a prompt takes one small product and the layers' keys and values per token (`inject`). A draft takes one pass
over the block (`forward`). A greedy chain is one compiled call (`draft_chains`), together with the bias by the previous
token, which is sequential but cheap. Chen et al. 2026 (DFlash, arXiv 2602.06036); DSpark (arXiv 2607.05147). Not for
files (`models/heads/layouts`) or for sampling (`drafters/heads`).
"""

import numpy as np

from paceline.errors import UnsupportedModel
from paceline.models.base import KVCache, Rows
from paceline.models.chains import ChainDraft
from paceline.models.heads.nets import NetOutput
from paceline.models.heads.record import HeadConfig
from paceline.models.numba_executor.gemm import PANEL
from paceline.models.numba_executor.heads.entrance import Projection
from paceline.models.numba_executor.heads.greedy import drafted
from paceline.models.numba_executor.heads.layers import LayerBuffers, add_keys, add_plain_layer, pack_layer
from paceline.models.numba_executor.heads.machine import Tables, batch_of, batch_of_blocks, batch_of_states
from paceline.models.numba_executor.heads.markov import Confidence, MarkovBias
from paceline.models.numba_executor.heads.material import Material
from paceline.models.numba_executor.heads.program import (
    ARGMAX,
    GATHER,
    NORM,
    NORM_PUT,
    PRODUCT,
    Buffers,
    Program,
)
from paceline.models.numba_executor.kv_cache import NumbaCache


class NumbaBlockNet:
    """See `nets.BlockNet`.

    Args:
        material: the head and what it takes from its target (`build.make_net` makes it).

    Raises:
        UnsupportedModel: a bias by more than the previous token, or of a rank that is no multiple of 32.
    """

    draws_chains = verifies_early = False

    def __init__(self, material: Material) -> None:
        self.record = material.record
        config, self._layer = self.record.config, material.layer
        _check_form(config)
        width, buffers = self._layer.hidden_size, Buffers()
        self._lent = LayerBuffers(buffers, self._layer)
        self._context = buffers.codes(width)
        self._keys = buffers.floats(self._lent.qkv.width - self._lent.mixed.width)
        self._picked, self._read = buffers.floats(width, per_asked=True), buffers.codes(width, per_asked=True)
        self._out = buffers.floats(width)
        self._embedding, self._head = material.embedding(scale=config.embedding_scale), material.head(buffers)
        self._layers = [pack_layer(material.pool, material.tensors, i, self._layer) for i in range(config.num_layers)]
        self._norm, self._context_norm = material.vector("norm.weight"), material.vector("hidden_norm.weight")
        self._projection = Projection(material, buffers)
        self._markov = MarkovBias(material, buffers, self._head) if config.markov_rank else None
        self._confidence = Confidence(material, buffers, self._markov) if config.confidence else None
        self._machine = material.machine(buffers, config.num_layers)
        self._inject_table, self._tables = Tables(self._inject_program), Tables(self._forward_program)
        self._chains = Tables(self._chain_program)

    def new_cache(self, num_pages: int) -> NumbaCache:
        """See `nets.BlockNet.new_cache`."""
        return self._machine.new_cache(num_pages)

    def inject(self, taps: np.ndarray, positions: np.ndarray, slots: np.ndarray, cache: KVCache) -> None:
        """See `nets.BlockNet.inject`."""
        assert isinstance(cache, NumbaCache)
        count, table = len(positions), self._inject_table()
        if not count:
            return
        self._machine.reserve(count, 0, int(positions.max()) + 1, len(table))
        self._machine.floats(self._projection.taps, count)[:] = taps
        batch = batch_of_states(np.zeros(count, np.int32))
        places = (np.ascontiguousarray(values, np.int32) for values in (positions, slots))
        self._machine.run(table, batch._replace(positions=next(places), slots=next(places)), cache)

    def forward(self, rows: Rows, cache: KVCache) -> NetOutput:
        """See `nets.BlockNet.forward`; the hidden states are those after the final norm."""
        assert isinstance(cache, NumbaCache)
        num_rows, asked, table = len(rows.token_ids), len(rows.logit_rows), self._tables()
        batch = batch_of(rows, rows.logit_rows)
        self._machine.reserve(num_rows, asked, int(max(rows.lengths.max(), rows.positions.max() + 1)), len(table))
        self._machine.run(table, batch, cache)
        logits = self._machine.floats(self._head.logits, asked)[:, : self._head.size]
        return NetOutput(logits, self._machine.floats(self._out, num_rows))

    def bias(self, tokens: np.ndarray) -> np.ndarray:
        """See `nets.BlockNet.bias`."""
        if self._markov is None:
            return np.zeros((len(tokens), self._head.size), np.float32)
        return self._markov.run(self._machine, np.asarray(tokens, np.int32))

    def confidence(self, hidden: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """See `nets.BlockNet.confidence`."""
        if self._confidence is None:
            return np.ones(len(tokens), np.float32)
        return self._confidence.run(self._machine, hidden, np.asarray(tokens, np.int32))

    def draft_chains(self, rows: Rows, cache: KVCache) -> ChainDraft:
        """A greedy chain per block in one compiled call: each position's argmax, given the previously drafted token.

        Args:
            rows, cache: as for `forward`; `rows.logit_rows` are the positions that draft, the same number per block,
                and a block's first row is its anchor.
        """
        assert isinstance(cache, NumbaCache)
        blocks = len(rows.page_tables)
        num_places = len(rows.logit_rows) // blocks
        table, batch = self._chains(num_places, blocks), batch_of_blocks(rows)
        context = int(max(rows.lengths.max(), rows.positions.max() + 1))
        self._machine.reserve(len(rows.token_ids), len(rows.logit_rows), context, len(table))
        self._machine.run(table, batch, cache)
        return drafted(batch, num_places, blocks)

    def _inject_program(self) -> Program:
        program, layer = Program(), self._layer
        self._projection.add(program, 0)
        program.add(
            NORM_PUT, 0, self._projection.result, self._context, weight=self._context_norm, width=layer.hidden_size
        )
        for each in self._layers:
            bias = each.keys_and_values_bias
            program.add(PRODUCT, 0, self._context, self._keys, weight=each.keys_and_values, bias=bias)
            add_keys(program, 0, each, self._keys, layer, 0)
        return program

    def _forward_program(self) -> Program:
        program = Program()
        self._add_pass(program)
        program.add(NORM, 0, self._lent.hidden, self._out, weight=self._norm, width=self._out.width)
        return program

    def _add_pass(self, program: Program) -> None:
        """Add a pass from the rows' tokens to the logits of span 1."""
        width = self._layer.hidden_size
        self._embedding.add(program, 0, self._lent.hidden)
        for layer in self._layers:
            add_plain_layer(program, 0, layer, self._lent, self._layer)
        program.add(GATHER, 1, self._lent.hidden, self._picked, width=width)
        program.add(NORM_PUT, 1, self._picked, self._read, weight=self._norm, width=width)
        self._head.add(program, 1, self._read)

    def _chain_program(self, num_places: int, num_blocks: int) -> Program:
        """Logits of a position are rows place * blocks .. of the buffer; spans 2, 3, .. are anchors and drafts."""
        program, logits = Program(), self._head.logits
        self._add_pass(program)
        for place in range(num_places):
            first = place * num_blocks * logits.width
            if self._markov is not None:
                self._markov.add(program, 2 + place, logits, first)
            program.add(ARGMAX, 3 + place, logits, source_column=first, width=self._head.size)
        return program


def _check_form(config: HeadConfig) -> None:
    if config.markov_rank and config.variant not in ("", "vanilla"):
        raise UnsupportedModel(f"markov_head_type: {config.variant!r} is not run; only 'vanilla' is")
    if config.markov_rank % PANEL:
        raise UnsupportedModel(
            f"markov_rank: {config.markov_rank} is not a multiple of {PANEL} as the CPU kernels need it; run the head "
            'with executor="torch"'
        )
