"""`RowInvariant`: a context in which products and means of layers sum in one order, whatever the number of rows.

Elementwise operations, PyTorch's layer norm and the kernel of paged attention always do. On a GPU it uses the Triton
kernels of `kernels/products.py`; on a CPU their references, one row after another. Not for attention.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Mean = Callable[[Tensor], Tensor]
_LINEAR, _MEAN = functional.linear, Tensor.mean


class RowInvariant(TorchFunctionMode):
    """A context that replaces `functional.linear` by `linear`, and means of the last dimension by `mean`."""

    def __init__(self, linear: Linear, mean: Mean) -> None:
        super().__init__()
        self._linear, self._mean = linear, mean

    def __torch_function__(
        self, func: Callable, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See `torch.overrides.TorchFunctionMode`."""
        named = kwargs or {}
        if func is _LINEAR:
            return self._linear(*args, **named)
        if func is _MEAN and args[1:] == (-1,) and named == {"keepdim": True}:
            return self._mean(args[0])
        return func(*args, **named)


def row_invariant(device: torch.device) -> RowInvariant:
    """The mode for tensors on `device`."""
    if device.type != "cuda":
        return RowInvariant(linear_by_rows, mean_by_rows)
    from paceline.models.cuda_executor.kernels.products import linear, row_mean

    return RowInvariant(linear, row_mean)


def linear_by_rows(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product [.., outputs] of input [.., inputs], one row after another: the kernel's reference."""
    rows = [functional.linear(row, weight, bias) for row in input.reshape(-1, 1, input.shape[-1])]
    return torch.cat([*rows, input.new_empty(0, len(weight))]).view(*input.shape[:-1], len(weight))


def mean_by_rows(x: Tensor) -> Tensor:
    """[..., 1] the mean of the last dimension, one row after another: the kernel's reference."""
    rows = [row.mean(-1, keepdim=True) for row in x.reshape(-1, x.shape[-1])]
    return torch.cat([*rows, x.new_empty(0)]).view(*x.shape[:-1], 1)
