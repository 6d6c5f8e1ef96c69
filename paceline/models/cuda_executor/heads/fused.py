"""Layers of heads as a sixth of the kernels, for passes over few rows: those of `cuda_executor/fused_layers.py`.

A level of a chain reads little, so that its time is that of its kernels: one layer of the modules in
`torch_executor/heads/`, which are the reference, launches some eighty of a few microseconds each.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from paceline.models.cuda_executor.attention import attention_over
from paceline.models.cuda_executor.fused import FEW
from paceline.models.cuda_executor.fused_layers import Unsummed
from paceline.models.cuda_executor.heads.stored import StoredLinear
from paceline.models.cuda_executor.kernels.ends import embedded, row_angles
from paceline.models.cuda_executor.kernels.entries import HeadNorms, place_heads, rms_norm
from paceline.models.cuda_executor.kernels.products import partials, product
from paceline.models.cuda_executor.paged_rows import PagedRows
from paceline.models.torch_executor.attention import Attends, AttentionForm
from paceline.models.torch_executor.cache import TorchKVCache
from paceline.models.torch_executor.heads.blocks import DecoderLayer, Norm
from paceline.models.torch_executor.heads.dspark import DSpark
from paceline.models.torch_executor.heads.eagle import Eagle
from paceline.models.torch_executor.heads.eagle3 import Eagle3, Eagle3Layer


class FusedHead(Protocol):
    """The layers and the output head of a network."""

    def fits(self, num_rows: int) -> bool:
        """Whether passes of so many rows are faster here."""
        ...

    def run(
        self, placed: PagedRows, tokens: Tensor, fed: Sequence[Tensor], cache: TorchKVCache
    ) -> tuple[Tensor, Tensor]:
        """What the output head reads of rows with `tokens` [M], and what child rows are fed, [M, hidden] each.

        Args:
            fed: input states [M, hidden] float32; none for networks that read tokens only.
        """
        ...

    def projected(self, taps: Tensor) -> Tensor:
        """[n, hidden] float32 input states of taps [n, taps * hidden]."""
        ...

    def scored(self, read: Tensor) -> Tensor:
        """[n, draft vocabulary] float32 logits of what the output head reads."""
        ...


def fused(net: nn.Module) -> "FusedHead | None":
    """The kernels for `net`, whose weights keep their place; None where they are none, or not faster."""
    for kind, make in ((Eagle3, _FusedEagle3), (Eagle, _FusedEagle), (DSpark, _FusedBlock)):
        if type(net) is kind and net.rows.element_size() == 2:
            return make(net)
    return None


class _Joined(NamedTuple):
    """Linear layers over one input as one: weights [outputs, inputs], and a bias [outputs]."""

    weight: Tensor
    bias: Tensor | None
    sizes: Sequence[int]

    @classmethod
    def of(cls, layers: Sequence[StoredLinear]) -> "_Joined":
        """The weights of `layers`, which become views of the joined ones."""
        sizes = [len(layer.weight) for layer in layers]
        weight = torch.cat([layer.weight for layer in layers])
        for layer, own in zip(layers, weight.split(sizes), strict=True):
            layer.weight = nn.Parameter(own, requires_grad=False)
        biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        return cls(weight, torch.cat(biases) if biases else None, sizes)


class _Layer:
    """A decoder layer from the input of its attention on."""

    def __init__(self, own: DecoderLayer | Eagle3Layer) -> None:
        attention, inner = cast(Any, own.self_attn), cast(Any, own.mlp)
        self._projected = _Joined.of([attention.q_proj, attention.k_proj, attention.v_proj])
        self._raised = _Joined.of([inner.gate_proj, inner.up_proj])
        self._out, self._down, self._norm = attention.o_proj, inner.down_proj, own.post_attention_layernorm
        self._form = AttentionForm(attention.head_dim**-0.5)
        self._kind, self._norms = self._projected.weight.dtype, None
        if hasattr(attention, "q_norm"):
            self._norms = HeadNorms(attention.q_norm.weight, attention.k_norm.weight, attention.q_norm.eps)

    def __call__(self, x: Tensor, residual: Tensor, number: int, step: "_Step") -> tuple[Tensor, Unsummed]:
        """Hidden states [M, hidden] float32, and what must be added to them.

        Args:
            x: [M, n] the input of attention; `residual` [M, hidden] float32 is added to its output.
            number: of the layer in the cache.
        """
        keys, values = step.cache.keys[number], step.cache.values[number]
        query, key, value = partials(x, self._projected.weight).split(self._projected.sizes, dim=-1)
        bias, angles = self._projected.bias, step.angles
        query = place_heads(query, key, value, self._norms, angles, step.slots, keys, values, bias)
        mixed = step.attend(query, keys, values, self._form).flatten(1)
        mixed = Unsummed(partials(mixed, self._out.weight), self._out.bias)
        residual, normed = _normed(self._norm, residual, self._kind, mixed)
        raised = product(normed, self._raised.weight, gate="silu")
        return residual, Unsummed(partials(raised, self._down.weight), self._down.bias)


class _Step(NamedTuple):
    """What all layers of a pass read besides hidden states; see `Pass`."""

    angles: tuple[Tensor, Tensor]
    slots: Tensor
    attend: Attends
    cache: TorchKVCache


class _Fused:
    """Base of the fused networks."""

    def __init__(self, net: Any) -> None:
        self._net, self._kind = net, net.rows.dtype
        self._layers = [_Layer(own) for own in net.layers]
        self._frequencies = net.layers[0].self_attn.rotate.frequencies

    def fits(self, num_rows: int) -> bool:
        """See `FusedHead`."""
        return num_rows <= FEW

    def scored(self, read: Tensor) -> Tensor:
        """See `FusedHead`."""
        rows = self._net.rows
        return product(read, rows, out=torch.empty(len(read), len(rows), device=read.device))

    def projected(self, taps: Tensor) -> Tensor:
        """See `FusedHead`."""
        return self._net.project(taps.view(len(taps), len(self._net.config.taps), -1))

    def _embedded(self, tokens: Tensor) -> Tensor:
        """[M, hidden] float32."""
        return embedded(tokens, tokens, self._net.table)

    def _empty(self, num_rows: int, width: int) -> Tensor:
        return torch.empty(num_rows, width, device=self._frequencies.device, dtype=self._kind)

    def _through(self, x: Tensor, residual: Tensor, placed: PagedRows, cache: TorchKVCache) -> tuple[Tensor, Unsummed]:
        """`_Layer` for all layers; `x` and `residual` are those of the first."""
        angles, attend = row_angles(placed.positions, self._frequencies), attention_over("triton", placed)
        step = _Step(angles, placed.slots, attend, cache)
        residual, to_add = self._layers[0](x, residual, 0, step)
        for number, layer in enumerate(self._layers[1:], start=1):
            own = self._net.layers[number].input_layernorm
            residual, x = _normed(own, residual, self._kind, to_add)
            residual, to_add = layer(x, residual, number, step)
        return residual, to_add


class _FusedEagle3(_Fused):
    """See `eagle3.py`."""

    def projected(self, taps: Tensor) -> Tensor:
        """See `FusedHead`."""
        net = self._net
        if net.config.fc_norm or net.config.norm_before_fc:
            return super().projected(taps)
        out = torch.empty(len(taps), len(net.fc.weight), device=taps.device)
        return product(taps.to(self._kind), net.fc.weight, net.fc.bias, out=out)

    def run(
        self, placed: PagedRows, tokens: Tensor, fed: Sequence[Tensor], cache: TorchKVCache
    ) -> tuple[Tensor, Tensor]:
        """See `FusedHead`."""
        net, first, [hidden] = self._net, self._net.layer, fed
        size = hidden.shape[1]
        x = self._empty(len(tokens), 2 * size)
        _normed(first.input_layernorm, self._embedded(tokens), x[:, :size])
        if first.normed_residual:
            hidden = _normed(first.hidden_norm, hidden, torch.float32)[1]
            x[:, size:].copy_(hidden)
        else:
            _normed(first.hidden_norm, hidden, x[:, size:])
        y, to_add = self._through(x, hidden, placed, cache)
        y, read = _normed(net.norm, y, self._kind, to_add)
        return read, read.float() if net.config.norm_output else y


class _FusedEagle(_Fused):
    """See `eagle.py`."""

    def run(
        self, placed: PagedRows, tokens: Tensor, fed: Sequence[Tensor], cache: TorchKVCache
    ) -> tuple[Tensor, Tensor]:
        """See `FusedHead`."""
        fc, [hidden] = self._net.fc, fed
        size = hidden.shape[1]
        both = self._empty(len(tokens), 2 * size)
        both[:, :size].copy_(self._embedded(tokens))
        both[:, size:].copy_(hidden)
        residual = product(both, fc.weight, fc.bias, out=torch.empty_like(hidden))
        residual, (parts, bias) = self._through(residual.to(self._kind), residual, placed, cache)
        y = residual + parts.sum(dim=0) if bias is None else residual + parts.sum(dim=0) + bias
        return y.to(self._kind), y


class _FusedBlock(_Fused):
    """See `dspark.py`."""

    def run(
        self, placed: PagedRows, tokens: Tensor, fed: Sequence[Tensor], cache: TorchKVCache
    ) -> tuple[Tensor, Tensor]:
        """See `FusedHead`."""
        residual, scale = self._embedded(tokens), self._net.config.embedding_scale
        residual = residual if scale == 1.0 else residual * scale
        _, x = _normed(self._net.layers[0].input_layernorm, residual, self._kind)
        residual, to_add = self._through(x, residual, placed, cache)
        _, read = _normed(self._net.norm, residual, self._kind, to_add)
        return read, read.float()


def _normed(norm: Norm, x: Tensor, into: torch.dtype | Tensor, added: Unsummed | None = None) -> tuple[Tensor, Tensor]:
    """(x [M, n] with what is added, its norm in the format or the tensor `into`)."""
    out = into if isinstance(into, Tensor) else torch.empty_like(x, dtype=into)
    return rms_norm(x, norm.weight, norm.eps, *(added or ()), out=out)
