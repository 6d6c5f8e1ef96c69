"""MLP speculators on the CPU kernels (Wertheimer et al. 2024, arXiv 2404.19124). Not for their files."""

import math

import numpy as np

from paceline.models.numba_executor.heads.material import Material
from paceline.models.numba_executor.heads.program import MIX_NORM_GELU, NONE, PRODUCT, PUT, Buffer, Program
from paceline.models.numba_executor.heads.stepwise import NumbaStepNet, of_level


class NumbaMlpSpeculator(NumbaStepNet):
    """Wertheimer et al. 2024 (arXiv 2404.19124): a recurrent state that reads one token per level.

    state = gelu(ln(proj(state) * a + embedding * b)), logits = head(state), with a = 0.5^(0.5 / steps) and
    b = embedding_scale * sqrt((1 - a^2) * inner / 2).
    """

    def begin(self, hidden: np.ndarray) -> np.ndarray:
        """See `nets.StepNet.begin`."""
        if not self.record.config.scale_input:
            return hidden
        mean_squares = np.mean(np.square(hidden), axis=-1, keepdims=True)
        return (hidden / np.sqrt(2 * (mean_squares + np.float32(self.eps)))).astype(np.float32)

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
        self._spread = buffers.floats(width) if self._out != NONE else self._inner_state
        self._read = buffers.codes(width) if self._out != NONE else self._inner_codes
        self._heads = [material.head(buffers, f"head.{i}.weight") for i in range(own if config.owns_head else 1)]

    def _above(self, level: int) -> Buffer:
        return self._inner_state if level else self._state

    def _below(self, level: int) -> Buffer:
        return self._inner_state

    def _logits(self, level: int) -> tuple[Buffer, int]:
        head = of_level(self._heads, level)
        return head.logits, head.size

    def _add_level(self, program: Program, level: int, span: int) -> None:
        """Add states and logits after the tokens of `span`."""
        state = self._inner_state
        above, codes = (state, self._inner_codes) if level else (self._state, self._entering)
        of_level(self._embeddings, level).add(program, span, self._looked_up)
        if self._into != NONE:
            program.add(PUT, span, self._looked_up, self._embed_codes, width=self._looked_up.width)
            program.add(PRODUCT, span, self._embed_codes, self._embedded, weight=self._into)
        program.add(PUT, span, above, codes, width=above.width)
        program.add(PRODUCT, span, codes, state, weight=of_level(self._projections, level))
        weight, bias = of_level(self._norms, level)
        program.add(
            MIX_NORM_GELU, span, self._embedded, state, weight=weight, bias=bias, scale=self._factors, width=state.width
        )
        program.add(PUT, span, state, self._inner_codes, width=state.width)
        if self._out != NONE:
            program.add(PRODUCT, span, self._inner_codes, self._spread, weight=self._out)
            program.add(PUT, span, self._spread, self._read, width=self._spread.width)
        of_level(self._heads, level).add(program, span, self._read)


def _factors(num_steps: int, inner: int, embedding_scale: float) -> tuple[float, float]:
    """Factors of the projected state and of the embedding in the sum that is normed."""
    state = 0.5 ** (0.5 / num_steps)
    return state, embedding_scale * math.sqrt((1 - state**2) * inner / 2)
