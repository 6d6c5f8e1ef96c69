"""Hydra heads on the CPU kernels (Ankner et al. 2024, arXiv 2402.05109). Not for their files.

The head of a level reads the target's hidden state and the embeddings of all tokens from the last committed one on. The
variant with an attention layer of its own before the heads (``prefix-mlp``) is not supported.
"""

import numpy as np

from paceline.errors import UnsupportedModel
from paceline.models.numba_executor.heads.material import Material
from paceline.models.numba_executor.heads.program import PRODUCT, PUT, RESIDUAL_SILU, Buffer, Program
from paceline.models.numba_executor.heads.stepwise import NumbaStepNet


class NumbaHydra(NumbaStepNet):
    """A state is [hidden | embedding | embedding | ..], with zeros for tokens that are not drafted yet."""

    def begin(self, hidden: np.ndarray) -> np.ndarray:
        """See `nets.StepNet.begin`."""
        return np.pad(hidden, ((0, 0), (0, self._path.width - hidden.shape[1])))

    def _pack(self, material: Material) -> None:
        config, buffers, width = self.record.config, self._buffers, self.record.config.target.hidden_size
        if config.variant not in ("", "mlp"):
            raise UnsupportedModel(f"hydra_head_arch: {config.variant!r} is not run on the CPU kernels; only 'mlp' is")
        steps, depth = range(config.num_steps), range(1, config.block_depth)
        self._path = buffers.floats((config.num_steps + 1) * width)
        self._paths = [buffers.codes((step + 2) * width) for step in steps]
        self._codes, self._branch = buffers.codes(width), (buffers.floats(width), buffers.floats(width))
        self._first = [
            (material.linear(f"blocks.{k}.0.residual"), material.linear(f"blocks.{k}.0.linear")) for k in steps
        ]
        self._blocks = [[material.linear(f"blocks.{k}.{j}.linear") for j in depth] for k in steps]
        self._embedding = material.embedding()
        self._heads = [material.head(buffers, f"lm_heads.{k}.weight") for k in steps]

    def _above(self, level: int) -> Buffer:
        return self._path

    def _below(self, level: int) -> Buffer:
        return self._path

    def _logits(self, level: int) -> tuple[Buffer, int]:
        return self._heads[level].logits, self._heads[level].size

    def _add_level(self, program: Program, level: int, span: int) -> None:
        path, codes, width = self._path, self._paths[level], self._codes.width
        self._embedding.add(program, span, path, (level + 1) * width)
        program.add(PUT, span, path, codes, width=codes.width)
        for (matrix, bias), branch in zip(self._first[level], self._branch, strict=True):
            program.add(PRODUCT, span, codes, branch, weight=matrix, bias=bias)
        state, other = self._branch
        program.add(RESIDUAL_SILU, span, state, other, width=width)
        for matrix, bias in self._blocks[level]:
            state, other = other, state
            program.add(PUT, span, state, self._codes, width=width)
            program.add(PRODUCT, span, self._codes, other, weight=matrix, bias=bias)
            program.add(RESIDUAL_SILU, span, state, other, width=width)
        program.add(PUT, span, other, self._codes, width=width)
        self._heads[level].add(program, span, self._codes)
