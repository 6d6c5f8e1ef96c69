"""Layers that launch a quarter as many kernels: products over one input are joined, other operations fused.

Results equal those of `torch_executor/layers.py` up to rounding of sums. What cannot be fused (layer norms, norms over
all heads, layers without positions) stays as it is there. Each part of a layer has two forms, for few rows (`unsummed`)
and for many (`forward`). Not for whole stacks (`fused.py`) or for the kernels (`kernels/`).
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, TypeGuard, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.architecture.positions import NO_TABLE
from paceline.models.cuda_executor.block_layers import BlockLinear
from paceline.models.cuda_executor.block_matrix import BlockMatrix
from paceline.models.cuda_executor.experts import FusedExperts, can_stack
from paceline.models.cuda_executor.kernels.entries import HeadNorms, gated, place_heads, rms_norm
from paceline.models.cuda_executor.kernels.products import Weights, partials, product
from paceline.models.cuda_executor.peers import Peers
from paceline.models.cuda_executor.recurrent import FusedConvolution, FusedStates
from paceline.models.torch_executor.layers import (
    Attention,
    FeedForward,
    Layer,
    MixtureOfExperts,
    Pass,
    RMSNorm,
    with_sinks,
)
from paceline.models.torch_executor.recurrent import MatrixStates, ShortConvolution
from paceline.models.torch_executor.varied_layers import ExpertsBesideDense, VariedAttention, VariedLayer


class FusedNorm(nn.Module):
    """An `RMSNorm` as one kernel, before which several ranks add up, send or receive hidden states.

    Args:
        divided_by: what hidden states were divided by.
    """

    def __init__(self, own: RMSNorm, peers: Peers, divided_by: float = 1.0) -> None:
        super().__init__()
        self.weight, self.eps, self._begins_early = own.weight, own.eps / divided_by**2, peers.shard is None

    def forward(self, x: Tensor) -> Tensor:
        return self.after(x)[1]

    def after(
        self, x: Tensor, added: Tensor | None = None, bias: Tensor | None = None, asked: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """(x + added + bias, its norm); see `rms_norm`."""
        return rms_norm(x, self.weight, self.eps, added, bias, asked, begins_early=self._begins_early)


class JoinedLinear(nn.Module):
    """Linear layers over one input, those in a row whose weights have one form as one product.

    Outputs are views into joined rows.
    """

    def __init__(self, parts: Sequence[nn.Linear | BlockLinear]) -> None:
        super().__init__()
        self._sizes = [part.weight.shape[0] for part in parts]
        self._layers = nn.ModuleList(_as_one(list(group)) for _, group in groupby(parts, _form_of))
        own = cast(nn.Parameter | None, self._layers[0].bias)
        self.bias = own if len(self._layers) == 1 else _joined_bias(parts)

    @property
    def weights(self) -> list[Weights]:
        """The matrix of each product."""
        return [layer.weight for layer in self._layers]  # type: ignore[misc]

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        found = [layer(x) for layer in self._layers]
        return self.cut(found[0] if len(found) == 1 else torch.cat(found, dim=-1))

    def cut(self, whole: Tensor) -> Sequence[Tensor]:
        """Split joined outputs [.., n] by part."""
        return whole.split(self._sizes, dim=-1)


class SeparateLinears(nn.ModuleList):
    """Linear layers over one input that cannot be joined."""

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        return [part(x) for part in self]


class Unsummed(NamedTuple):
    """What must be added to hidden states: the parts of a sum [parts, M, hidden], and a bias [hidden]."""

    parts: Tensor
    bias: Tensor | None


class FusedAttention(nn.Module):
    """An `Attention` in which one kernel norms and rotates heads, and writes keys and values."""

    def __init__(self, own: Attention | VariedAttention) -> None:
        super().__init__()
        gate = own.gate if isinstance(own, Attention) else None
        self._has_gate = gate is not None
        self.project = _joined([part for part in (own.query, own.key, own.value, gate) if part is not None])
        self.out, self.query_norm, self.key_norm = own.out, own.query_norm, own.key_norm
        self.table, self.form = own.table, own.form
        self.sinks = own.sinks if isinstance(own, Attention) else None
        self._cache_layer = None if isinstance(own, Attention) else own.cache_layer

    @property
    def is_plain(self) -> bool:
        """See `FusedLayer`."""
        is_linear = isinstance(self.project, JoinedLinear) and isinstance(self.out, nn.Linear | BlockLinear)
        return is_linear and not self._has_gate

    def forward(self, x: Tensor, layer: int, step: Pass) -> Tensor:
        if not self._has_gate:
            return self.out(self._attended(self.project(x), None, layer, step))
        *projected, gate = self.project(x)
        return self.out(self._attended(projected, None, layer, step) * torch.sigmoid(gate))

    def unsummed(self, x: Tensor, layer: int, step: Pass) -> Unsummed:
        """`forward` with products for few rows."""
        joined = cast(JoinedLinear, self.project)
        mixed = self._attended(joined.cut(partials(x, *joined.weights)), joined.bias, layer, step)
        return Unsummed(partials(mixed, self.out.weight), self.out.bias)

    def _attended(self, projected: Sequence[Tensor], bias: Tensor | None, layer: int, step: Pass) -> Tensor:
        """[M, heads * D], attention of projected heads."""
        kept = layer if self._cache_layer is None else self._cache_layer
        keys, values = step.cache.keys[kept], step.cache.values[kept]
        query, key, value = self._parts(projected)
        angles = step.angles[self.table]
        query = place_heads(query, key, value, self._norms, angles, step.slots, keys, values, bias)
        if step.query_factors is not None:
            query = (query * step.query_factors).to(query.dtype)
        return step.attend(query, keys, values, with_sinks(self.form, self.sinks)).flatten(1)

    def _parts(self, projected: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Queries, keys and values among the outputs of the projections."""
        query, key, value = projected
        return query, key, value

    @property
    def _norms(self) -> HeadNorms | None:
        if isinstance(self.query_norm, nn.Identity):
            return None
        query, key = cast(RMSNorm, self.query_norm), cast(RMSNorm, self.key_norm)
        return HeadNorms(query.weight, key.weight, query.eps)


