"""Matrix products of few rows, as one Triton kernel with a fixed order of summation.

Such a product takes as long as reading its weights. Where few outputs would leave most of a device idle, the inner
dimension is split into a fixed number of parts (split-K), whose sums are stored separately (`partials`); the next
kernel adds them up in order (`entries.py`). A gated activation is fused.

Row invariance: tiles and parts depend on the weights' shape alone and each part is summed from front to back, whatever
the number of rows (He et al. 2025, Defeating nondeterminism in LLM inference). Libraries choose both by the number of
rows; for many rows they are faster.

The reference functions are in `invariant.py` and `torch_executor/layers.py`.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# Triton's types know neither numbers for `tl.constexpr` nor options of a launch, such as `num_stages`.

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.models.cuda_executor.block_matrix import BlockMatrix
from paceline.models.cuda_executor.kernels.blocks import block_product, block_tile
from paceline.models.cuda_executor.kernels.dependent import dependent, let_next_begin, wait_for_inputs
from paceline.models.cuda_executor.kernels.tiles import (
    GATES,
    MANY_OUTPUTS,
    NARROW,
    Tile,
    inputs_at,
    times,
    write_outputs,
)

Weights = Tensor | BlockMatrix
"""A matrix [outputs, inputs]."""
_PROGRAMS = 128
"""Number of programs that keep a large device busy."""
_MOST_PARTS = 5
"""Most parts; more take longer to add up than they save."""
_COLUMNS = 1024


@triton.jit
def weights_at(
    own: tl.tensor, at: tl.tensor, end: tl.tensor, in_outputs: tl.tensor, EVEN: tl.constexpr
) -> tl.tensor:  # fmt: skip
    """[outputs, inner] the weights of inputs `at`, from the rows at `own`; 0 from `end` on."""
    if EVEN:
        found = tl.load(own + at[None, :])
    else:
        found = tl.load(own + at[None, :], mask=in_outputs[:, None] & (at < end)[None, :], other=0.0)
    return found


@triton.jit(do_not_specialize=["num_rows"])
def _product(
    x, weight, bias, out, num_rows, num_outputs, num_inputs, out_columns,
    HAS_BIAS: tl.constexpr, GATE: tl.constexpr, EVEN: tl.constexpr, WAITS: tl.constexpr, SWAPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PARTS: tl.constexpr,
    READS_EARLY: tl.constexpr, LETS_EARLY: tl.constexpr,
):  # fmt: skip
    """A tile of a part of out [parts, rows, outputs] = x [rows, inputs] weight^T [inputs, outputs] + bias [outputs].

    GATE 1 (silu) or 2 (gelu by tanh): weight and bias have twice as many outputs, and out = act(first) * second.
    EVEN: see `Tile.covers`.
    """
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.program_id(2)
    inner = tl.arange(0, BLOCK_K)
    in_rows, in_outputs = row < num_rows, output < num_outputs
    length = tl.cdiv(tl.cdiv(num_inputs, BLOCK_K), PARTS) * BLOCK_K
    begin = part * length
    end = tl.minimum(begin + length, num_inputs)
    own = weight + output.to(tl.int64)[:, None] * num_inputs
    other = weight + (output.to(tl.int64) + num_outputs)[:, None] * num_inputs
    early = weights_at(own, begin + inner, end, in_outputs, EVEN) if READS_EARLY else 0
    early_second = weights_at(other, begin + inner, end, in_outputs, EVEN) if READS_EARLY and GATE > 0 else 0
    wait_for_inputs(WAITS)
    if LETS_EARLY:
        let_next_begin(WAITS)
    summed = tl.zeros([BLOCK_N, BLOCK_M] if SWAPS else [BLOCK_M, BLOCK_N], tl.float32)
    second = tl.zeros([BLOCK_N, BLOCK_M] if SWAPS else [BLOCK_M, BLOCK_N], tl.float32)
    from_row = x + row.to(tl.int64)[:, None] * num_inputs
    if READS_EARLY:
        values = inputs_at(from_row, begin + inner, end, in_rows, EVEN)
        summed = times(early, values, summed, SWAPS)
        if GATE > 0:
            second = times(early_second, values, second, SWAPS)
        begin += BLOCK_K
    for start in range(begin, end, BLOCK_K):
        at = start + inner
        values = inputs_at(from_row, at, end, in_rows, EVEN)
        summed = times(weights_at(own, at, end, in_outputs, EVEN), values, summed, SWAPS)
        if GATE > 0:
            second = times(weights_at(other, at, end, in_outputs, EVEN), values, second, SWAPS)
    if not LETS_EARLY:
        let_next_begin(WAITS)
    write_outputs(
        summed, second, bias, out, part, row, output, in_rows, in_outputs, num_rows, num_outputs, out_columns,
        HAS_BIAS, GATE, SWAPS,
    )  # fmt: skip


@triton.jit
def _row_mean(x, out, num_columns, BLOCK: tl.constexpr):
    """out [rows] = mean of x [rows, columns], float32."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    summed = tl.zeros([BLOCK], tl.float32)
    for start in range(0, num_columns, BLOCK):
        summed += tl.load(x + row * num_columns + start + column, mask=start + column < num_columns, other=0.0)
    tl.store(out + row, tl.sum(summed, axis=0) / num_columns)


