"""`BlockMatrix`: a matrix in the blocks of a file on a device.

A byte holds two codes of up to 4 bits, or one longer code. Scales are the file's float16 numbers or powers of two, or
products with a span's integer, exact in float32. No weight is rounded. Not for reading files
(`numba_executor/blocks/unpack.py` does, for every executor), or for products and layers (`block_layers.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from paceline.errors import InvalidParameter
from paceline.models.files.checkpoint import StoredBlocks
from paceline.models.numba_executor.blocks.formats import FORMATS, BlockFormat
from paceline.models.numba_executor.blocks.unpack import Codes, unpack

_ROWS_AT_ONCE = 4096


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
