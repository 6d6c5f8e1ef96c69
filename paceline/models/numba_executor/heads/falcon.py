"""`NumbaFalcon`: Falcon heads on the CPU kernels (arXiv 2412.12639): two LSTM layers, then one with attention.

Up to 64 rows are read in one compiled call, and all blocks are drafted in one. The network is described in the
reference, `torch_executor/heads/falcon.py`. Not for files (`models/heads/layouts`) or for sampling (`drafters/heads`).
"""

from collections.abc import Sequence

import numpy as np

from paceline.models.base import PAGE_SIZE, KVCache, Rows, slot_of
from paceline.models.heads.nets import BlockOfRows, NetOutput
from paceline.models.heads.waves import waves
from paceline.models.numba_executor.heads.layers import LayerBuffers, add_keys, add_layer, pack_layer
from paceline.models.numba_executor.heads.lstm import LstmBuffers, LstmCache, LstmLayer
from paceline.models.numba_executor.heads.machine import Tables, batch_of, batch_of_waves
from paceline.models.numba_executor.heads.material import Material
from paceline.models.numba_executor.heads.program import PRODUCT, PUT, Buffers, Program

_LSTM_LAYERS = 2
_AT_ONCE = 64
"""Rows per call while a prompt is read: enough to share the products with inputs, with few operations."""


