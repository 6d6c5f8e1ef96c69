"""Heads without attention on the CPU kernels: MLP speculators and Medusa, a small network per level.

Each level is one compiled call, and so is a whole greedy chain (`draft_greedy`). Not for files (`models/heads/layouts`)
or for drawing (`drafters/heads`).
"""

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from paceline.models.numba_executor.heads.greedy import GreedyDraft, drafted
from paceline.models.numba_executor.heads.machine import Machine, Tables, batch_of_states
from paceline.models.numba_executor.heads.material import Material
from paceline.models.numba_executor.heads.program import (
    ARGMAX,
    MIX_NORM_GELU,
    NONE,
    PRODUCT,
    PUT,
    RESIDUAL_SILU,
    Buffer,
    Buffers,
    Program,
)

Item = TypeVar("Item")

_EPS = 1e-6
"""Of an MLP speculator's norms (fms-extras)."""


class NumbaStepNet:
    """What `nets.StepNet` asks for; families say what a level computes.

    Args:
        material: the head and what it takes from its target (`build.make_net` makes it).
    """

    def __init__(self, material: Material) -> None:
        self.record = material.record
        self._buffers = Buffers()
        self._state = self._buffers.floats(self.record.config.target.hidden_size)
        self._pack(material)
        self._machine: Machine = material.machine(self._buffers, 0, _EPS)
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

    def draft_greedy(self, hidden: np.ndarray, tokens: np.ndarray, num_tokens: int) -> GreedyDraft:
        """A chain of the likeliest tokens for each request, all in one compiled call.

        Args:
            hidden: [n, taps * target hidden], as for `begin`.
            tokens: [n] last committed ones.
            num_tokens: tokens to draft, 1 to the number of steps.
        """
        count, table = len(tokens), self._chains(num_tokens, len(tokens))
        self._machine.reserve(count * num_tokens, count * num_tokens, 1, len(table))
        self._machine.floats(self._state, count)[:] = self.begin(hidden)
        batch = batch_of_states(tokens, num_tokens)
        self._machine.run(table, batch, None)
        return drafted(batch, num_tokens, count)

    def _pack(self, material: Material) -> None:
        """Put the weights into the pool and ask for buffers."""
        raise NotImplementedError

    def _above(self, level: int) -> Buffer:
        """Where a level reads its states."""
        raise NotImplementedError

    def _below(self, level: int) -> Buffer:
        """Where a level leaves the states of the next."""
        raise NotImplementedError

    def _logits(self, level: int) -> tuple[Buffer, int]:
        """Where a level leaves its logits, and how many there are."""
        raise NotImplementedError

    def _step_program(self, level: int) -> Program:
        raise NotImplementedError

    def _chain_program(self, num_tokens: int, num_requests: int) -> Program:
        raise NotImplementedError


class NumbaMlpSpeculator(NumbaStepNet):
    """Wertheimer et al. 2024 (arXiv 2404.19124): a state that takes in one drafted token per level.

    state = gelu(ln(proj(state) * a + embedding * b)), logits = head(state), with a^2 + b^2 / (inner / 2) = 1 and
    a = 0.5^(0.5 / steps).
    """

    def begin(self, hidden: np.ndarray) -> np.ndarray:
        """See `nets.StepNet.begin`."""
        if not self.record.config.scale_input:
            return hidden
        mean_squares = np.mean(np.square(hidden), axis=-1, keepdims=True)
        return (hidden / np.sqrt(2 * (mean_squares + np.float32(_EPS)))).astype(np.float32)

    def _pack(self, material: Material) -> None:
        config, pool, tensors, buffers = self.record.config, material.pool, material.tensors, self._buffers
        inner, width = config.inner_size, config.target.hidden_size
        own = 1 if config.tied else config.num_steps
        num_projections = min(config.num_steps, 2) if config.tied else config.num_steps
        self._projections = [pool.matrix(tensors[f"proj.{i}.weight"]) for i in range(num_projections)]
        self._norms = [(material.vector(f"ln.{i}.weight"), material.vector(f"ln.{i}.bias")) for i in range(own)]
        self._factors = pool.vector(np.array(_factors(config.num_steps, inner, config.embedding_scale), np.float32))
        self._embeddings = [material.embedding(f"emb.{i}.weight") for i in range(own if config.owns_embedding else 1)]
        self._into, self._out = (material.matrix_or_none(f"{name}_proj.weight") for name in ("embed", "head"))
        self._entering = buffers.codes(width)
        self._looked_up = buffers.floats(inner if config.owns_embedding else width)
        self._embed_codes = buffers.codes(self._looked_up.width)
        self._embedded = buffers.floats(inner) if self._into != NONE else self._looked_up
        self._inner_state, self._inner_codes = buffers.floats(inner), buffers.codes(inner)
        self._mixed = buffers.floats(inner)
        self._spread = buffers.floats(width) if self._out != NONE else self._inner_state
        self._read = buffers.codes(width) if self._out != NONE else self._inner_codes
        self._heads = [material.head(buffers, f"head.{i}.weight") for i in range(own if config.owns_head else 1)]

    def _above(self, level: int) -> Buffer:
        return self._inner_state if level else self._state

    def _below(self, level: int) -> Buffer:
        return self._inner_state

    def _logits(self, level: int) -> tuple[Buffer, int]:
        head = _of_level(self._heads, level)
        return head.logits, head.size

    def _step_program(self, level: int) -> Program:
        program = Program()
        self._add_level(program, level, 0)
        return program

    def _chain_program(self, num_tokens: int, num_requests: int) -> Program:
        program = Program()
        for level in range(num_tokens):
            self._add_level(program, level, level)
            logits, size = self._logits(level)
            program.add(ARGMAX, level + 1, logits, width=size)
        return program

    def _add_level(self, program: Program, level: int, span: int) -> None:
        """States and logits below the tokens of `span`."""
        state = self._inner_state
        above, codes = (state, self._inner_codes) if level else (self._state, self._entering)
        _of_level(self._embeddings, level).add(program, span, self._looked_up)
        if self._into != NONE:
            program.add(PUT, span, self._looked_up, self._embed_codes, width=self._looked_up.width)
            program.add(PRODUCT, span, self._embed_codes, self._embedded, weight=self._into)
        program.add(PUT, span, above, codes, width=above.width)
        program.add(PRODUCT, span, codes, state, weight=_of_level(self._projections, level))
        weight, bias = _of_level(self._norms, level)
        program.add(
            MIX_NORM_GELU, span, self._embedded, state, weight=weight, bias=bias, scale=self._factors, width=state.width
        )
        program.add(PUT, span, state, self._inner_codes, width=state.width)
        if self._out != NONE:
            program.add(PRODUCT, span, self._inner_codes, self._spread, weight=self._out)
            program.add(PUT, span, self._spread, self._read, width=self._spread.width)
        _of_level(self._heads, level).add(program, span, self._read)


