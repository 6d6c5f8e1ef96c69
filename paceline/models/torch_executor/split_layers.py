"""The two layers that know of other ranks: their outputs are sums over a tensor-parallel group.

All other layers of a shard are ordinary ones of a smaller size (`shard.py`). A process on its own sums over itself.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Sum = Callable[[Tensor], Tensor]
"""Adds a tensor up over the ranks that share a layer."""


def alone(part: Tensor) -> Tensor:
    """The sum over a group of one."""
    return part


class RowParallelLinear(nn.Linear):
    """A linear layer of which each rank has some of the inputs; the bias is added once, after the sum."""

    def __init__(self, inputs: int, outputs: int, bias: bool, total: Sum = alone) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self._total = total

    def forward(self, input: Tensor) -> Tensor:
        summed = self._total(functional.linear(input, self.weight))
        return summed if self.bias is None else summed + self.bias


class VocabularyParallelEmbedding(nn.Embedding):
    """An embedding of which each rank has the tokens from `first` on; the others' rows are zeros in the sum.

    Its table is not filled: drawing random numbers on the device `meta` makes torch import its compiler (a second).
    """

    def __init__(self, tokens: int, size: int, first: int = 0, total: Sum = alone) -> None:
        super().__init__(tokens, size, _weight=torch.empty(tokens, size))
        self._first, self._total = first, total

    def forward(self, input: Tensor) -> Tensor:
        if self._total is alone:
            return super().forward(input)
        own = input - self._first
        is_own = (own >= 0) & (own < self.num_embeddings)
        found = super().forward(own.clamp(0, self.num_embeddings - 1))
        return self._total(found * is_own[:, None])

    def project(self, x: Tensor) -> Tensor:
        """Logits [..., tokens] of final states x [..., hidden], where the head is tied to this table."""
        return functional.linear(x, self.weight)
