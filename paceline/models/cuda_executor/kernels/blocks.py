"""Products with weights in the blocks of a file: one Triton kernel that dequantises codes in registers.

A weight is scale * (value of its code) + shift, rounded to the format of the input rows. Tiles have a constant size and
sums have one order, as in `products.py`, so that a row's result does not depend on the number of rows. The reference is
`BlockMatrix.dense`. For many rows it is faster to widen the matrix once (`widened`).
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# Triton's types know neither numbers for `tl.constexpr` nor options of a launch, such as `num_stages`.

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.models.cuda_executor.block_matrix import BlockMatrix
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

_INPUTS = 128
"""Weights of a row in a tile: a whole number of spans."""
_PARTS = 4


@triton.jit
def _codes(codes, output, start, row_bytes, exists, HALVES: tl.constexpr, EVEN: tl.constexpr, BLOCK_K: tl.constexpr):
    """[outputs, BLOCK_K] the codes of weights from number `start` on."""
    if HALVES:  # noqa: SIM108 - decided when the kernel is compiled, as all conditions here
        at = start // 2 + tl.arange(0, BLOCK_K // 2)
    else:
        at = start + tl.arange(0, BLOCK_K)
    places = codes + output.to(tl.int64)[:, None] * row_bytes + at[None, :]
    if EVEN:  # noqa: SIM108
        found = tl.load(places)
    else:
        found = tl.load(places, mask=exists[:, None] & (at < row_bytes)[None, :], other=0)
    if HALVES:
        found = tl.interleave(found & 15, found >> 4)
    return found


@triton.jit
def _spread(numbers, output, start, spans, exists, SPAN: tl.constexpr, EVEN: tl.constexpr, BLOCK_K: tl.constexpr):
    """[outputs, BLOCK_K] float32: a number per span, for every weight from number `start` on."""
    COUNT: tl.constexpr = BLOCK_K // SPAN
    at = start // SPAN + tl.arange(0, COUNT)
    places = numbers + output.to(tl.int64)[:, None] * spans + at[None, :]
    if EVEN:  # noqa: SIM108
        found = tl.load(places)
    else:
        found = tl.load(places, mask=exists[:, None] & (at < spans)[None, :], other=0.0)
    wide = tl.broadcast_to(found.to(tl.float32)[:, :, None], [output.shape[0], COUNT, SPAN])
    return tl.reshape(wide, [output.shape[0], BLOCK_K])


@triton.jit
def weights_at(
    codes: tl.tensor, scales: tl.tensor, shifts: tl.tensor, values: tl.tensor, output: tl.tensor, start: tl.tensor,
    num_inputs: tl.tensor, exists: tl.tensor, kind: tl.constexpr, SPAN: tl.constexpr, ZERO: tl.constexpr,
    HALVES: tl.constexpr, HAS_VALUES: tl.constexpr, HAS_SHIFT: tl.constexpr, EVEN: tl.constexpr, BLOCK_K: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """[outputs, BLOCK_K] weights from number `start` of each row on; those after the last count nothing."""
    row_bytes, spans = num_inputs, num_inputs // SPAN
    if HALVES:
        row_bytes = num_inputs // 2
    code = _codes(codes, output, start, row_bytes, exists, HALVES, EVEN, BLOCK_K)
    if HAS_VALUES:
        wide = tl.load(values + code.to(tl.int32))
    else:
        wide = (code.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + ZERO)  # 2^23 + code
    wide = wide * _spread(scales, output, start, spans, exists, SPAN, EVEN, BLOCK_K)
    if HAS_SHIFT:
        wide += _spread(shifts, output, start, spans, exists, SPAN, EVEN, BLOCK_K)
    return wide.to(kind)


@triton.jit(do_not_specialize=["num_rows"])
def _block_product(
    x, codes, scales, shifts, values, bias, out, num_rows, num_outputs, num_inputs, out_columns,
    SPAN: tl.constexpr, ZERO: tl.constexpr, HALVES: tl.constexpr, HAS_VALUES: tl.constexpr, HAS_SHIFT: tl.constexpr,
    HAS_BIAS: tl.constexpr, GATE: tl.constexpr, EVEN: tl.constexpr, WAITS: tl.constexpr, SWAPS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PARTS: tl.constexpr,
    LETS_EARLY: tl.constexpr,
):  # fmt: skip
    """A tile of a part of x [rows, inputs] weight^T + bias; as `products._product`."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    part = tl.program_id(2)
    in_rows, in_outputs = row < num_rows, output < num_outputs
    length = tl.cdiv(tl.cdiv(num_inputs, BLOCK_K), PARTS) * BLOCK_K
    begin = part * length
    end = tl.minimum(begin + length, num_inputs)
    kind: tl.constexpr = x.dtype.element_ty
    wait_for_inputs(WAITS)
    if LETS_EARLY:
        let_next_begin(WAITS)
    summed = tl.zeros([BLOCK_N, BLOCK_M] if SWAPS else [BLOCK_M, BLOCK_N], tl.float32)
    second = tl.zeros([BLOCK_N, BLOCK_M] if SWAPS else [BLOCK_M, BLOCK_N], tl.float32)
    from_row = x + row.to(tl.int64)[:, None] * num_inputs
    for start in range(begin, end, BLOCK_K):
        read = inputs_at(from_row, start + tl.arange(0, BLOCK_K), end, in_rows, EVEN)
        weights = weights_at(
            codes, scales, shifts, values, output, start, num_inputs, in_outputs, kind, SPAN, ZERO, HALVES, HAS_VALUES,
            HAS_SHIFT, EVEN, BLOCK_K,
        )  # fmt: skip
        summed = times(weights, read, summed, SWAPS)
        if GATE > 0:
            weights = weights_at(
                codes, scales, shifts, values, output + num_outputs, start, num_inputs, in_outputs, kind, SPAN, ZERO,
                HALVES, HAS_VALUES, HAS_SHIFT, EVEN, BLOCK_K,
            )  # fmt: skip
            second = times(weights, read, second, SWAPS)
    if not LETS_EARLY:
        let_next_begin(WAITS)
    write_outputs(
        summed, second, bias, out, part, row, output, in_rows, in_outputs, num_rows, num_outputs, out_columns,
        HAS_BIAS, GATE, SWAPS,
    )  # fmt: skip


