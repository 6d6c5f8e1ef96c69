"""The parts all families share: norms, rotation, projections around attention, feed-forward.

A family is a `ModelConfig`, never a copy of these. Shapes: M rows, H query heads, K key heads, D = head_dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.experts import LEAST_TOTAL, Experts
from paceline.models.architecture.family import SWIGLU_ALPHA, SWIGLU_LIMIT
from paceline.models.architecture.latent import LATENT_EPS
from paceline.models.architecture.latent import LatentAttention as Latent
from paceline.models.architecture.positions import NO_TABLE, rope_table_of
from paceline.models.state_book import StateSteps
from paceline.models.torch_executor.attention import Attends, AttentionForm
from paceline.models.torch_executor.cache import TorchKVCache
from paceline.models.torch_executor.recurrent import GatedDeltaNet, MatrixStates, ShortConvolution, StateSpace
from paceline.models.torch_executor.split_layers import RowParallelLinear, Sum, alone


@dataclass(frozen=True, eq=False, slots=True)
class Pass:
    """Inputs of every layer in a forward pass besides the hidden states.

    Attributes:
        angles: of each rotary table the cosines and sines [M, 1, rotary_dim] of the rows' angles.
        slots: [M] cache slot that receives each row's key and value.
        attend: attention over the cache slots that each row attends to.
        query_factors: [M, 1, 1] factors on the rows' queries; None for none.
        layer_inputs: [M, layers, width] inputs of each layer's own (`varied_layers.py`); None for none.
        states: the steps of recurrent layers; None without such layers.
    """

    angles: Sequence[tuple[Tensor, Tensor]]
    slots: Tensor
    attend: Attends
    cache: TorchKVCache
    query_factors: Tensor | None = None
    layer_inputs: Tensor | None = None
    states: StateSteps | None = None


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension (Zhang and Sennrich 2019), rounded once."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * scaled).to(torch.result_type(x, self.weight))


def make_norm(config: ModelConfig) -> nn.Module:
    """The norm in front of attention, feed-forward and head."""
    if config.norm == "layer":
        return nn.LayerNorm(config.hidden_size, eps=config.norm_eps, bias=config.norm_bias)
    return RMSNorm(config.hidden_size, config.norm_eps)


def row_angles(positions: Tensor, inverse_frequencies: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines [M, 1, R] of `positions` [M] times `inverse_frequencies` [R / 2], once for either half."""
    angles = positions.float()[:, None] * inverse_frequencies
    angles = torch.cat([angles, angles], dim=-1)[:, None, :]
    cosines, sines = angles.cos(), angles.sin()
    return (cosines, sines) if factor == 1.0 else (cosines * factor, sines * factor)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate the pairs (i, i + R / 2) of the first R dimensions of x [M, heads, D] by the rows' angles."""
    turning, rest = x.float().split([cosines.shape[-1], x.shape[-1] - cosines.shape[-1]], dim=-1)
    first, second = turning.chunk(2, dim=-1)
    turned = turning * cosines + torch.cat([-second, first], dim=-1) * sines
    return torch.cat([turned, rest], dim=-1).to(x.dtype)