class FusedVariedAttention(FusedAttention):
    """`FusedAttention` of a `VariedAttention`."""

    def _parts(self, projected: Sequence[Tensor]) -> tuple[Tensor, Tensor | None, Tensor | None]:
        query, *own = projected
        # values that are not projected are the keys before norm and rotation
        return (query, own[0], own[-1]) if own else (query, None, None)

    @property
    def _norms(self) -> HeadNorms:
        query = cast(RMSNorm, self.query_norm)
        key = query if self.key_norm is None else cast(RMSNorm, self.key_norm)
        return HeadNorms(query.weight, key.weight, query.eps, values=True)


class FusedFeedForward(nn.Module):
    """A gated `FeedForward` in three kernels."""

    def __init__(self, own: FeedForward) -> None:
        super().__init__()
        assert own.gate is not None
        self.raise_both, self.down = _joined([own.gate, own.up]), own.down
        self._is_silu = own.activation is functional.silu

    @property
    def is_plain(self) -> bool:
        """See `FusedLayer`."""
        both = self.raise_both
        return (
            isinstance(both, JoinedLinear) and len(both.weights) == 1 and isinstance(self.down, nn.Linear | BlockLinear)
        )

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.raise_both(x)
        return self.down(gated(gate, up, self._is_silu))

    def unsummed(self, x: Tensor) -> Unsummed:
        """`forward` with products for few rows, two kernels."""
        both = cast(JoinedLinear, self.raise_both)
        raised = product(x, both.weights[0], both.bias, gate="silu" if self._is_silu else "gelu")
        return Unsummed(partials(raised, self.down.weight), self.down.bias)