def _of_level(items: Sequence[Item], level: int) -> Item:
    """The level's own item, or the last one, which the levels after it share."""
    return items[min(level, len(items) - 1)]


def _factors(num_steps: int, inner: int, embedding_scale: float) -> tuple[float, float]:
    """What the projected state and the target's embedding are multiplied with before their sum is normed."""
    state = 0.5 ** (0.5 / num_steps)
    return state, embedding_scale * math.sqrt((1 - state**2) * inner / 2)


class NumbaMedusa(NumbaStepNet):
    """Cai et al. 2024: residual blocks x + silu(W x + b) on the target's hidden state, a stack of them per level.

    Tokens above a level play no part, so a chain reads the rows of a head that all levels share once.
    """

    def _pack(self, material: Material) -> None:
        config, buffers, width = self.record.config, self._buffers, self._state.width
        names = [[f"blocks.{k}.layers.{j}" for j in range(config.block_depth)] for k in range(config.num_steps)]
        self._blocks = [
            [(material.pool.matrix(material.tensors[f"{name}.weight"]), material.vector_or_none(f"{name}.bias"))
             for name in level] for level in names
        ]  # fmt: skip
        self._codes = buffers.codes(width)
        self._branch = (buffers.floats(width), buffers.floats(width))
        self._read = buffers.codes(width)
        own = config.num_steps if config.owns_head else 1
        self._heads = [material.head(buffers, f"lm_heads.{i}.weight") for i in range(own)]

    def _above(self, level: int) -> Buffer:
        return self._state

    def _below(self, level: int) -> Buffer:
        return self._state

    def _logits(self, level: int) -> tuple[Buffer, int]:
        head = _of_level(self._heads, level)
        return head.logits, head.size

    def _step_program(self, level: int) -> Program:
        program = Program()
        self._add_blocks(program, level, 0)
        _of_level(self._heads, level).add(program, 0, self._read)
        return program

    def _chain_program(self, num_tokens: int, num_requests: int) -> Program:
        program = Program()
        if len(self._heads) == 1:
            for level in range(num_tokens):
                self._add_blocks(program, level, num_requests * level)
            self._add_best(program, 0, num_tokens + 1)
            return program
        for level in range(num_tokens):
            self._add_blocks(program, level, 0)
            self._add_best(program, level, level + 1)
        return program

    def _add_best(self, program: Program, level: int, span: int) -> None:
        """The likeliest tokens of rows whose states are in `_read`."""
        head = _of_level(self._heads, level)
        head.add(program, span, self._read)
        program.add(ARGMAX, span, head.logits, width=head.size)

    def _add_blocks(self, program: Program, level: int, first_row: int) -> None:
        """What the head of a level reads, to the rows of `_read` from `first_row` on."""
        state, width = self._state, self._state.width
        for j, (matrix, bias) in enumerate(self._blocks[level]):
            branch = self._branch[j % 2]
            program.add(PUT, 0, state, self._codes, width=width)
            program.add(PRODUCT, 0, self._codes, branch, weight=matrix, bias=bias)
            program.add(RESIDUAL_SILU, 0, state, branch, width=width)
            state = branch
        program.add(PUT, 0, state, self._read, width=width, target_column=first_row * width)
