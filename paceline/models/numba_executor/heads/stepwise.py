"""`NumbaStepNet`: the base of heads without attention on the CPU kernels; subclasses define the levels.

Each level is one compiled call, and so is a whole greedy chain (`draft_chains`). Not for files (`models/heads/layouts`)
or for sampling (`drafters/heads`).
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from paceline.models.chains import ChainDraft
from paceline.models.numba_executor.heads.greedy import drafted
from paceline.models.numba_executor.heads.machine import Machine, Tables, batch_of_states
from paceline.models.numba_executor.heads.material import Material
from paceline.models.numba_executor.heads.program import ARGMAX, Buffer, Buffers, Program

Item = TypeVar("Item")


class NumbaStepNet:
    """A `nets.StepNet`; subclasses define what a level computes.

    Args:
        material: the head and what it takes from its target (`build.make_net` makes it).
    """

    eps = 1e-6
    """Epsilon of the norms, if any."""

    draws_chains = verifies_early = False

    def __init__(self, material: Material) -> None:
        self.record = material.record
        self._buffers = Buffers()
        self._state = self._buffers.floats(self.record.config.target.hidden_size)
        self._pack(material)
        self._machine: Machine = material.machine(self._buffers, 0, self.eps)
        self._steps, self._chains = Tables(self._step_program), Tables(self._chain_program)

    def begin(self, hidden: np.ndarray) -> np.ndarray:
        """See `nets.StepNet.begin`."""
        return hidden

    def step(self, level: int, states: np.ndarray, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `nets.StepNet.step`."""
        count, table = len(tokens), self._steps(level)
        self._machine.reserve(count, count, 1, len(table))
        self._machine.floats(self._above(level), count)[:] = states
        self._machine.run(table, batch_of_states(tokens), None)
        logits, size = self._logits(level)
        return self._machine.floats(logits, count)[:, :size], self._machine.floats(self._below(level), count)

    def draft_chains(self, states: np.ndarray, tokens: np.ndarray, num_tokens: int) -> ChainDraft:
        """A greedy chain for each request, all in one compiled call.

        Args:
            states: [n, state] of `begin`.
            tokens: [n] last committed ones.
            num_tokens: tokens to draft, 1 to the number of steps.
        """
        count, table = len(tokens), self._chains(num_tokens, len(tokens))
        self._machine.reserve(count * num_tokens, count * num_tokens, 1, len(table))
        self._machine.floats(self._above(0), count)[:] = states
        batch = batch_of_states(tokens, num_tokens)
        self._machine.run(table, batch, None)
        return drafted(batch, num_tokens, count)

    def _pack(self, material: Material) -> None:
        """Add the weights to the pool, and buffers."""
        raise NotImplementedError

    def _above(self, level: int) -> Buffer:
        """The buffer of a level's input."""
        raise NotImplementedError

    def _below(self, level: int) -> Buffer:
        """The buffer of the next level's input."""
        raise NotImplementedError

    def _logits(self, level: int) -> tuple[Buffer, int]:
        """The buffer of a level's logits, and their number."""
        raise NotImplementedError

    def _add_level(self, program: Program, level: int, span: int) -> None:
        """Add states and logits after the tokens of `span`."""
        raise NotImplementedError

    def _step_program(self, level: int) -> Program:
        program = Program()
        self._add_level(program, level, 0)
        return program

    def _chain_program(self, num_tokens: int, num_requests: int) -> Program:
        """Level by level; span l + 1 holds what level l drafts."""
        program = Program()
        for level in range(num_tokens):
            self._add_level(program, level, level)
            logits, size = self._logits(level)
            program.add(ARGMAX, level + 1, logits, width=size)
        return program


def of_level(items: Sequence[Item], level: int) -> Item:
    """The level's own item, or the last one, which the levels after it share."""
    return items[min(level, len(items) - 1)]
