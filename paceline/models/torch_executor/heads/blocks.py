"""Modules that several families share: norms, rotation, a decoder layer with the names of published files."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.rope import inverse_frequencies
from paceline.models.heads.record import HeadConfig


class Norm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019), in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


def linear(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    """A linear layer with normally distributed weights of standard deviation 0.02 and zero bias."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=0.02)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class Rotation(nn.Module):
    """Rotary positions: pairs (i, i + D / 2) are rotated by position times frequency (Su et al. 2021)."""

    frequencies: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        values = inverse_frequencies(config.rope_theta, config.head_dim, config.rope_inv_freq_scale)
        self.register_buffer("frequencies", torch.from_numpy(values).float(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """x [n, heads, D] rotated for `positions` [n]."""
        angles = positions.float()[:, None, None] * self.frequencies
        cosines, sines = angles.cos(), angles.sin()
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)


class SelfAttention(nn.Module):
    """The projections of an attention layer with input width `inputs`; the caller computes attention."""

    def __init__(self, config: ModelConfig, inputs: int) -> None:
        super().__init__()
        self.num_heads, self.num_key_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        bias = config.attention_bias
        self.q_proj = linear(inputs, self.num_heads * self.head_dim, bias)
        self.k_proj = linear(inputs, self.num_key_heads * self.head_dim, bias)
        self.v_proj = linear(inputs, self.num_key_heads * self.head_dim, bias)
        self.o_proj = linear(self.num_heads * self.head_dim, config.hidden_size, config.attention_out_bias)
        if config.qk_norm:
            self.q_norm, self.k_norm = (Norm(self.head_dim, config.norm_eps) for _ in range(2))
        self.rotate = Rotation(config)

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotated queries [n, heads, D] of x [n, inputs]."""
        query = self.q_proj(x).view(-1, self.num_heads, self.head_dim)
        return self.rotate(self.q_norm(query) if hasattr(self, "q_norm") else query, positions)

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys and values [n, key heads, D] of x [n, inputs]."""
        key = self.k_proj(x).view(-1, self.num_key_heads, self.head_dim)
        value = self.v_proj(x).view(-1, self.num_key_heads, self.head_dim)
        return self.rotate(self.k_norm(key) if hasattr(self, "k_norm") else key, positions), value


class GatedFeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.gate_proj, self.up_proj = linear(hidden, inner), linear(hidden, inner)
        self.down_proj = linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    """A layer with norms in front of attention and feed-forward; EAGLE-1's first layer has none before attention."""

    def __init__(self, config: ModelConfig, input_norm: bool = True) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.norm_eps
        self.input_layernorm = Norm(size, eps) if input_norm else nn.Identity()
        self.post_attention_layernorm = Norm(size, eps)
        self.self_attn, self.mlp = SelfAttention(config, size), GatedFeedForward(config)

    def enter(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Input of attention and residual, [n, hidden] each."""
        return self.input_layernorm(x), x

    def leave(self, residual: Tensor, mixed: Tensor) -> Tensor:
        """Output of the layer [n, hidden], from the residual and the output of attention [n, heads * D]."""
        x = residual + self.self_attn.o_proj(mixed)
        return x + self.mlp(self.post_attention_layernorm(x))


class SharesTables(nn.Module):
    """A network whose embedding and output head are its own or the target's; the target's are not saved.

    Args:
        config: decides which (`owns_embedding`, `owns_head`).
        embedding: [vocabulary, hidden] of the target.
        rows: [draft vocabulary, hidden] of the target's head.
    """

    def __init__(self, config: HeadConfig, embedding: Tensor, rows: Tensor) -> None:
        super().__init__()
        self.config = config
        if config.owns_embedding:
            self.embed_tokens = nn.Embedding(len(embedding), embedding.shape[1])
            self.embed_tokens.weight.data.copy_(embedding)
        if config.owns_head:
            self.lm_head = linear(rows.shape[1], len(rows))
            self.lm_head.weight.data.copy_(rows)
        self.register_buffer("shared_embedding", None if config.owns_embedding else embedding, persistent=False)
        self.register_buffer("shared_rows", None if config.owns_head else rows, persistent=False)

    @property
    def rows(self) -> Tensor:
        """[draft vocabulary, hidden] of the output head."""
        return self.lm_head.weight if self.config.owns_head else self.shared_rows  # type: ignore[return-value]

    @property
    def table(self) -> Tensor:
        """[vocabulary, hidden] of the embedding."""
        return self.embed_tokens.weight if self.config.owns_embedding else self.shared_embedding  # type: ignore[return-value]

    def embed(self, tokens: Tensor) -> Tensor:
        """[n, hidden] of target ids [n]."""
        return self.table[tokens].float()