@triton.jit
def _widen(
    codes, scales, shifts, values, out, num_outputs, num_inputs,
    SPAN: tl.constexpr, ZERO: tl.constexpr, HALVES: tl.constexpr, HAS_VALUES: tl.constexpr, HAS_SHIFT: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """A tile of out [outputs, inputs], the weights."""
    output, start = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.program_id(1) * BLOCK_K
    inner, exists = start + tl.arange(0, BLOCK_K), output < num_outputs
    weights = weights_at(
        codes, scales, shifts, values, output, start, num_inputs, exists, out.dtype.element_ty, SPAN, ZERO, HALVES,
        HAS_VALUES, HAS_SHIFT, False, BLOCK_K,
    )  # fmt: skip
    places = out + output.to(tl.int64)[:, None] * num_inputs + inner[None, :]
    tl.store(places, weights, mask=exists[:, None] & (inner < num_inputs)[None, :])


def block_tile(outputs: int, inputs: int, *, in_parts: bool = False, is_gated: bool = False) -> Tile:
    """The tile of a product, by the weights' shape alone: small ones, because many programs hide dequantisation."""
    if in_parts:
        return Tile(32, _INPUTS, 3, 4, max(1, min(_PARTS, inputs // (3 * _INPUTS))), lets_early=True)
    return Tile(64 if outputs >= MANY_OUTPUTS and not is_gated else 32, _INPUTS, 3, 4)


def block_product(
    x: Tensor, weight: BlockMatrix, bias: Tensor | None, gate: str | None, tile: Tile, out: Tensor
) -> None:
    """x [M, inputs] times `weight`, written to `out` [M, outputs] or [parts, M, outputs]; see `products.product`."""
    rows, inputs = x.shape
    outputs = weight.shape[0] // (1 if gate is None else 2)
    if rows:
        _block_product[(triton.cdiv(rows, NARROW), triton.cdiv(outputs, tile.outputs), tile.parts)](
            x.contiguous(), *tensors_of(weight), x if bias is None else bias, out, rows, outputs, inputs,
            out.stride(-2), **form_of(weight), HAS_BIAS=bias is not None, GATE=GATES[gate],
            EVEN=tile.covers(outputs, inputs), **tile.options(), **dependent(x.device),
        )  # fmt: skip


def widened(weight: BlockMatrix, dtype: torch.dtype) -> Tensor:
    """[outputs, inputs] the whole matrix in `dtype`."""
    outputs, inputs = weight.shape
    out = torch.empty(outputs, inputs, device=weight.codes.device, dtype=dtype)
    _widen[(triton.cdiv(outputs, NARROW), triton.cdiv(inputs, _INPUTS))](
        *tensors_of(weight), out, outputs, inputs, **form_of(weight), BLOCK_N=NARROW, BLOCK_K=_INPUTS
    )
    return out


def tensors_of(weight: BlockMatrix) -> tuple[Tensor, ...]:
    """Codes, scales, shifts and values; scales where one is missing."""
    own = weight.scales
    shifts, values = (own if each is None else each for each in (weight.shifts, weight.values))
    return weight.codes, own, shifts, values


def form_of(weight: BlockMatrix) -> dict[str, int | bool]:
    """Compile-time arguments that say what codes mean."""
    return {
        "SPAN": weight.span, "ZERO": weight.zero, "HALVES": weight.halves, "HAS_VALUES": weight.values is not None,
        "HAS_SHIFT": weight.shifts is not None,
    }  # fmt: skip