class Sinks(nn.Module):
    """One score per head, of a key without a value."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads))


def with_sinks(form: AttentionForm, sinks: Sinks | None) -> AttentionForm:
    """`form` with the scores of `sinks`."""
    return form if sinks is None else replace(form, sinks=sinks.weight)


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023): H / K query heads share a key head; K = H is multi-head attention.

    `number` is the layer's number, which determines its window (`form`) and its rotary table (`table`).
    """

    def __init__(self, config: ModelConfig, number: int, total: Sum = alone) -> None:
        super().__init__()
        self.heads, self.key_heads, self.head_dim = (
            config.num_attention_heads, config.num_key_value_heads, config.head_dim
        )  # fmt: skip
        hidden, bias = config.hidden_size, config.attention_bias
        self.query = nn.Linear(hidden, self.heads * self.head_dim, bias=bias)
        self.key = nn.Linear(hidden, self.key_heads * self.head_dim, bias=bias)
        self.value = nn.Linear(hidden, self.key_heads * self.head_dim, bias=bias)
        self.gate = nn.Linear(hidden, self.heads * self.head_dim, bias=False) if config.attention_gate else None
        self.out = RowParallelLinear(self.heads * self.head_dim, hidden, config.attention_out_bias, total)
        self.query_norm = _query_key_norm(config, self.heads)
        self.key_norm = _query_key_norm(config, self.key_heads)
        self.over_all, self.norms_last = config.qk_norm_over == "all", config.qk_norm_after_rope
        self.table = rope_table_of(config, number)
        scale = config.attention_scale or self.head_dim**-0.5
        self.sinks = Sinks(self.heads) if config.attention_sinks else None
        self.form = AttentionForm(scale, config.attention_softcap, config.window(number))

    def forward(self, x: Tensor, layer: int, step: Pass) -> Tensor:
        query = self._placed(self.query(x), self.query_norm, self.heads, step)
        key = self._placed(self.key(x), self.key_norm, self.key_heads, step)
        if step.query_factors is not None:
            query = (query * step.query_factors).to(query.dtype)
        keys, values = step.cache.keys[layer], step.cache.values[layer]
        keys[step.slots] = key
        values[step.slots] = self.value(x).view(-1, self.key_heads, self.head_dim)
        mixed = step.attend(query, keys, values, with_sinks(self.form, self.sinks)).flatten(1)
        return self.out(mixed if self.gate is None else mixed * torch.sigmoid(self.gate(x)))

    def _placed(self, x: Tensor, norm: nn.Module, heads: int, step: Pass) -> Tensor:
        """[M, heads, D] of x [M, heads * D], rotated, with its norm over all heads together or over each."""
        shape = (-1, heads, self.head_dim)
        if self.norms_last:
            return norm(self._rotated(x.view(shape), step))
        return self._rotated(norm(x).view(shape) if self.over_all else norm(x.view(shape)), step)

    def _rotated(self, x: Tensor, step: Pass) -> Tensor:
        return x if self.table == NO_TABLE else rotate(x, *step.angles[self.table])


class LatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2), whose keys and values are expanded before they are cached.

    A key is its part that turns, the same for all heads, then the head's own; a value ends with zeros up to its size.
    """

    def __init__(self, config: ModelConfig, sizes: Latent, number: int, total: Sum = alone) -> None:
        super().__init__()
        self.heads, self.sizes, hidden = config.num_attention_heads, sizes, config.hidden_size
        rank, width = sizes.q_lora_rank, self.heads * sizes.head_dim
        if rank:
            self.query_a, self.query_a_norm = nn.Linear(hidden, rank, bias=False), RMSNorm(rank, LATENT_EPS)
            self.query_b = nn.Linear(rank, width, bias=False)
        else:
            self.query = nn.Linear(hidden, width, bias=False)
        self.latent = nn.Linear(hidden, sizes.qk_rope_head_dim + sizes.kv_lora_rank, bias=False)
        self.latent_norm = RMSNorm(sizes.kv_lora_rank, LATENT_EPS)
        self.key_b = nn.Linear(sizes.kv_lora_rank, self.heads * sizes.qk_nope_head_dim, bias=False)
        self.value_b = nn.Linear(sizes.kv_lora_rank, self.heads * sizes.v_head_dim, bias=False)
        self.out = RowParallelLinear(self.heads * sizes.v_head_dim, hidden, False, total)
        self.table = rope_table_of(config, number)
        self.form = AttentionForm(config.attention_scale or sizes.head_dim**-0.5, window=config.window(number))

    def forward(self, x: Tensor, layer: int, step: Pass) -> Tensor:
        sizes, angles, shape = self.sizes, step.angles[self.table], (len(x), self.heads, -1)
        query = self.query_b(self.query_a_norm(self.query_a(x))) if sizes.q_lora_rank else self.query(x)
        query = rotate(query.view(shape), *angles)
        turning, latent = self.latent(x).split([sizes.qk_rope_head_dim, sizes.kv_lora_rank], dim=-1)
        latent = self.latent_norm(latent)
        turning = rotate(turning[:, None], *angles).expand(shape)
        keys, values = step.cache.keys[layer], step.cache.values[layer]
        keys[step.slots] = torch.cat([turning, self.key_b(latent).view(shape)], dim=-1)
        spare = sizes.head_dim - sizes.v_head_dim
        values[step.slots] = functional.pad(self.value_b(latent).view(shape), (0, spare))
        return self.out(step.attend(query, keys, values, self.form)[..., : sizes.v_head_dim].flatten(1))


def _query_key_norm(config: ModelConfig, heads: int) -> nn.Module:
    if not config.qk_norm:
        return nn.Identity()
    return RMSNorm(config.head_dim * (heads if config.qk_norm_over == "all" else 1), config.norm_eps)


_RECURRENT = {"short_convolution": ShortConvolution, "gated_delta_net": GatedDeltaNet, "state_space": StateSpace}


def make_attention(
    config: ModelConfig, number: int, total: Sum = alone
) -> Attention | LatentAttention | ShortConvolution | MatrixStates:
    """What layer `number` has before its feed-forward: attention, or a state."""
    recurrence = config.recurrence
    if recurrence is not None and number in recurrence.layers:
        return _RECURRENT[recurrence.kind](config, recurrence)
    return LatentAttention(config, config.latent, number, total) if config.latent else Attention(config, number, total)


class FeedForward(nn.Module):
    """down(act(gate(x)) * up(x)) with silu or gelu (Shazeer 2020), down(act(up(x))) with gelu as in GPT-2 or a squared
    ReLU (So et al. 2021, Primer), or gpt-oss's form."""

    def __init__(self, config: ModelConfig, total: Sum = alone) -> None:
        super().__init__()
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.mlp_bias
        self.gate = nn.Linear(hidden, inner, bias=bias) if config.is_gated else None
        self.activation = _ACTIVATIONS[config.mlp]
        self.up = nn.Linear(hidden, inner, bias=bias)
        self.down = RowParallelLinear(inner, hidden, bias, total)

    @property
    def gate_name(self) -> str:
        """The activation of the gate: ``silu``, ``gelu`` (by tanh) or ``clamped``; or ``relu2``, without a gate."""
        return {functional.silu: "silu", _clamped: "clamped", _relu2: "relu2"}.get(self.activation, "gelu")

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(self.activation(self.up(x)))
        return self.down(self.gated(self.gate(x), self.up(x)))

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """The input of `down`, from the outputs of `gate` and `up`."""
        if self.activation is _clamped:
            up = up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT) + 1
        return self.activation(gate) * up


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


def _relu2(x: Tensor) -> Tensor:
    return functional.relu(x).square()


def _clamped(x: Tensor) -> Tensor:
    x = x.clamp(max=SWIGLU_LIMIT)
    return x * torch.sigmoid(SWIGLU_ALPHA * x)


_ACTIVATIONS = {
    "gated_silu": functional.silu, "gated_gelu_tanh": _gelu_tanh, "gated_clamped": _clamped, "gelu_tanh": _gelu_tanh,
    "gelu": functional.gelu, "relu2": _relu2,
}  # fmt: skip


