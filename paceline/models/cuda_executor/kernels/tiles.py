"""What matrix products of few rows share, whatever holds their weights: tiles, input rows, sums and outputs.

Not for reading weights (`products.py`, `blocks.py`).
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# Triton's types know no numbers for `tl.constexpr`.

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from paceline.models.architecture.family import SWIGLU_ALPHA, SWIGLU_LIMIT
from paceline.models.cuda_executor.kernels.entries import acted

NARROW = 16
"""Rows of a tile, the minimum for tensor cores: up to this number, a product takes as long as one of a single row."""
GATES = {None: 0, "silu": 1, "gelu": 2, "clamped": 3, "relu2": -1}
"""Numbers of activations in kernels; those with a gate, which takes a second product, are above 0."""
_ALPHA, _LIMIT = tl.constexpr(SWIGLU_ALPHA), tl.constexpr(SWIGLU_LIMIT)
MANY_OUTPUTS = 8192
"""Outputs from which a product has enough tiles, however large these are."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Tiling of a product.

    Attributes:
        outputs, inputs: size of a tile.
        stages: pipeline stages, i.e. tiles that are loaded ahead.
        warps: warps of a program.
        parts: parts of the inner dimension.
        reads_early: whether weights of the first tile are read before the input rows are ready.
        lets_early: whether the next kernel may begin as soon as the input rows are ready, rather than after the sum:
            for products that leave it room.
    """

    outputs: int
    inputs: int
    stages: int
    warps: int
    parts: int = 1
    reads_early: bool = False
    lets_early: bool = False

    def covers(self, outputs: int, inputs: int) -> bool:
        """Whether tiles cover outputs and inputs exactly, and every part has a first tile where that is read early."""
        number, over = divmod(inputs, self.inputs)
        in_last = number - (self.parts - 1) * -(-number // self.parts)
        return not over and outputs % self.outputs == 0 and in_last >= self.reads_early

    def options(self) -> dict[str, Any]:
        """Compile-time arguments and options of a launch."""
        return {
            "SWAPS": self.outputs >= 64, "BLOCK_M": NARROW, "BLOCK_N": self.outputs, "BLOCK_K": self.inputs,
            "PARTS": self.parts, "LETS_EARLY": self.lets_early, "num_stages": self.stages, "num_warps": self.warps,
        }  # fmt: skip


@triton.jit
def times(weights: tl.tensor, values: tl.tensor, summed: tl.tensor, SWAPS: tl.constexpr) -> tl.tensor:
    """summed + weights [outputs, inner] values [rows, inner]^T, or its transpose."""
    if SWAPS:
        summed = tl.dot(weights, values.T, summed, input_precision="ieee")
    else:
        summed = tl.dot(values, weights.T, summed, input_precision="ieee")
    return summed


@triton.jit
def inputs_at(from_row: tl.tensor, at: tl.tensor, end: tl.tensor, in_rows: tl.tensor, EVEN: tl.constexpr) -> tl.tensor:
    """[rows, inner] inputs `at` of the rows at `from_row`; 0 from `end` on."""
    if EVEN:
        found = tl.load(from_row + at[None, :], mask=in_rows[:, None], other=0.0)
    else:
        found = tl.load(from_row + at[None, :], mask=in_rows[:, None] & (at < end)[None, :], other=0.0)
    return found


@triton.jit
def gated_by(gate: tl.tensor, up: tl.tensor, GATE: tl.constexpr) -> tl.tensor:
    """act(gate) * up in float32; see `GATES`."""
    if GATE == 3:
        gate = tl.minimum(gate, _LIMIT)
        up = tl.minimum(tl.maximum(up, -_LIMIT), _LIMIT) + 1.0
        found = gate * tl.sigmoid(gate * _ALPHA) * up
    else:
        found = acted(gate, GATE == 1) * up
    return found


@triton.jit
def write_outputs(
    summed: tl.tensor, second: tl.tensor, bias: tl.tensor, out: tl.tensor, part: tl.tensor, row: tl.tensor,
    output: tl.tensor, in_rows: tl.tensor, in_outputs: tl.tensor, num_rows: tl.tensor, num_outputs: tl.tensor,
    out_columns: tl.tensor, HAS_BIAS: tl.constexpr, GATE: tl.constexpr, SWAPS: tl.constexpr,
) -> None:  # fmt: skip
    """Store a tile of sums, plus bias, in lines of `out_columns` numbers; see `_product` for `GATE`."""
    if SWAPS:
        summed, second = summed.T, second.T
    if HAS_BIAS:
        summed += tl.load(bias + output, mask=in_outputs, other=0.0).to(tl.float32)[None, :]
        if GATE > 0:
            second += tl.load(bias + num_outputs + output, mask=in_outputs, other=0.0).to(tl.float32)[None, :]
    if GATE > 0:
        summed = gated_by(summed, second, GATE)
    to = (part.to(tl.int64) * num_rows + row)[:, None] * out_columns + output[None, :]
    tl.store(out + to, summed.to(out.dtype.element_ty), mask=in_rows[:, None] & in_outputs[None, :])
