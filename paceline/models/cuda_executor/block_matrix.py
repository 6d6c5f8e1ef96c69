"""`BlockMatrix`: a matrix in the blocks of a file on a device, and linear layers and embeddings of it.

A byte holds two codes of up to 4 bits, or one longer code. Scales are the file's float16 numbers or powers of two, or
products with a span's integer, exact in float32. No weight is rounded. Not for reading files
(`numba_executor/blocks/unpack.py` does, for every executor).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.errors import InvalidParameter
from paceline.models.checkpoint import Checkpoint, StoredBlocks
from paceline.models.dtypes import has_blocks
from paceline.models.numba_executor.blocks.formats import FORMATS, BlockFormat
from paceline.models.numba_executor.blocks.unpack import Codes, unpack
from paceline.models.torch_executor.shard import Shard
from paceline.models.torch_executor.split_layers import (
    RowParallelLinear,
    Sum,
    VocabularyParallelEmbedding,
    alone,
    looked_up,
)
from paceline.models.torch_executor.weights import checkpoint_name

_ROWS_AT_ONCE = 4096
MANY = 64
"""Rows above which a library's product with the widened matrix is faster than the kernel, which widens it per 16."""


@dataclass(frozen=True, eq=False, slots=True)
class BlockMatrix:
    """n rows of k weights, scale * (value of code) + shift each.

    Attributes:
        codes: [n, k / 2] uint8, byte i with code 2 i in its low half and code 2 i + 1 in its high one; or [n, k] uint8
            (see `halves`).
        scales, shifts: [n, k / span] float16 or float32; shifts None without.
        values: [256] float32, values of codes; None where these are code - `zero`.
        span: weights that share a scale. halves: whether a byte has two codes.
    """

    codes: Tensor
    scales: Tensor
    shifts: Tensor | None
    values: Tensor | None
    span: int
    zero: int
    halves: bool

    @classmethod
    def of(cls, stored: StoredBlocks, device: torch.device) -> "BlockMatrix":
        """The matrix of `stored`, unpacked some rows at a time."""
        form = FORMATS[stored.storage]
        parts = [
            _arrays(unpack(stored.rows[first : first + _ROWS_AT_ONCE], form, stored.block_bytes), form)
            for first in range(0, len(stored.rows), _ROWS_AT_ONCE)
        ]
        codes, scales, shifts = (
            None if part[0] is None else torch.from_numpy(np.concatenate(part)).to(device)  # type: ignore[arg-type]
            for part in zip(*parts, strict=True)
        )
        assert codes is not None
        assert scales is not None
        table = None
        if form.table:
            table = torch.tensor([*form.table, *([0] * (256 - len(form.table)))], dtype=torch.float32) - form.zero
            table = table.to(device)
        return cls(codes, scales, shifts, table, form.span, form.zero, _has_halves(form))

    @property
    def shape(self) -> tuple[int, int]:
        """(n, k)."""
        return self.scales.shape[0], self.scales.shape[1] * self.span

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and shifts."""
        return sum(each.nbytes for each in (self.codes, self.scales, self.shifts) if each is not None)

    def rows(self, index: Tensor) -> Tensor:
        """The rows `index` [m], [m, k] float32."""
        packed = self.codes[index]
        if self.halves:
            packed = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)
        wide = packed.float() - self.zero if self.values is None else self.values[packed.long()]
        wide = wide.view(len(packed), -1, self.span) * self.scales[index].float()[..., None]
        if self.shifts is not None:
            wide = wide + self.shifts[index].float()[..., None]
        return wide.flatten(1)

    def dense(self) -> Tensor:
        """The whole matrix [n, k] in float32, for the reference of the kernel."""
        return self.rows(torch.arange(self.shape[0], device=self.codes.device))

    def times(self, x: Tensor, bias: Tensor | None = None, *, in_one_order: bool = False) -> Tensor:
        """x [..., k] times the matrix, plus bias [n]: by the kernel on a GPU, else by `dense`.

        Args:
            in_one_order: use the kernel for any number of rows, so that a row's sums do not depend on it.
        """
        flat = x.reshape(-1, self.shape[1])
        if x.device.type == "cuda" and (in_one_order or len(flat) <= MANY):
            from paceline.models.cuda_executor.kernels.products import product

            return product(flat, self, bias).view(*x.shape[:-1], -1)
        return functional.linear(x, self.widened(x.dtype), bias)

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The whole matrix [n, k] in `dtype`: by the kernel on a GPU, else by `dense`."""
        if self.codes.device.type != "cuda":
            return self.dense().to(dtype)
        from paceline.models.cuda_executor.kernels.blocks import widened

        return widened(self, dtype)

    def part(self, cut: tuple[slice, ...]) -> "BlockMatrix":
        """The part that a `Shard.cut` names.

        Raises:
            InvalidParameter: it ends within a span.
        """
        if not cut:
            return self
        rows, columns = cut if len(cut) == 2 else (*cut, slice(None))
        start, stop, _ = columns.indices(self.shape[1])
        if start % self.span or stop % self.span:
            problem = f"blocks of {self.span} weights cannot be cut at {start} and {stop}"
            raise InvalidParameter("tensor_parallel_size", problem, "use fewer ranks, or dtype='bfloat16'")

        def of(table: Tensor, width: int) -> Tensor:
            return table[rows, start // width : stop // width].contiguous()

        codes, shifts = of(self.codes, 2) if self.halves else self.codes[rows, start:stop].contiguous(), self.shifts
        scales = of(self.scales, self.span)
        return replace(self, codes=codes, scales=scales, shifts=None if shifts is None else of(shifts, self.span))

    @property
    def form(self) -> tuple:
        """Equal for matrices that can be joined."""
        table = None if self.values is None else tuple(self.values.tolist())
        return self.span, self.zero, self.halves, self.scales.dtype, self.shifts is None, table

    @classmethod
    def joined(cls, parts: Sequence["BlockMatrix"]) -> "BlockMatrix":
        """The rows of matrices of one form, one after another."""
        first = parts[0]
        shifts = None if first.shifts is None else torch.cat([cast(Tensor, part.shifts) for part in parts])
        codes, scales = torch.cat([part.codes for part in parts]), torch.cat([part.scales for part in parts])
        return replace(first, codes=codes, scales=scales, shifts=shifts)


class BlockLinear(nn.Module):
    """A linear layer with weights in blocks; its bias, if any, is an ordinary parameter.

    Args:
        in_one_order: see `BlockMatrix.times`.
        total: see `RowParallelLinear`.
    """

    def __init__(
        self, weight: BlockMatrix, bias: nn.Parameter | None, in_one_order: bool, total: Sum = alone
    ) -> None:  # fmt: skip
        super().__init__()
        self.weight, self.bias, self.in_one_order, self._total = weight, bias, in_one_order, total

    def forward(self, input: Tensor) -> Tensor:
        if self._total is alone:
            return self.weight.times(input, self.bias, in_one_order=self.in_one_order)
        summed = self._total(self.weight.times(input, in_one_order=self.in_one_order))
        return summed if self.bias is None else summed + self.bias


class BlockEmbedding(nn.Module):
    """Embeddings in blocks, which are also the weights of a tied head.

    Args:
        dtype: dtype of its outputs.
        in_one_order: see `BlockMatrix.times`.
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
        return self.weight.times(x, in_one_order=self._in_one_order)


def put_blocks(
    stack: nn.Module, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, in_one_order: bool,
    shard: Shard | None = None,
) -> int:  # fmt: skip
    """Replace every linear layer and embedding of `stack` that the file has in blocks; returns their bytes.

    Args:
        dtype: of embeddings.
        in_one_order: see `BlockMatrix.times`.
        shard: the part of the model that `stack` is; all of it by default.

    Raises:
        InvalidParameter: the file has none that can be multiplied, or some that cannot be shared, or Triton is missing
            on a GPU.
    """
    if not has_blocks(checkpoint):
        problem = f"'gguf' multiplies blocks of files, and this one has {checkpoint.storage}"
        raise InvalidParameter("dtype", problem, "use bfloat16 or auto")
    if device.type == "cuda" and find_spec("triton") is None:
        raise InvalidParameter("dtype", "'gguf' needs triton on a GPU", "run pip install 'paceline[cuda]', or use auto")

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


def _has_halves(form: BlockFormat) -> bool:
    return sum(form.planes) <= 4


def _arrays(read: Codes, form: BlockFormat) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Codes packed into bytes, scales and shifts per span."""
    codes = read.codes
    if _has_halves(form):
        codes = codes[:, ::2] | codes[:, 1::2] << 4
    scales = _per_span(read.scale_numbers(form), read.scale_steps, form)
    shifts = None if read.shifts is None else _per_span(read.shifts, read.shift_steps, form)
    if shifts is not None and form.zero_points:
        shifts = -shifts.astype(np.float32) * scales.astype(np.float32)
    return np.ascontiguousarray(codes), scales, shifts


def _per_span(numbers: np.ndarray, steps: np.ndarray | None, form: BlockFormat) -> np.ndarray:
    """The file's float16 numbers, or in float32 their exact products with integers."""
    if steps is None:
        return np.repeat(numbers, form.unit // form.span, axis=1)
    return np.repeat(numbers.astype(np.float32), form.unit // form.span, axis=1) * steps.astype(np.float32)
