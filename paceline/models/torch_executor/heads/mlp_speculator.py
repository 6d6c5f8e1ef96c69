"""MLP speculators (Wertheimer et al. 2024, arXiv 2404.19124): a state that takes in one drafted token per step.

    s = hidden, or its norm / sqrt(2)
    s = gelu(ln_i(proj_i(s) * sw + z * ew * sqrt(inner / 2)))      (z: embedding of the token above)
    logits = head_i(s)

with sw = 0.5 ** (0.5 / steps) and ew = sqrt(1 - sw ** 2). Where embedding and head are the target's and the state has
another width, `embed_proj` and `head_proj` convert between the widths.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.heads.record import HeadConfig
from paceline.models.torch_executor.heads.blocks import linear

_EPS = 1e-6


class ShiftedNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight + bias, in float32."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, _EPS) + self.bias


class MlpSpeculator(nn.Module):
    """The network; arguments as `SharesTables`, unused where the head has tables of its own."""

    embedding: Tensor
    head_rows: Tensor

    def __init__(self, config: HeadConfig, embedding: Tensor, head: Tensor) -> None:
        super().__init__()
        self.config = config
        steps, own = config.num_steps, 1 if config.tied else config.num_steps
        inner, width = config.inner_size, config.target.hidden_size
        if config.owns_embedding:
            self.emb = nn.ModuleList(_table(config.target.vocab_size, inner) for _ in range(own))
        if config.owns_head:
            self.head = nn.ModuleList(linear(inner, config.draft_vocab_size) for _ in range(own))
        self.proj = nn.ModuleList(
            linear(inner if i else width, inner) for i in range(min(steps, 2) if config.tied else steps)
        )
        self.ln = nn.ModuleList(ShiftedNorm(inner) for _ in range(own))
        if inner != width and not config.owns_embedding:
            self.embed_proj = linear(width, inner)
        if inner != width and not config.owns_head:
            self.head_proj = linear(inner, width)
        self.state_weight = 0.5 ** (0.5 / steps)
        self.embedding_weight = (1 - self.state_weight**2) ** 0.5
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("head_rows", head, persistent=False)

    def width(self, level: int) -> int:
        """Width of the state that a level reads."""
        return self.config.inner_size if level else self.config.target.hidden_size

    def begin(self, hidden: Tensor) -> Tensor:
        """Initial states [n, hidden] from the target's hidden states [n, hidden]."""
        hidden = hidden.float()
        if not self.config.scale_input:
            return hidden
        return functional.rms_norm(hidden, hidden.shape[-1:], eps=_EPS) / 2**0.5

    def step(self, level: int, state: Tensor, tokens: Tensor) -> Tensor:
        """The state [n, inner] after reading `tokens` [n]."""
        own = 0 if self.config.tied else level
        proj = self.proj[min(level, len(self.proj) - 1)]
        share = self.embedding_weight * (self.config.inner_size / 2) ** 0.5
        return functional.gelu(self.ln[own](proj(state) * self.state_weight + self._embed(own, tokens) * share))

    def read(self, level: int, state: Tensor) -> Tensor:
        """Input [n, width of a head row] of the output head."""
        return self.head_proj(state) if hasattr(self, "head_proj") else state

    def rows_of(self, level: int) -> Tensor:
        """Output head [draft vocabulary, width] of `level`."""
        if not self.config.owns_head:
            return self.head_rows
        return self.head[0 if self.config.tied else level].weight  # type: ignore[return-value]

    def _embed(self, own: int, tokens: Tensor) -> Tensor:
        if self.config.owns_embedding:
            return self.emb[own](tokens)
        z = self.embedding[tokens].float() * self.config.embedding_scale
        return self.embed_proj(z) if hasattr(self, "embed_proj") else z


def _table(rows: int, width: int) -> nn.Embedding:
    table = nn.Embedding(rows, width)
    nn.init.trunc_normal_(table.weight, std=width**-0.5)
    return table