def product(
    x: Tensor, weight: Weights, bias: Tensor | None = None, *, gate: str | None = None, out: Tensor | None = None
) -> Tensor:
    """[M, outputs] in the format of x, or in `out`: x [M, inputs] times weight [outputs, inputs] plus bias [outputs].

    Args:
        gate: ``silu`` or ``gelu``: `weight` and `bias` have first all gates, then all that these multiply.
        out: [M, outputs] contiguous, of any format.
    """
    outputs, inputs = weight.shape[0] // (1 if gate is None else 2), weight.shape[1]
    out = torch.empty(len(x), outputs, device=x.device, dtype=x.dtype) if out is None else out
    if isinstance(weight, BlockMatrix):
        tile = block_tile(outputs, inputs, is_gated=gate is not None)
    else:
        tile = tile_of(outputs, inputs, weight.itemsize, gate is not None)
    _launch(x, weight, bias, gate, tile, out)
    return out


def partials(x: Tensor, *weights: Weights) -> Tensor:
    """[parts, M, outputs] float32, whose sum over parts, in order, is x [M, inputs] times weights [outputs, inputs].

    Args:
        weights: one matrix, or several whose outputs follow each other.
    """
    sizes, inputs = [weight.shape[0] for weight in weights], x.shape[1]
    tiles = [
        block_tile(sum(sizes), inputs, in_parts=True) if isinstance(weight, BlockMatrix)
        else tile_in_parts(sum(sizes), inputs, weight.itemsize)
        for weight in weights
    ]  # fmt: skip
    out = torch.empty(tiles[0].parts, len(x), sum(sizes), device=x.device, dtype=torch.float32)
    for weight, tile, own in zip(weights, tiles, out.split(sizes, dim=-1), strict=True):
        _launch(x, weight, None, None, replace(tile, parts=len(out)), own)
    return out


def _launch(x: Tensor, weight: Weights, bias: Tensor | None, gate: str | None, tile: Tile, out: Tensor) -> None:
    """Run the kernel; `out` [M, outputs], or [parts, M, outputs], may be columns of wider lines."""
    if isinstance(weight, BlockMatrix):
        block_product(x, weight, bias, gate, tile, out)
        return
    rows, inputs = x.shape
    outputs = len(weight) // (1 if gate is None else 2)
    if rows:
        _product[(triton.cdiv(rows, NARROW), triton.cdiv(outputs, tile.outputs), tile.parts)](
            x.contiguous(), weight, weight if bias is None else bias, out, rows, outputs, inputs, out.stride(-2),
            HAS_BIAS=bias is not None, GATE=GATES[gate], EVEN=tile.covers(outputs, inputs),
            READS_EARLY=tile.reads_early, **tile.options(), **dependent(x.device),
        )  # fmt: skip


def tile_of(outputs: int, inputs: int, itemsize: int, is_gated: bool) -> Tile:
    """The tile of a product in one part, by the weights' shape alone."""
    most = max(16, triton.next_power_of_2(inputs))
    if itemsize > 2:
        return Tile(32, min(64, most), 2, 4)
    if is_gated:
        return Tile(32, min(128, most), 3, 4, reads_early=True)
    if outputs >= MANY_OUTPUTS:
        return Tile(64, min(128, most), 4, 4)
    return Tile(16, min(256, most), 4, 2)


def tile_in_parts(outputs: int, inputs: int, itemsize: int) -> Tile:
    """The tile of a product in parts: as many as give most of a device work, of a few tiles each."""
    size = min(128 if itemsize <= 2 else 32, max(16, triton.next_power_of_2(inputs)))
    wanted = _PROGRAMS // triton.cdiv(outputs, 64)
    parts = max(1, min(_MOST_PARTS, triton.next_power_of_2(wanted), inputs // (3 * size)))
    return Tile(64, size, 4 if itemsize <= 2 else 2, 4, parts, lets_early=True)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., inputs] times weight [outputs, inputs], plus bias [outputs], as `functional.linear`."""
    flat = x.reshape(-1, weight.shape[1])
    return product(flat, weight.contiguous(), bias).view(*x.shape[:-1], len(weight))


def row_mean(x: Tensor) -> Tensor:
    """[..., 1] float32: the mean of the last dimension of x float32, kept as a dimension."""
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    out = torch.empty(len(flat), device=x.device, dtype=torch.float32)
    if len(flat):
        _row_mean[(len(flat),)](flat, out, flat.shape[1], BLOCK=_COLUMNS)
    return out.view(*x.shape[:-1], 1)
