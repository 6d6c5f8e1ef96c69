"""The parts all families share: norms, rotation, attention over cached slots, feed-forward.

A family is a `ModelConfig`, never a copy of these. Shapes: M rows, H query heads, K key heads, D = head_dim.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.config import ModelConfig
from paceline.models.experts import Experts
from paceline.models.torch_executor.cache import SegmentView, TorchKVCache
from paceline.models.torch_executor.split_layers import RowParallelLinear, Sum, alone


@dataclass(frozen=True, eq=False, slots=True)
class Pass:
    """What every layer of one forward pass needs besides the hidden states.

    Attributes:
        cosines, sines: [M, 1, D] of the rows' rotary angles; None where positions are learned.
        slots: [M] cache slot that receives each row's key and value.
        views: what the rows of each segment see.
        weights: per view a sum [m, n] to which each layer adds its attention, mean over heads; None when not wanted.
    """

    cosines: Tensor | None
    sines: Tensor | None
    slots: Tensor
    views: list[SegmentView]
    cache: TorchKVCache
    weights: list[Tensor] | None = None


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019), inside in float32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self._eps)
        return self.weight * scaled.to(x.dtype)


def make_norm(config: ModelConfig) -> nn.Module:
    """The norm in front of attention, feed-forward and head."""
    if config.norm == "layer":
        return nn.LayerNorm(config.hidden_size, eps=config.norm_eps)
    return RMSNorm(config.hidden_size, config.norm_eps)


def rotary_tables(positions: Tensor, inverse_frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [M, 1, D] of `positions` [M] times `inverse_frequencies` [D / 2], once for either half."""
    angles = positions.float()[:, None] * inverse_frequencies
    angles = torch.cat([angles, angles], dim=-1)[:, None, :]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, step: Pass) -> Tensor:
    """Turn the pairs (i, i + D / 2) of x [M, heads, D] by the rows' angles; x itself where positions are learned."""
    if step.cosines is None or step.sines is None:
        return x
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x.float() * step.cosines + turned * step.sines).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023): H / K query heads share one key head; K = H is the plain kind."""

    def __init__(self, config: ModelConfig, total: Sum = alone) -> None:
        super().__init__()
        self._heads, self._key_heads, self._head_dim = (
            config.num_attention_heads, config.num_key_value_heads, config.head_dim
        )  # fmt: skip
        hidden, bias = config.hidden_size, config.attention_bias
        self.query = nn.Linear(hidden, self._heads * self._head_dim, bias=bias)
        self.key = nn.Linear(hidden, self._key_heads * self._head_dim, bias=bias)
        self.value = nn.Linear(hidden, self._key_heads * self._head_dim, bias=bias)
        self.out = RowParallelLinear(self._heads * self._head_dim, hidden, config.attention_out_bias, total)
        self.query_norm = RMSNorm(self._head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.key_norm = RMSNorm(self._head_dim, config.norm_eps) if config.qk_norm else nn.Identity()

    def forward(self, x: Tensor, layer: int, step: Pass) -> Tensor:
        query = self.query_norm(self.query(x).view(-1, self._heads, self._head_dim))
        key = self.key_norm(self.key(x).view(-1, self._key_heads, self._head_dim))
        keys, values = step.cache.keys[layer], step.cache.values[layer]
        keys[step.slots] = rotate(key, step)
        values[step.slots] = self.value(x).view(-1, self._key_heads, self._head_dim)
        mixed = self._attend(rotate(query, step), keys, values, step)
        return self.out(mixed.flatten(1))

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, step: Pass) -> Tensor:
        """[M, H, D] values mixed by softmax(query . key / sqrt(D)) over the slots each row sees."""
        mixed = torch.empty_like(query)
        for i, view in enumerate(step.views):
            q, k, v = (t.transpose(0, 1)[None] for t in (query[view.rows], keys[view.slots], values[view.slots]))
            found = functional.scaled_dot_product_attention(q, k, v, attn_mask=view.mask, enable_gqa=True)
            mixed[view.rows] = found[0].transpose(0, 1)
            if step.weights is not None:
                step.weights[i] += self._weights(q[0], k[0], view.mask)
        return mixed

    def _weights(self, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        """[m, n] softmax(query . key / sqrt(D)) of query [H, m, D] and key [K, n, D], mean over heads."""
        key = key.repeat_interleave(self._heads // self._key_heads, dim=0)
        scores = query.float() @ key.float().transpose(1, 2) / self._head_dim**0.5
        return scores.masked_fill(~mask, -torch.inf).softmax(dim=-1).mean(dim=0)


class FeedForward(nn.Module):
    """down(silu(gate(x)) * up(x)) (SwiGLU, Shazeer 2020), or down(gelu(up(x))) as in GPT-2."""

    def __init__(self, config: ModelConfig, total: Sum = alone) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate = nn.Linear(hidden, inner, bias=bias) if config.mlp == "gated_silu" else None
        self.up = nn.Linear(hidden, inner, bias=bias)
        self.down = RowParallelLinear(inner, hidden, bias, total)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(functional.gelu(self.up(x), approximate="tanh"))
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class MixtureOfExperts(nn.Module):
    """Every row takes the experts its router finds most probable, and the shared one where there is one.

    Shazeer et al. 2017; the layouts of Qwen2-MoE, Qwen3-MoE and Mixtral.
    """

    def __init__(self, config: ModelConfig, experts: Experts) -> None:
        super().__init__()
        self._experts = experts
        self.router = nn.Linear(config.hidden_size, experts.num_experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(config) for _ in range(experts.num_experts))
        shared = experts.shared_intermediate_size
        self.shared = FeedForward(replace(config, intermediate_size=shared)) if shared else None
        self.shared_gate = nn.Linear(config.hidden_size, 1, bias=False) if shared else None

    def forward(self, x: Tensor) -> Tensor:
        probs = torch.softmax(self.router(x).float(), dim=-1)
        shares, chosen = probs.topk(self._experts.num_experts_per_tok, dim=-1)
        if self._experts.norm_topk_prob:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        mixed = torch.zeros_like(x)
        for number in chosen.unique().tolist():
            rows, choices = torch.nonzero(chosen == number, as_tuple=True)
            mixed[rows] += self.experts[number](x[rows]) * shares[rows, choices, None].to(x.dtype)
        if self.shared is not None and self.shared_gate is not None:
            mixed = mixed + torch.sigmoid(self.shared_gate(x)) * self.shared(x)
        return mixed


def make_feed_forward(config: ModelConfig, total: Sum = alone) -> nn.Module:
    """The feed-forward of a layer, dense or a mixture."""
    return MixtureOfExperts(config, config.experts) if config.experts else FeedForward(config, total)


class Layer(nn.Module):
    """One transformer block, norms in front; `total` sums over the ranks that share it."""

    def __init__(self, config: ModelConfig, total: Sum = alone) -> None:
        super().__init__()
        self.attention_norm, self.attention = make_norm(config), Attention(config, total)
        self.feed_forward_norm, self.feed_forward = make_norm(config), make_feed_forward(config, total)

    def forward(self, x: Tensor, layer: int, step: Pass) -> Tensor:
        x = x + self.attention(self.attention_norm(x), layer, step)
        return x + self.feed_forward(self.feed_forward_norm(x))
