"""The two layers whose outputs are summed over a tensor-parallel group (all-reduce).

All other layers of a shard are ordinary ones of a smaller size (`shard.py`). In a single process the sum is the output
itself.
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


def looked_up(table: Callable[[Tensor], Tensor], tokens: Tensor, size: int, first: int, total: Sum) -> Tensor:
    """[M, hidden] of `tokens` [M], of which this rank's `table` has `size`, from `first` on."""
    if total is alone:
        return table(tokens)
    own = tokens - first
    is_own = (own >= 0) & (own < size)
    return total(table(own.clamp(0, size - 1)) * is_own[:, None])


class RowParallelLinear(nn.Linear):
    """A linear layer split by input over the ranks; the bias is added once, after the sum.

    Attributes:
        total: as given.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool, total: Sum = alone) -> None:
        super().__init__(inputs, outputs, bias=bias)
        self.total = total

    def forward(self, input: Tensor) -> Tensor:
        summed = self.total(functional.linear(input, self.weight))
        return summed if self.bias is None else summed + self.bias


class VocabularyParallelEmbedding(nn.Embedding):
    """An embedding split by token over the ranks, this one's from `first` on; other tokens add zeros to the sum.

    Attributes:
        first, total: as given.

    The table is not initialised: drawing random numbers on the meta device makes torch import its compiler (a second).
    """

    def __init__(self, tokens: int, size: int, first: int = 0, total: Sum = alone) -> None:
        super().__init__(tokens, size, _weight=torch.empty(tokens, size))
        self.first, self.total = first, total

    def forward(self, input: Tensor) -> Tensor:
        return looked_up(super().forward, input, self.num_embeddings, self.first, self.total)

    def project(self, x: Tensor) -> Tensor:
        """Logits [..., tokens] of final states x [..., hidden], where the head is tied to this table."""
        return functional.linear(x, self.weight)
