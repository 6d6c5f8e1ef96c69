"""Heads that read only the target's hidden state, on the CPU kernels: Medusa and blockwise heads.

Levels do not depend on drafted tokens, so a chain reads an output head shared by all levels only once. Not for files.
"""

from paceline.models.numba_executor.heads.material import Material, OutputHead
from paceline.models.numba_executor.heads.program import (
    ARGMAX,
    COPY,
    PRODUCT,
    PUT,
    RELU,
    RESIDUAL_SILU,
    Buffer,
    Program,
)
from paceline.models.numba_executor.heads.stepwise import NumbaStepNet, of_level


class StateOnlyNet(NumbaStepNet):
    """Levels that read the target's state; subclasses define `_add_read`."""

    _heads: list[OutputHead]
    _read: Buffer

    def _above(self, level: int) -> Buffer:
        return self._state

    def _below(self, level: int) -> Buffer:
        return self._state

    def _logits(self, level: int) -> tuple[Buffer, int]:
        head = of_level(self._heads, level)
        return head.logits, head.size

    def _add_read(self, program: Program, level: int, first_row: int) -> None:
        """Write the input of a level's output head to `_read` from `first_row` on."""
        raise NotImplementedError

    def _add_level(self, program: Program, level: int, span: int) -> None:
        self._add_read(program, level, 0)
        of_level(self._heads, level).add(program, span, self._read)

    def _chain_program(self, num_tokens: int, num_requests: int) -> Program:
        program = Program()
        if len(self._heads) == 1:
            for level in range(num_tokens):
                self._add_read(program, level, num_requests * level)
            self._add_best(program, 0, num_tokens + 1)
            return program
        for level in range(num_tokens):
            self._add_read(program, level, 0)
            self._add_best(program, level, level + 1)
        return program

    def _add_best(self, program: Program, level: int, span: int) -> None:
        """Logits of the rows of `_read`, and their argmax."""
        head = of_level(self._heads, level)
        head.add(program, span, self._read)
        program.add(ARGMAX, span, head.logits, width=head.size)


class NumbaMedusa(StateOnlyNet):
    """Cai et al. 2024: residual blocks x + silu(W x + b), a stack of them per level."""

    def _pack(self, material: Material) -> None:
        config, buffers, width = self.record.config, self._buffers, self._state.width
        names = [[f"blocks.{k}.layers.{j}" for j in range(config.block_depth)] for k in range(config.num_steps)]
        self._blocks = [[material.linear(name) for name in level] for level in names]
        self._codes, self._read = buffers.codes(width), buffers.codes(width)
        self._branch = (buffers.floats(width), buffers.floats(width))
        own = config.num_steps if config.owns_head else 1
        self._heads = [material.head(buffers, f"lm_heads.{i}.weight") for i in range(own)]

    def _add_read(self, program: Program, level: int, first_row: int) -> None:
        state, width = self._state, self._state.width
        for j, (matrix, bias) in enumerate(self._blocks[level]):
            branch = self._branch[j % 2]
            program.add(PUT, 0, state, self._codes, width=width)
            program.add(PRODUCT, 0, self._codes, branch, weight=matrix, bias=bias)
            program.add(RESIDUAL_SILU, 0, state, branch, width=width)
            state = branch
        program.add(PUT, 0, state, self._read, width=width, target_column=first_row * width)


class NumbaBlockwise(StateOnlyNet):
    """Stern et al. 2018, section 6: x + down(relu(up(x))) per level, before the target's own output head."""

    def _pack(self, material: Material) -> None:
        config, buffers, width = self.record.config, self._buffers, self._state.width
        steps = range(config.num_steps)
        self._layers = [(material.linear(f"blocks.{i}.up"), material.linear(f"blocks.{i}.down")) for i in steps]
        self._codes, self._read = buffers.codes(width), buffers.codes(width)
        self._inner, self._inner_codes = buffers.floats(config.inner_size), buffers.codes(config.inner_size)
        self._branch = buffers.floats(width)
        self._heads = [material.head(buffers)]

    def _add_read(self, program: Program, level: int, first_row: int) -> None:
        state, width, inner = self._state, self._state.width, self._inner.width
        (up, up_bias), (down, down_bias) = self._layers[level]
        program.add(PUT, 0, state, self._codes, width=width)
        program.add(PRODUCT, 0, self._codes, self._inner, weight=up, bias=up_bias)
        program.add(RELU, 0, None, self._inner, width=inner)
        program.add(PUT, 0, self._inner, self._inner_codes, width=inner)
        program.add(COPY, 0, state, self._branch, width=width)
        program.add(PRODUCT, 0, self._inner_codes, self._branch, weight=down, bias=down_bias, flag=1)
        program.add(PUT, 0, self._branch, self._read, width=width, target_column=first_row * width)