class NumbaFalcon:
    """See `nets.HalfAutoregressiveNet`.

    Args:
        material: the head and what it takes from its target (`build.make_net` makes it).
    """

    def __init__(self, material: Material) -> None:
        self.record, self._config, buffers = material.record, material.layer, Buffers()
        self._lent, width = LayerBuffers(buffers, self._config), self._config.hidden_size
        self._keys = buffers.floats(self._lent.qkv.width - self._lent.mixed.width)
        self._read = buffers.codes(width)
        self._embedding, self._head = material.embedding(), material.head(buffers)
        self._embedded, lent = buffers.floats(width), LstmBuffers(buffers, width)
        self._lstm = [LstmLayer(material, buffers, lent, number) for number in range(_LSTM_LAYERS)]
        self._layer = pack_layer(material.pool, material.tensors, 0, self._config, has_input_norm=False)
        self._machine = material.machine(buffers, 1)
        self._extend_tables, self._draft_table = Tables(self._extend_program), Tables(self._draft_program)

    def new_cache(self, num_pages: int) -> LstmCache:
        """See `nets.HalfAutoregressiveNet.new_cache`."""
        return LstmCache(self._machine.new_cache(num_pages), _LSTM_LAYERS, self._config.hidden_size)

    def project(self, taps: np.ndarray) -> np.ndarray:
        """See `nets.HalfAutoregressiveNet.project`: the one hidden state, as it is."""
        return taps

    def extend(self, tokens: np.ndarray, hidden: np.ndarray, positions: np.ndarray, slots: np.ndarray,
               before: np.ndarray, cache: KVCache) -> None:  # fmt: skip
        """See `nets.HalfAutoregressiveNet.extend`."""
        assert isinstance(cache, LstmCache)
        for start in range(0, len(tokens), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            self._extend(tokens[part], hidden[part], positions[part], slots[part], before[part], cache)

    def draft(self, blocks: Sequence[BlockOfRows], cache: KVCache) -> NetOutput:
        """See `nets.HalfAutoregressiveNet.draft`."""
        assert isinstance(cache, LstmCache)
        rows, table = rows_of(blocks), self._draft_table()
        count, machine = len(rows.slots), self._machine
        machine.reserve(count, count, int(max(rows.lengths.max(), rows.positions.max() + 1)), len(table))
        machine.floats(self._lent.hidden, count)[:] = cache.states[rows.slots, -1, : self._lent.hidden.width]
        machine.run(table, batch_of(rows, np.zeros(0, np.int32)), cache.layers)
        logits = machine.floats(self._head.logits, count)[:, : self._head.size]
        return NetOutput(logits, machine.floats(self._lent.hidden, count))

    def _extend(self, tokens: np.ndarray, hidden: np.ndarray, positions: np.ndarray, slots: np.ndarray,
                before: np.ndarray, cache: LstmCache) -> None:  # fmt: skip
        """`extend` in one call."""
        parts = waves(slots.tolist(), before.tolist())
        order, machine, count = np.concatenate(parts), self._machine, len(tokens)
        table, slots, above = self._extend_tables(len(parts)), slots[order], before[order]
        places = {slot: row for row, slot in enumerate(slots.tolist())}
        picks = np.array([places.get(slot, -1) for slot in above.tolist()], np.int32)
        outside = np.flatnonzero(picks < 0)
        picks[outside] = count + np.arange(len(outside))
        machine.reserve(count + len(outside), 0, int(positions.max()) + 1, len(table))
        machine.floats(self._lent.hidden, count)[:] = hidden[order]
        known = cache.states[above[outside]] * (above[outside] >= 0)[:, None, None]
        for number, layer in enumerate(self._lstm):
            machine.floats(layer.states, count + len(outside))[count:] = known[:, number]
        sizes = [len(part) for part in parts]
        machine.run(table, batch_of_waves(tokens[order], positions[order], slots, picks, sizes), cache.layers)
        for number, layer in enumerate(self._lstm):
            cache.states[slots, number] = machine.floats(layer.states, count)

    def _extend_program(self, num_waves: int) -> Program:
        """States, keys and values of rows with tokens and inputs `hidden`."""
        program, width, (lower, upper) = Program(), self._config.hidden_size, self._lstm
        self._embedding.add(program, 0, self._embedded)
        program.add(PUT, 0, self._lent.hidden, lower.read, width=width)
        program.add(PUT, 0, self._embedded, lower.read, target_column=width, width=width)
        lower.add(program, num_waves)
        program.add(PUT, 0, lower.states, upper.read, width=width)
        upper.add(program, num_waves)
        program.add(PUT, 0, upper.states, self._lent.normed, width=width)
        layer = self._layer
        program.add(
            PRODUCT, 0, self._lent.normed, self._keys, weight=layer.keys_and_values, bias=layer.keys_and_values_bias
        )
        add_keys(program, 0, layer, self._keys, self._config, 0)
        return program

    def _draft_program(self) -> Program:
        """The layer and the logits, from the upper states in `hidden`; keys and values are rewritten, unchanged."""
        program, lent, width = Program(), self._lent, self._config.hidden_size
        program.add(PUT, 0, lent.hidden, lent.normed, width=width)
        add_layer(program, 0, self._layer, lent, self._config, lent.normed)
        program.add(PUT, 0, lent.hidden, self._read, width=width)
        self._head.add(program, 0, self._read)
        return program


def rows_of(blocks: Sequence[BlockOfRows]) -> Rows:
    """The rows of `blocks` as a batch with logits of all rows: a segment per block.

    The visible slots that fill pages in order are a block's pages; the slots after these are a branch.
    """
    count = sum(len(block.slots) for block in blocks)
    natural = [_natural_length(block.visible) for block in blocks]
    pages = [block.visible[:length:PAGE_SIZE] // PAGE_SIZE for block, length in zip(blocks, natural, strict=True)]
    branches = [block.visible[length:] for block, length in zip(blocks, natural, strict=True)]
    sizes = [len(block.slots) for block in blocks]
    return Rows(
        token_ids=np.zeros(count, np.int32),
        positions=_int32([block.positions for block in blocks]),
        slots=_int32([block.slots for block in blocks]),
        segments=np.repeat(np.arange(len(blocks), dtype=np.int32), sizes),
        page_tables=_padded(pages),
        natural_lengths=np.repeat(np.array(natural, np.int32), sizes),
        branch_slots=np.repeat(_padded(branches), sizes, axis=0),
        logit_rows=np.arange(count, dtype=np.int32),
        num_keys=np.repeat(np.array([len(block.visible) for block in blocks], np.int32), sizes),
    )


def _natural_length(visible: np.ndarray) -> int:
    """Number of leading slots that fill pages in order."""
    apart = visible != slot_of(visible[::PAGE_SIZE] // PAGE_SIZE, np.arange(len(visible)))
    return int(apart.argmax()) if apart.any() else len(visible)


def _int32(parts: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate(parts).astype(np.int32)


def _padded(lists: Sequence[np.ndarray]) -> np.ndarray:
    """[lists, longest] int32, -1 after the end of each."""
    padded = np.full((len(lists), max(len(one) for one in lists)), -1, np.int32)
    for row, one in zip(padded, lists, strict=True):
        row[: len(one)] = one
    return padded
