"""Layers of the same weights that launch a quarter as many kernels: products over one input joined, the rest fused.

What they compute is `torch_executor/layers.py`'s, to the last digit of a sum; what they cannot stand for (layer norms,
experts, norms over all heads, layers without positions, weights in blocks that differ) stays as it is there.
"""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.cuda_executor.kernels.entries import gated, place_heads, rms_norm
from paceline.models.positions import NO_TABLE
from paceline.models.torch_executor.layers import Attention, FeedForward, Layer, Pass, RMSNorm
from paceline.models.torch_executor.model import DecoderStack


def fuse(stack: DecoderStack) -> None:
    """Put fused parts in the place of those of a stack whose weights are loaded."""
    for name, layer in stack.layers.items():
        stack.layers[name] = _fused_layer(cast(Layer, layer))
    if isinstance(stack.norm, RMSNorm):
        stack.norm = FusedNorm(stack.norm)


class FusedNorm(nn.Module):
    """An `RMSNorm` as one kernel."""

    def __init__(self, own: RMSNorm) -> None:
        super().__init__()
        self.weight, self.eps = own.weight, own.eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)[1]

    def after(self, x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """(x + added, its norm)."""
        return rms_norm(x, self.weight, self.eps, added)


class JoinedLinear(nn.Module):
    """Linear layers over one input as one product; outputs are views into its rows."""

    def __init__(self, parts: Sequence[nn.Linear]) -> None:
        super().__init__()
        self._sizes = [part.out_features for part in parts]
        self.weight = nn.Parameter(torch.cat([part.weight.detach() for part in parts]), requires_grad=False)
        biases = [part.bias.detach() for part in parts if part.bias is not None]
        self.bias = nn.Parameter(torch.cat(biases), requires_grad=False) if biases else None

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        return functional.linear(x, self.weight, self.bias).split(self._sizes, dim=-1)


class SeparateLinears(nn.ModuleList):
    """The same where weights lie in blocks, which may differ in format."""

    def forward(self, x: Tensor) -> Sequence[Tensor]:
        return [part(x) for part in self]


class FusedAttention(nn.Module):
    """An `Attention` whose queries and keys are normed, turned and put into the cache by one kernel."""

    def __init__(self, own: Attention) -> None:
        super().__init__()
        self.project, self.out = _joined([own.query, own.key, own.value]), own.out
        self.query_norm, self.key_norm = own.query_norm, own.key_norm
        self.table, self.form = own.table, own.form

    def forward(self, x: Tensor, layer: int, step: Pass) -> Tensor:
        keys, values = step.cache.keys[layer], step.cache.values[layer]
        query, key, value = self.project(x)
        query = place_heads(query, key, value, self._norms, step.angles[self.table], step.slots, keys, values)
        return self.out(step.attend(query, keys, values, self.form).flatten(1))

    @property
    def _norms(self) -> tuple[Tensor, Tensor, float] | None:
        if isinstance(self.query_norm, nn.Identity):
            return None
        return self.query_norm.weight, self.key_norm.weight, self.query_norm.eps  # type: ignore[return-value]


class FusedFeedForward(nn.Module):
    """A gated `FeedForward` in three kernels."""

    def __init__(self, own: FeedForward) -> None:
        super().__init__()
        assert own.gate is not None
        self.raise_both, self.down = _joined([own.gate, own.up]), own.down
        self._is_silu = own.activation is functional.silu

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.raise_both(x)
        return self.down(gated(gate, up, self._is_silu))


class FusedLayer(nn.Module):
    """A `Layer` with norms in front of its two parts and nothing after them."""

    def __init__(self, own: Layer, attention: nn.Module, feed_forward: nn.Module) -> None:
        super().__init__()
        self.attention_norm = FusedNorm(cast(RMSNorm, own.attention_norm))
        self.feed_forward_norm = FusedNorm(cast(RMSNorm, own.feed_forward_norm))
        self.attention, self.feed_forward = attention, feed_forward

    def forward(self, x: Tensor, layer: int, step: Pass) -> Tensor:
        x, normed = self.feed_forward_norm.after(x, self.attention(self.attention_norm(x), layer, step))
        return x + self.feed_forward(normed)


def _fused_layer(own: Layer) -> nn.Module:
    """The layer with what can be fused of it; its own parts are let go."""
    attention = FusedAttention(own.attention) if _turns_heads(own.attention) else own.attention
    feed_forward = own.feed_forward
    if isinstance(feed_forward, FeedForward) and feed_forward.gate is not None:
        feed_forward = FusedFeedForward(feed_forward)
    norms = own.attention_norm, own.feed_forward_norm
    after = own.attention_out_norm, own.feed_forward_out_norm
    if own.scale == 1.0 and all_of(RMSNorm, norms) and all_of(nn.Identity, after):
        return FusedLayer(own, attention, feed_forward)
    own.attention, own.feed_forward = attention, feed_forward  # type: ignore[assignment]
    for name in ("attention_norm", "attention_out_norm", "feed_forward_norm", "feed_forward_out_norm"):
        norm = getattr(own, name)
        if isinstance(norm, RMSNorm):
            setattr(own, name, FusedNorm(norm))
    return own


def _turns_heads(own: Attention) -> bool:
    """Whether `place_heads` does what `own` does with its heads."""
    return own.table != NO_TABLE and not (own.over_all and isinstance(own.query_norm, RMSNorm))


def _joined(parts: Sequence[nn.Module]) -> Callable[[Tensor], Sequence[Tensor]]:
    """One product where all of `parts` are plain matrices, with a bias each or none."""
    if all(isinstance(part, nn.Linear) for part in parts):
        linears = cast(Sequence[nn.Linear], parts)
        if len({part.bias is None for part in linears}) == 1:
            return JoinedLinear(linears)
    return SeparateLinears(parts)


def all_of(kind: type, parts: Sequence[nn.Module]) -> bool:
    """Whether each of `parts` is of `kind`."""
    return all(isinstance(part, kind) for part in parts)