class SelectionBias(nn.Module):
    """A float32 bias per expert on the scores by which experts are chosen."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(experts))


class MixtureOfExperts(nn.Module):
    """Routes every row to the experts with the best scores, and to the shared expert if there is one; `total` sums over
    ranks, each of which has a share of every expert.

    Shazeer et al. 2017; the layouts of Qwen2-MoE, Qwen3-MoE, Mixtral, gpt-oss, GLM-4.5 and DeepSeek-V3.
    """

    def __init__(self, config: ModelConfig, experts: Experts, total: Sum = alone) -> None:
        super().__init__()
        self.settings, self.total = experts, total
        self.router = nn.Linear(config.hidden_size, experts.num_experts, bias=experts.bias)
        self.selection = SelectionBias(experts.num_experts) if experts.e_score_correction_bias else None
        own = replace(config, mlp_bias=experts.bias)
        self.experts = nn.ModuleList(FeedForward(own) for _ in range(experts.num_experts))
        shared = experts.shared_intermediate_size
        self.shared = FeedForward(replace(config, intermediate_size=shared)) if shared else None
        gated = shared and experts.shared_expert_gate
        self.shared_gate = nn.Linear(config.hidden_size, 1, bias=False) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mixed(x, *self.routed(self.router(x).float()))
        if self.shared is not None:
            mixed = mixed + of_shared(self.shared, self.shared_gate, x)
        return self.total(mixed)

    def mixed(self, x: Tensor, shares: Tensor, chosen: Tensor) -> Tensor:
        """[M, hidden]: the `chosen` experts [M, k] of each row of x [M, hidden], times their `shares` [M, k]."""
        mixed = torch.zeros_like(x)
        for number in chosen.unique().tolist():
            rows, choices = torch.nonzero(chosen == number, as_tuple=True)
            mixed[rows] += self.experts[number](x[rows]) * shares[rows, choices, None].to(x.dtype)
        return mixed

    def routed(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """([M, k] shares, [M, k] experts) of rows with the router's logits [M, experts]."""
        own = self.settings
        scores = torch.sigmoid(logits) if own.scoring_func == "sigmoid" else torch.softmax(logits, dim=-1)
        wanted = scores if self.selection is None else scores + self.selection.bias
        chosen = _within_groups(wanted, own).topk(own.num_experts_per_tok, dim=-1).indices
        shares = scores.gather(-1, chosen)
        if own.norm_topk_prob:
            shares = shares / (shares.sum(dim=-1, keepdim=True) + LEAST_TOTAL)
        return shares * own.routed_scaling_factor, chosen


def of_shared(shared: nn.Module, gate: nn.Module | None, x: Tensor) -> Tensor:
    """What the shared expert makes of x, times its share where it has a gate."""
    return shared(x) if gate is None else torch.sigmoid(gate(x)) * shared(x)


def _within_groups(wanted: Tensor, experts: Experts) -> Tensor:
    """`wanted` [M, experts], minus infinity outside the best groups (see `Experts.n_group`)."""
    if experts.n_group == 1:
        return wanted
    groups = wanted.unflatten(-1, (experts.n_group, -1))
    best = groups.topk(2 if experts.e_score_correction_bias else 1, dim=-1).values.sum(dim=-1)
    kept = torch.zeros_like(best).scatter(-1, best.topk(experts.topk_group, dim=-1).indices, 1.0) > 0
    return groups.masked_fill(~kept[..., None], -torch.inf).flatten(-2)


def make_feed_forward(config: ModelConfig, number: int, total: Sum = alone) -> nn.Module:
    """The feed-forward of layer `number`, dense or a mixture."""
    experts = config.experts
    if experts is None or number < experts.first_k_dense_replace:
        return FeedForward(replace(config, intermediate_size=config.dense_size), total)
    return MixtureOfExperts(config, experts, total)


class Layer(nn.Module):
    """One transformer block, norms where the config has them; `total` sums over the ranks that share it."""

    def __init__(self, config: ModelConfig, number: int, total: Sum = alone) -> None:
        super().__init__()
        self.attention_norm = make_norm(config) if config.pre_norms else nn.Identity()
        self.attention = make_attention(config, number, total)
        self.attention_out_norm = make_norm(config) if config.post_norms else nn.Identity()
        ends = number in config.layers_without_mlp
        self.feed_forward_norm = make_norm(config) if config.pre_norms and not ends else nn.Identity()
        self.feed_forward = None if ends else make_feed_forward(config, number, total)
        self.feed_forward_out_norm = make_norm(config) if config.post_norms else nn.Identity()
        self.scale, self.parallel = config.residual_scale, config.parallel

    def forward(self, x: Tensor, layer: int, step: Pass) -> Tensor:
        attended = x + self._scaled(self.attention_out_norm(self.attention(self.attention_norm(x), layer, step)))
        if self.feed_forward is None:
            return attended
        read = x if self.parallel else attended
        return attended + self._scaled(self.feed_forward_out_norm(self.feed_forward(self.feed_forward_norm(read))))

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.scale == 1.0 else x * self.scale
