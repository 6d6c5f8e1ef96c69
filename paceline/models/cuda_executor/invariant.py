"""`RowInvariant`: while it is on, the products and means of the layers sum in one order, whatever the number of rows.

Entry-by-entry operations, PyTorch's layer norm and the paged kernel do so by themselves. On a GPU the Triton kernels of
`kernels/products.py` are taken; on a CPU their slow twins, one row after another. Not for attention.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
Mean = Callable[[Tensor], Tensor]


class RowInvariant(TorchFunctionMode):
    """A context in which `functional.linear`, and the mean of the last dimension, are those of `linear` and `mean`."""

    def __init__(self, linear: Linear, mean: Mean) -> None:
        super().__init__()
        self._linear, self._mean = linear, mean

    def __torch_function__(
        self, func: Callable, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """See `torch.overrides.TorchFunctionMode`."""
        named = dict(kwargs or {})
        if func is functional.linear:
            return self._linear(*args, **named)
        if func is Tensor.mean and args[1:] == (-1,) and named == {"keepdim": True}:
            return self._mean(args[0])
        return func(*args, **named)


def row_invariant(device: torch.device) -> RowInvariant:
    """The mode for tensors on `device`."""
    if device.type != "cuda":
        return RowInvariant(linear_by_rows, mean_by_rows)
    from paceline.models.cuda_executor.kernels.products import linear, row_mean

    return RowInvariant(linear, row_mean)


def linear_by_rows(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product [rows, outputs] of input [rows, inputs], one row after another: the twin of the kernel."""
    rows = [functional.linear(row, weight, bias) for row in input.reshape(-1, 1, input.shape[-1])]
    return torch.cat([*rows, input.new_empty(0, len(weight))]).view(*input.shape[:-1], len(weight))


def mean_by_rows(x: Tensor) -> Tensor:
    """[..., 1] the mean of the last dimension, one row after another: the twin of the kernel."""
    rows = [row.mean(-1, keepdim=True) for row in x.reshape(-1, x.shape[-1])]
    return torch.cat([*rows, x.new_empty(0)]).view(*x.shape[:-1], 1)
