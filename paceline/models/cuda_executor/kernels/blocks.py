"""Products with weights in the blocks of a file: one Triton kernel that dequantises codes in registers.

A weight is scale * (value of its code) + shift. Tiles have a constant size and sums have one order, as in
`products.py`, so that a row's result does not depend on the number of rows. The reference is `BlockMatrix.dense`.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# Triton's types know neither numbers for `tl.constexpr` nor options of a launch, such as `num_stages`.

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.models.cuda_executor.block_matrix import HALF_GROUP, BlockMatrix

_ROWS = 16
_OUTPUTS = 32
_BYTES = 64
"""Bytes of codes that a step reads per row of weights: a whole number of groups."""


@triton.jit
def _widened(codes, values, scale, shift, HAS_VALUES: tl.constexpr, HAS_SHIFT: tl.constexpr, ZERO: tl.constexpr):
    """Float32 weights of codes: by a table or code - ZERO, times scale, plus shift."""
    if HAS_VALUES:  # noqa: SIM108 - decided when the kernel is compiled
        wide = tl.load(values + codes)
    else:
        wide = codes.to(tl.float32) - ZERO
    wide = wide * scale
    if HAS_SHIFT:
        wide = wide + shift
    return wide


@triton.jit(do_not_specialize=["num_rows"])
def _block_product(
    x, codes, scales, shifts, values, bias, out, num_rows, num_outputs, num_inputs, row_bytes,
    SPAN: tl.constexpr, ZERO: tl.constexpr, HALVES: tl.constexpr, HAS_VALUES: tl.constexpr, HAS_SHIFT: tl.constexpr,
    HAS_BIAS: tl.constexpr, HALF: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """One tile of out [rows, outputs] = x [rows, inputs] weight^T + bias [outputs]."""
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    output = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    in_rows, in_outputs = row < num_rows, output < num_outputs
    place = tl.arange(0, BLOCK_B)
    spans = num_inputs // SPAN
    summed = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, row_bytes, BLOCK_B):
        at = start + place
        exists = (at < row_bytes)[:, None] & in_outputs[None, :]
        packed = tl.load(codes + output.to(tl.int64)[None, :] * row_bytes + at[:, None], mask=exists, other=0).to(
            tl.int32
        )
        for half in tl.static_range(2 if HALVES else 1):  # pyright: ignore[reportGeneralTypeIssues]
            if HALVES:
                inner = at // HALF * (2 * HALF) + half * HALF + at % HALF
                code = (packed >> (4 * half)) & 15
            else:
                inner = at
                code = packed
            span = output.to(tl.int64)[None, :] * spans + (inner // SPAN)[:, None]
            scale = tl.load(scales + span, mask=exists, other=0.0).to(tl.float32)
            shift = scale
            if HAS_SHIFT:
                shift = tl.load(shifts + span, mask=exists, other=0.0).to(tl.float32)
            weight = _widened(code, values, scale, shift, HAS_VALUES, HAS_SHIFT, ZERO)
            is_inner = in_rows[:, None] & (at < row_bytes)[None, :]
            a = tl.load(x + row.to(tl.int64)[:, None] * num_inputs + inner[None, :], mask=is_inner, other=0.0)
            summed = tl.dot(a, weight.to(a.dtype), summed, input_precision="ieee")
    if HAS_BIAS:
        summed += tl.load(bias + output, mask=in_outputs, other=0.0).to(tl.float32)[None, :]
    to = row.to(tl.int64)[:, None] * num_outputs + output[None, :]
    tl.store(out + to, summed.to(out.dtype.element_ty), mask=in_rows[:, None] & in_outputs[None, :])


def block_linear(x: Tensor, weight: BlockMatrix, bias: Tensor | None = None) -> Tensor:
    """x [..., inputs] times `weight` [outputs, inputs], plus bias [outputs]; weights are converted to x's dtype."""
    outputs, inputs = weight.shape
    flat = x.reshape(-1, inputs).contiguous()
    out = torch.empty(len(flat), outputs, device=x.device, dtype=x.dtype)
    if len(flat):
        _block_product[(triton.cdiv(outputs, _OUTPUTS), triton.cdiv(len(flat), _ROWS))](
            flat, weight.codes, weight.scales, weight.scales if weight.shifts is None else weight.shifts,
            weight.scales if weight.values is None else weight.values, flat if bias is None else bias, out,
            len(flat), outputs, inputs, weight.codes.shape[1],
            SPAN=weight.span, ZERO=weight.zero, HALVES=weight.halves, HAS_VALUES=weight.values is not None,
            HAS_SHIFT=weight.shifts is not None, HAS_BIAS=bias is not None, HALF=HALF_GROUP,
            BLOCK_M=_ROWS, BLOCK_N=_OUTPUTS, BLOCK_B=_BYTES, num_stages=2,
        )  # fmt: skip
    return out.view(*x.shape[:-1], outputs)
