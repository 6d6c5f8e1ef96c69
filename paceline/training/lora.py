"""Low-rank updates of frozen matrices (LoRA, Hu et al. 2022): W + scale * B A, with B zero at the start."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

_SCALE = 2.0
"""alpha / rank."""


class LoraLinear(nn.Module):
    """A linear layer with a low-rank update; the original weights are frozen and not part of its state dict.

    Args:
        layer: the original layer.
        rank: of the update.
        dtype: of the frozen weights; the update is in float32.
    """

    frozen: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Linear, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        bias = None if layer.bias is None else layer.bias.detach().to(dtype)
        self.register_buffer("frozen", layer.weight.detach().to(dtype), persistent=False)
        self.register_buffer("bias", bias, persistent=False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) * layer.in_features**-0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))
        self.is_updated = True

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_updated:
            return functional.linear(x.to(self.frozen.dtype), self.frozen, self.bias)
        update = functional.linear(functional.linear(x, self.down), self.up)
        return functional.linear(x.to(self.frozen.dtype), self.frozen, self.bias) + _SCALE * update

    def merged(self) -> Tensor:
        """[out, in] float32, the frozen matrix plus its update."""
        return self.frozen.float() + _SCALE * self.up.detach() @ self.down.detach()


def add_lora(net: nn.Module, rank: int, dtype: torch.dtype = torch.float32) -> None:
    """Replace every linear layer of `net` by a `LoraLinear`, and freeze all other parameters.

    Args:
        dtype: of the frozen matrices; bfloat16 halves their memory, and saves a conversion in each pass where products
            are in bfloat16 too.
    """
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    for owner in list(net.modules()):
        for name, layer in list(owner.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(owner, name, LoraLinear(layer, rank, dtype))


@contextmanager
def without_updates(net: nn.Module) -> Iterator[None]:
    """A context in which `net` computes without its low-rank updates."""
    layers = [layer for layer in net.modules() if isinstance(layer, LoraLinear)]
    for layer in layers:
        layer.is_updated = False
    try:
        yield
    finally:
        for layer in layers:
            layer.is_updated = True


def merged_state(net: nn.Module) -> dict[str, Tensor]:
    """The state dict of a plain network equal to `net`: updates are added to the frozen matrices."""
    found = {name: one for name, one in net.state_dict().items() if not name.endswith((".down", ".up"))}
    for name, layer in net.named_modules():
        if isinstance(layer, LoraLinear):
            found[f"{name}.weight"] = layer.merged()
            if layer.bias is not None:
                found[f"{name}.bias"] = layer.bias
    return found
