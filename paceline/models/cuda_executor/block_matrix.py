"""`BlockMatrix`: a matrix in the blocks of a file on a device, and linear layers and embeddings of it.

A byte holds two codes of up to 4 bits, or one longer code. Scales are the file's float16 numbers or powers of two, or
products with a span's integer, exact in float32. No weight is rounded. Not for reading files
(`numba_executor/blocks/unpack.py` does, for every executor).
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.errors import InvalidParameter
from paceline.models.checkpoint import Checkpoint, StoredBlocks
from paceline.models.dtypes import has_blocks
from paceline.models.numba_executor.blocks.formats import FORMATS, GROUP, BlockFormat
from paceline.models.numba_executor.blocks.unpack import Codes, unpack
from paceline.models.torch_executor.weights import checkpoint_name

HALF_GROUP = GROUP // 2
"""Codes of a group in the low halves of bytes; the next ones are in the high halves."""
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False, slots=True)
class BlockMatrix:
    """n rows of k weights, scale * (value of code) + shift each.

    Attributes:
        codes: [n, k / 2] uint8, byte i of a group with code i in its low half and code i + 16 in its high one; or
            [n, k] uint8 (see `halves`).
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
            groups = packed.view(len(packed), -1, HALF_GROUP)
            packed = torch.cat([groups & 15, groups >> 4], dim=-1).flatten(1)
        wide = packed.float() - self.zero if self.values is None else self.values[packed.long()]
        wide = wide.view(len(packed), -1, self.span) * self.scales[index].float()[..., None]
        if self.shifts is not None:
            wide = wide + self.shifts[index].float()[..., None]
        return wide.flatten(1)

    def dense(self) -> Tensor:
        """The whole matrix [n, k] in float32, for the reference of the kernel."""
        return self.rows(torch.arange(self.shape[0], device=self.codes.device))

    def times(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x [..., k] times the matrix, plus bias [n]: by the kernel on a GPU, else by `dense`."""
        if x.device.type != "cuda":
            return functional.linear(x, self.dense().to(x.dtype), bias)
        from paceline.models.cuda_executor.kernels.blocks import block_linear

        return block_linear(x, self, bias)


class BlockLinear(nn.Module):
    """A linear layer with weights in blocks; its bias, if any, is an ordinary parameter."""

    def __init__(self, matrix: BlockMatrix, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.matrix = matrix
        self.bias = bias

    def forward(self, input: Tensor) -> Tensor:
        return self.matrix.times(input, self.bias)


class BlockEmbedding(nn.Module):
    """Embeddings in blocks, which are also the weights of a tied head.

    Args:
        dtype: dtype of its outputs.
    """

    def __init__(self, matrix: BlockMatrix, dtype: torch.dtype) -> None:
        super().__init__()
        self.matrix, self._dtype = matrix, dtype

    def forward(self, input: Tensor) -> Tensor:
        return self.matrix.rows(input).to(self._dtype)

    def project(self, x: Tensor) -> Tensor:
        """Logits [..., tokens] of final states x [..., hidden]."""
        return self.matrix.times(x)


def put_blocks(stack: nn.Module, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> int:
    """Replace every linear layer and embedding of `stack` that the file has in blocks; returns their bytes.

    Raises:
        InvalidParameter: the file has none that can be multiplied.
    """
    total = 0
    if not has_blocks(checkpoint):
        problem = f"'gguf' multiplies blocks of files, and this one has {checkpoint.storage}"
        raise InvalidParameter("dtype", problem, "use bfloat16 or auto")
    for path, layer in list(stack.named_modules()):
        if not isinstance(layer, nn.Linear | nn.Embedding):
            continue
        stored = checkpoint.blocks(checkpoint_name(f"{path}.weight"))
        if stored is None or stored.storage not in FORMATS:
            continue
        matrix = BlockMatrix.of(stored, device)
        total += matrix.nbytes
        is_linear = isinstance(layer, nn.Linear)
        parent, _, name = path.rpartition(".")
        own = BlockLinear(matrix, layer.bias) if is_linear else BlockEmbedding(matrix, dtype)
        setattr(stack.get_submodule(parent), name, own)
    return total


def _has_halves(form: BlockFormat) -> bool:
    return sum(form.planes) <= 4


def _arrays(read: Codes, form: BlockFormat) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Codes packed into bytes, scales and shifts per span."""
    codes = read.codes
    if _has_halves(form):
        groups = codes.reshape(len(codes), -1, 2, HALF_GROUP)
        codes = (groups[:, :, 0] | groups[:, :, 1] << 4).reshape(len(codes), -1)
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