class FusedBesideDense(nn.Module):
    """An `ExpertsBesideDense` whose experts are stacked, with `dense` as its feed-forward."""

    def __init__(self, own: ExpertsBesideDense, dense: nn.Module | None, peers: Peers, deterministic: bool) -> None:
        super().__init__()
        self.dense = cast(nn.Module, dense)
        norms = own.norm, own.shared_out_norm, own.router_norm, own.experts_norm, own.experts_out_norm
        self.norm, self.dense_out_norm, self.router_norm, self.experts_norm, self.experts_out_norm = (
            FusedNorm(norm, peers) for norm in norms
        )
        self.experts = FusedExperts(own, None, deterministic, own.scales.weight)

    def forward(self, x: Tensor) -> Tensor:
        dense = self.dense_out_norm(self.dense(self.norm(x)))
        routed_by = self.router_norm(x) * x.shape[-1] ** -0.5
        return dense + self.experts_out_norm(self.experts(self.experts_norm(x), routed_by=routed_by))


class FusedLayer(nn.Module):
    """A pre-norm `Layer`: norms before attention and feed-forward, none after.

    Hidden states are divided by the factor on what the layer adds (`Fused.divided`).
    """

    def __init__(self, own: Layer, attention: nn.Module, feed_forward: nn.Module | None, peers: Peers) -> None:
        super().__init__()
        self._peers = peers
        self.attention_norm = FusedNorm(cast(RMSNorm, own.attention_norm), peers, own.scale)
        if feed_forward is not None:
            self.feed_forward_norm = FusedNorm(cast(RMSNorm, own.feed_forward_norm), peers, own.scale)
        self.attention, self.feed_forward = attention, feed_forward

    @property
    def is_plain(self) -> bool:
        """Whether all products are linear layers, those over one input joined."""
        attention, feed_forward = self.attention, self.feed_forward
        return (
            isinstance(attention, FusedAttention) and attention.is_plain
            and isinstance(feed_forward, FusedFeedForward | FusedExperts) and feed_forward.is_plain
        )  # fmt: skip

    def forward(self, x: Tensor, layer: int, step: Pass) -> Tensor:
        mixed = self.attention(self.attention_norm(x), layer, step)
        if self.feed_forward is None:
            return x + mixed
        x, normed = self.feed_forward_norm.after(x, mixed)
        if isinstance(self.feed_forward, FusedExperts):
            return x + self.feed_forward(normed, step)
        return x + self.feed_forward(normed)

    def unsummed(self, x: Tensor, normed: Tensor, layer: int, step: Pass) -> tuple[Tensor, Unsummed]:
        """`forward` with products for few rows: hidden states, and what must be added to them."""
        attention, feed_forward = cast(FusedAttention, self.attention), self.feed_forward
        x, normed = self.feed_forward_norm.after(x, *self._of_all(attention.unsummed(normed, layer, step)))
        if isinstance(feed_forward, FusedExperts):
            return x, self._of_all(Unsummed(feed_forward.parts(normed, step), None))
        return x, self._of_all(cast(FusedFeedForward, feed_forward).unsummed(normed))

    def _of_all(self, own: Unsummed) -> Unsummed:
        return Unsummed(self._peers.parts(own.parts), own.bias)


