"""Stores the weights of a head in the target's dtype; sums, norms and logits stay in float32."""

import torch
from torch import Tensor, nn
from torch.nn import functional


class StoredLinear(nn.Module):
    """A linear layer with weights in some format: float32 in, float32 out."""

    def __init__(self, own: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(own.weight.detach().to(dtype), requires_grad=False)
        self.bias = None if own.bias is None else nn.Parameter(own.bias.detach().to(dtype), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x.to(self.weight.dtype), self.weight, self.bias).float()


def store(net: nn.Module, dtype: torch.dtype) -> nn.Module:
    """`net` with its matrices, tables and shared head rows in `dtype`; norms keep their dtype."""
    if dtype == torch.float32:
        return net
    for name, layer in list(net.named_modules()):
        parent, _, own = name.rpartition(".")
        if isinstance(layer, nn.Linear):
            setattr(net.get_submodule(parent), own, StoredLinear(layer, dtype))
        elif isinstance(layer, nn.Embedding):
            layer.to(dtype)
    for name in ("shared_embedding", "shared_rows", "head_rows", "embedding"):
        lent = getattr(net, name, None)
        if isinstance(lent, Tensor):
            setattr(net, name, lent.to(dtype))
    return net
