"""Products with matrices in blocks, and linear layers and embeddings of such weights.

On a GPU few rows are multiplied by a kernel that widens blocks in registers (`kernels/blocks.py`). Not for how blocks
lie in memory (`block_matrix.py`).
"""

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.errors import InvalidParameter
from paceline.extras import install
from paceline.models.cuda_executor.block_matrix import BlockMatrix
from paceline.models.dtypes import has_blocks
from paceline.models.files.checkpoint import Checkpoint
from paceline.models.numba_executor.blocks.formats import FORMATS
from paceline.models.torch_executor.shard import Shard
from paceline.models.torch_executor.split_layers import (
    RowParallelLinear,
    Sum,
    VocabularyParallelEmbedding,
    alone,
    looked_up,
)
from paceline.models.torch_executor.weights import checkpoint_name

MANY = 64
"""Rows above which a library's product with the widened matrix is faster than the kernel, which widens it per 16."""


def times(matrix: BlockMatrix, x: Tensor, bias: Tensor | None = None, *, in_one_order: bool = False) -> Tensor:
    """x [..., k] times the `matrix` [n, k], plus bias [n]: by the kernel on a GPU, else by the widened matrix.

    Args:
        in_one_order: use the kernel for any number of rows, so that a row's sums do not depend on it.
    """
    flat = x.reshape(-1, matrix.shape[1])
    if x.device.type == "cuda" and (in_one_order or len(flat) <= MANY):
        from paceline.models.cuda_executor.kernels.products import product

        return product(flat, matrix, bias).view(*x.shape[:-1], -1)
    return functional.linear(x, widened(matrix, x.dtype), bias)


def widened(matrix: BlockMatrix, dtype: torch.dtype) -> Tensor:
    """The whole matrix [n, k] in `dtype`: by the kernel on a GPU, else by `BlockMatrix.dense`."""
    if matrix.codes.device.type != "cuda":
        return matrix.dense().to(dtype)
    from paceline.models.cuda_executor.kernels.blocks import widened

    return widened(matrix, dtype)


class BlockLinear(nn.Module):
    """A linear layer with weights in blocks; its bias, if any, is an ordinary parameter.

    Args:
        in_one_order: see `times`.
        total: see `RowParallelLinear`.
    """

    def __init__(
        self, weight: BlockMatrix, bias: nn.Parameter | None, in_one_order: bool, total: Sum = alone
    ) -> None:  # fmt: skip
        super().__init__()
        self.weight, self.bias, self.in_one_order, self._total = weight, bias, in_one_order, total

    def forward(self, input: Tensor) -> Tensor:
        if self._total is alone:
            return times(self.weight, input, self.bias, in_one_order=self.in_one_order)
        summed = self._total(times(self.weight, input, in_one_order=self.in_one_order))
        return summed if self.bias is None else summed + self.bias


class BlockEmbedding(nn.Module):
    """Embeddings in blocks, which are also the weights of a tied head.

    Args:
        dtype: dtype of its outputs.
        in_one_order: see `times`.
        first, total: see `VocabularyParallelEmbedding`.
    """

    def __init__(
        self, weight: BlockMatrix, dtype: torch.dtype, in_one_order: bool, first: int = 0, total: Sum = alone
    ) -> None:
        super().__init__()
        self.weight, self._dtype, self._in_one_order = weight, dtype, in_one_order
        self._first, self._total = first, total

    def forward(self, input: Tensor) -> Tensor:
        def table(tokens: Tensor) -> Tensor:
            return self.weight.rows(tokens).to(self._dtype)

        return looked_up(table, input, self.weight.shape[0], self._first, self._total)

    def project(self, x: Tensor) -> Tensor:
        """Logits [..., tokens] of final states x [..., hidden]."""
        return times(self.weight, x, in_one_order=self._in_one_order)


def put_blocks(
    stack: nn.Module, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, in_one_order: bool,
    shard: Shard | None = None,
) -> int:  # fmt: skip
    """Replace every linear layer and embedding of `stack` that the file has in blocks; returns their bytes.

    Args:
        dtype: of embeddings.
        in_one_order: see `times`.
        shard: the part of the model that `stack` is; all of it by default.

    Raises:
        InvalidParameter: the file has none that can be multiplied, or some that cannot be shared, or Triton is missing
            on a GPU.
    """
    if not has_blocks(checkpoint):
        problem = f"'gguf' multiplies blocks of files, and this one has {checkpoint.storage}"
        raise InvalidParameter("dtype", problem, "use bfloat16 or auto")
    if device.type == "cuda" and find_spec("triton") is None:
        raise InvalidParameter("dtype", "'gguf' needs triton on a GPU", f"run {install('cuda')}, or use auto")

    def found(path: str, _: nn.Module) -> BlockMatrix | None:
        name = f"{path}.weight"
        stored = checkpoint.blocks(checkpoint_name(name))
        if stored is None or stored.storage not in FORMATS:
            return None
        return BlockMatrix.of(stored, device).part(shard.cut(name) if shard else ())

    return replace_matrices(stack, found, dtype, in_one_order)


def replace_matrices(
    stack: nn.Module, found: Callable[[str, nn.Module], BlockMatrix | None], dtype: torch.dtype, in_one_order: bool
) -> int:
    """Replace the linear layers and embeddings of `stack` for which `found` (path, layer) gives a matrix.

    Returns the bytes of the matrices; arguments as of `put_blocks`.
    """
    total = 0
    for path, layer in list(stack.named_modules()):
        if not isinstance(layer, nn.Linear | nn.Embedding):
            continue
        matrix = found(path, layer)
        if matrix is None:
            continue
        total += matrix.nbytes
        if isinstance(layer, RowParallelLinear):
            own = BlockLinear(matrix, layer.bias, in_one_order, layer.total)
        elif isinstance(layer, nn.Linear):
            own = BlockLinear(matrix, layer.bias, in_one_order)
        elif isinstance(layer, VocabularyParallelEmbedding):
            own = BlockEmbedding(matrix, dtype, in_one_order, layer.first, layer.total)
        else:
            own = BlockEmbedding(matrix, dtype, in_one_order)
        parent, _, name = path.rpartition(".")
        setattr(stack.get_submodule(parent), name, own)
    return total