def fused_layer(own: Layer, peers: Peers, deterministic: bool) -> nn.Module:
    """The layer, with those parts fused that can be."""
    attention = own.attention
    if isinstance(attention, VariedAttention):
        attention = FusedVariedAttention(attention)
    elif isinstance(attention, ShortConvolution):
        attention = FusedConvolution(attention)
    elif isinstance(attention, MatrixStates):
        attention = FusedStates(attention, _joined([*attention.inputs, attention.z]))
    elif _turns_heads(attention):
        attention = FusedAttention(attention)
    feed_forward, norms = None, [own.attention_norm]
    if own.feed_forward is not None:
        feed_forward = _fused_feed_forward(own.feed_forward, peers, deterministic)
        norms.append(own.feed_forward_norm)
    after = own.attention_out_norm, own.feed_forward_out_norm
    is_plain = not isinstance(own, VariedLayer) and not own.parallel
    if is_plain and all_of(RMSNorm, norms) and all_of(nn.Identity, after):
        return FusedLayer(own, attention, feed_forward, peers)
    own.attention, own.feed_forward = attention, feed_forward  # type: ignore[assignment]
    for name in ("attention_norm", "attention_out_norm", "feed_forward_norm", "feed_forward_out_norm"):
        norm = getattr(own, name)
        if isinstance(norm, RMSNorm):
            setattr(own, name, FusedNorm(norm, peers))
    if isinstance(own, VariedLayer) and own.input is not None:
        own.input.norm = FusedNorm(cast(RMSNorm, own.input.norm), peers)  # type: ignore[assignment]
    return own


def _fused_feed_forward(own: nn.Module, peers: Peers, deterministic: bool) -> nn.Module:
    """The feed-forward, dense or a mixture, fused if it can be."""
    if isinstance(own, FeedForward) and own.gate is not None and own.gate_name != "clamped":
        return FusedFeedForward(own)
    if can_stack(own):
        mixture = cast(MixtureOfExperts, own)
        shared = None if mixture.shared is None else _fused_feed_forward(mixture.shared, peers, deterministic)
        if isinstance(mixture, ExpertsBesideDense):
            return FusedBesideDense(mixture, shared, peers, deterministic)
        return FusedExperts(mixture, shared, deterministic)
    return own


def _turns_heads(own: nn.Module) -> TypeGuard[Attention]:
    """Whether `place_heads` can norm and rotate the heads of `own`."""
    if not isinstance(own, Attention):
        return False
    is_other = own.over_all or own.norms_last
    return own.table != NO_TABLE and not (is_other and isinstance(own.query_norm, RMSNorm))


def _joined(parts: Sequence[nn.Module]) -> "JoinedLinear | SeparateLinears":
    """The layers joined if all are linear, and all or none have a bias."""
    if all(isinstance(part, nn.Linear | BlockLinear) for part in parts):
        linears = cast(Sequence[nn.Linear | BlockLinear], parts)
        if len({part.bias is None for part in linears}) == 1:
            return JoinedLinear(linears)
    return SeparateLinears(parts)


def _form_of(part: nn.Linear | BlockLinear) -> tuple:
    """Equal for layers whose weights can be one matrix."""
    return part.weight.form if isinstance(part.weight, BlockMatrix) else ()


def _as_one(parts: Sequence[nn.Linear | BlockLinear]) -> nn.Module:
    """One layer with the outputs of `parts`, whose weights have one form."""
    bias = _joined_bias(parts)
    if isinstance(parts[0], BlockLinear):
        blocks = cast(Sequence[BlockLinear], parts)
        return BlockLinear(BlockMatrix.joined([part.weight for part in blocks]), bias, blocks[0].in_one_order)
    weight = torch.cat([cast(nn.Linear, part).weight.detach() for part in parts])
    layer = nn.Linear(weight.shape[1], len(weight), bias=False, device="meta")
    layer.weight, layer.bias = nn.Parameter(weight, requires_grad=False), bias  # type: ignore[assignment]
    return layer


def _joined_bias(parts: Sequence[nn.Linear | BlockLinear]) -> nn.Parameter | None:
    biases = [part.bias.detach() for part in parts if part.bias is not None]
    return nn.Parameter(torch.cat(biases), requires_grad=False) if biases else None


def all_of(kind: type, parts: Sequence[nn.Module]) -> bool:
    """Whether each of `parts` is of `kind`."""
    return all(isinstance(part, kind) for part in parts)
