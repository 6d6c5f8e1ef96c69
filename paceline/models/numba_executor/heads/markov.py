"""Additions of a DSpark head to its block: a bias by the previous token, and the probability of acceptance."""

import numpy as np

from paceline.models.numba_executor.gemm import PANEL
from paceline.models.numba_executor.heads.machine import Machine, Tables, batch_of_states
from paceline.models.numba_executor.heads.material import Material, OutputHead
from paceline.models.numba_executor.heads.program import LOOKUP, PRODUCT, PUT, Buffer, Buffers, Program


class MarkovBias:
    """The low-rank bias markov_w2 markov_w1[previous token]."""

    def __init__(self, material: Material, buffers: Buffers, head: OutputHead) -> None:
        rank = material.record.config.markov_rank
        self.table = material.pool.table(material.tensors["markov_head.markov_w1.weight"])
        self._matrix = material.pool.matrix(material.tensors["markov_head.markov_w2.weight"])
        self.before, self._codes = buffers.floats(rank), buffers.codes(rank)
        self._alone, self._size = buffers.floats(head.logits.width, per_asked=True), head.size
        self._tables = Tables(self._program)

    def run(self, machine: Machine, tokens: np.ndarray) -> np.ndarray:
        """Bias [n, draft vocabulary] after `tokens` [n]."""
        table = self._tables()
        machine.reserve(len(tokens), len(tokens), 1, len(table))
        machine.run(table, batch_of_states(tokens), None)
        return machine.floats(self._alone, len(tokens))[:, : self._size]

    def add(self, program: Program, span: int, logits: Buffer, first: int) -> None:
        """logits, from element `first` on, += the bias after the tokens of `span`."""
        self._add_row(program, span)
        program.add(PRODUCT, span, self._codes, logits, weight=self._matrix, target_column=first, flag=1)

    def _add_row(self, program: Program, span: int) -> None:
        program.add(LOOKUP, span, None, self.before, weight=self.table)
        program.add(PUT, span, self.before, self._codes, width=self.before.width)

    def _program(self) -> Program:
        program = Program()
        self._add_row(program, 0)
        program.add(PRODUCT, 0, self._codes, self._alone, weight=self._matrix)
        return program


class Confidence:
    """Probability of acceptance of a position's token: sigmoid(proj([state, markov_w1[previous]]))."""

    def __init__(self, material: Material, buffers: Buffers, markov: MarkovBias | None) -> None:
        width = material.layer.hidden_size
        self._markov = markov if material.record.config.confidence_markov else None
        self._matrix = material.pool.matrix(material.tensors["confidence_head.proj.weight"])
        self._bias = float(material.tensors["confidence_head.proj.bias"][0])
        self._state = buffers.floats(width)
        self._read = buffers.codes(width + (0 if self._markov is None else self._markov.before.width))
        self._out = buffers.floats(PANEL)
        self._tables = Tables(self._program)

    def run(self, machine: Machine, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """[n] from states [n, hidden] and previous tokens [n]."""
        table = self._tables()
        machine.reserve(len(tokens), 0, 1, len(table))
        machine.floats(self._state, len(tokens))[:] = states
        machine.run(table, batch_of_states(tokens), None)
        return 1 / (1 + np.exp(-machine.floats(self._out, len(tokens))[:, 0] - np.float32(self._bias)))

    def _program(self) -> Program:
        program, width = Program(), self._state.width
        program.add(PUT, 0, self._state, self._read, width=width)
        if self._markov is not None:
            before = self._markov.before
            program.add(LOOKUP, 0, None, before, weight=self._markov.table)
            program.add(PUT, 0, before, self._read, target_column=width, width=before.width)
        program.add(PRODUCT, 0, self._read, self._out, weight=self._matrix)
        return program
