"""Layers that differ in size and have inputs of their own (Gemma 4), in clear torch code.

Shapes: M rows, L layers, H query heads, K key heads, D = head_dim, E = width of the embeddings of a layer's own. Not
for layers that are all alike (`layers.py`).
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.experts import Experts
from paceline.models.architecture.positions import rope_table_of
from paceline.models.torch_executor.attention import AttentionForm
from paceline.models.torch_executor.layers import Layer, MixtureOfExperts, Pass, RMSNorm, rotate
from paceline.models.torch_executor.split_layers import Sum, alone


def make_layer(config: ModelConfig, number: int, total: Sum = alone) -> Layer:
    """Layer `number` of a model."""
    return VariedLayer(config, number) if config.layer_sizes else Layer(config, number, total)


class VariedAttention(nn.Module):
    """Attention of layer `number`, which may read the keys of an earlier layer or take its keys for values."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__()
        sizes, hidden = config.sizes(number), config.hidden_size
        self.heads, self.key_heads, self.head_dim = (
            config.num_attention_heads, sizes.num_key_value_heads, sizes.head_dim
        )  # fmt: skip

        def projection(heads: int) -> nn.Linear:
            return nn.Linear(hidden, heads * self.head_dim, bias=False)

        self.query, self.query_norm = projection(self.heads), RMSNorm(self.head_dim, config.norm_eps)
        self.key = projection(self.key_heads) if sizes.has_keys else None
        self.key_norm = RMSNorm(self.head_dim, config.norm_eps) if sizes.has_keys else None
        self.value = projection(self.key_heads) if sizes.has_values else None
        self.out = nn.Linear(self.heads * self.head_dim, hidden, bias=False)
        self.cache_layer, self.table, self.eps = sizes.cache_layer, rope_table_of(config, number), config.norm_eps
        scale = config.attention_scale or self.head_dim**-0.5
        self.form = AttentionForm(scale, config.attention_softcap, config.window(number))

    def forward(self, x: Tensor, layer: int, step: Pass) -> Tensor:
        angles = step.angles[self.table]
        query = rotate(self.query_norm(self._heads(self.query(x))), *angles)
        keys, values = step.cache.keys[self.cache_layer], step.cache.values[self.cache_layer]
        if self.key is not None and self.key_norm is not None:
            key = self._heads(self.key(x))
            value = key if self.value is None else self._heads(self.value(x))
            keys[step.slots] = rotate(self.key_norm(key), *angles)
            values[step.slots] = functional.rms_norm(value.float(), (self.head_dim,), eps=self.eps).to(value.dtype)
        return self.out(step.attend(query, keys, values, self.form).flatten(1))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim))


class Scales(nn.Module):
    """Numbers that multiply something, the output of a layer or the shares of experts."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count))


class ExpertsBesideDense(MixtureOfExperts):
    """A dense feed-forward plus a mixture, each with norms of its own (see `Experts.beside_dense`)."""

    def __init__(self, config: ModelConfig, experts: Experts) -> None:
        super().__init__(config, experts)
        self.norm, self.shared_out_norm, self.router_norm, self.experts_norm, self.experts_out_norm = (
            RMSNorm(config.hidden_size, config.norm_eps) for _ in range(5)
        )
        self.scales = Scales(experts.num_experts)

    def forward(self, x: Tensor) -> Tensor:
        assert self.shared is not None
        logits = self.router(self.router_norm(x) * x.shape[-1] ** -0.5)
        shares, chosen = self.routed(logits.float())
        shares = shares * self.scales.weight[chosen]
        dense = self.shared_out_norm(self.shared(self.norm(x)))
        return dense + self.experts_out_norm(self.mixed(self.experts_norm(x), shares, chosen))


class LayerInput(nn.Module):
    """x + norm(projection(gelu(gate(x)) * input)), with the layer's own input [M, E] for each row."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.hidden_size_per_layer_input
        self.gate, self.projection = nn.Linear(hidden, width, bias=False), nn.Linear(width, hidden, bias=False)
        self.norm = RMSNorm(hidden, config.norm_eps)

    def forward(self, x: Tensor, own: Tensor) -> Tensor:
        return x + self.norm(self.projection(functional.gelu(self.gate(x), approximate="tanh") * own))


class VariedLayer(Layer):
    """A block with the sizes of layer `number`."""

    def __init__(self, config: ModelConfig, number: int) -> None:
        super().__init__(replace(config, intermediate_size=config.sizes(number).intermediate_size), number)
        self.attention = VariedAttention(config, number)
        self.input = LayerInput(config) if config.hidden_size_per_layer_input else None
        self.scalar = Scales(1) if config.layer_scalars else None
        if config.experts is not None and config.experts.beside_dense:
            self.feed_forward_norm, self.feed_forward = nn.Identity(), ExpertsBesideDense(config, config.experts)

    def forward(self, x: Tensor, layer: int, step: Pass) -> Tensor:
        x = super().forward(x, layer, step)
        if self.input is not None and step.layer_inputs is not None:
            x = self.input(x, step.layer_inputs[:, layer])
        return x if self.scalar is None else x * self.scalar.weight


class LayerInputs(nn.Module):
    """What each layer is given besides hidden states: embeddings of its own, and a projection of the model's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.width, hidden = config.hidden_size_per_layer_input, config.hidden_size
        total = config.num_hidden_layers * self.width
        self.embedding = nn.Embedding(config.vocab_size, total, _weight=torch.empty(config.vocab_size, total))
        self.projection = nn.Linear(hidden, total, bias=False)
        self.norm = RMSNorm(self.width, config.norm_eps)

    def forward(self, token_ids: Tensor, x: Tensor) -> Tensor:
        """[M, L, E] of tokens [M] and their embeddings x [M, hidden], which are scaled already."""
        projected = (self.projection(x) * x.shape[-1] ** -0.5).unflatten(-1, (-1, self.width))
        own = (self.embedding(token_ids) * self.width**0.5).unflatten(-1, (-1, self.width))
        return (self.norm(projected) + own) * 2**-0.5
