"""Products whose sums have one order, as Triton kernels: a row's result does not depend on how many rows there are.

Libraries choose tiles, and split the inner dimension, by the number of rows; here tiles go by the weights' shape alone
and the inner dimension is summed from front to back (He et al. 2025, Defeating nondeterminism in LLM inference).

The slow twins are in `invariant.py`.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# Triton's types know neither numbers for `tl.constexpr` nor options of a launch, such as `num_stages`.

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 16
_MANY_OUTPUTS = 8192
_COLUMNS = 1024


@triton.jit(do_not_specialize=["num_rows"])
def _product(
    x, weight, bias, out, num_rows, num_outputs, num_inputs,
    HAS_BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One tile of out [rows, outputs] = x [rows, inputs] weight^T [inputs, outputs] + bias [outputs]."""
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    output = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    in_rows, in_outputs = row < num_rows, output < num_outputs
    left = x + row.to(tl.int64)[:, None] * num_inputs + inner[None, :]
    right = weight + output.to(tl.int64)[None, :] * num_inputs + inner[:, None]
    summed = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, num_inputs, BLOCK_K):
        in_inner = start + inner < num_inputs
        a = tl.load(left + start, mask=in_rows[:, None] & in_inner[None, :], other=0.0)
        b = tl.load(right + start, mask=in_outputs[None, :] & in_inner[:, None], other=0.0)
        summed = tl.dot(a, b, summed, input_precision="ieee")
    if HAS_BIAS:
        summed += tl.load(bias + output, mask=in_outputs, other=0.0).to(tl.float32)[None, :]
    place = row.to(tl.int64)[:, None] * num_outputs + output[None, :]
    tl.store(out + place, summed.to(out.dtype.element_ty), mask=in_rows[:, None] & in_outputs[None, :])


@triton.jit
def _row_mean(x, out, num_columns, BLOCK: tl.constexpr):
    """out [rows] = mean of x [rows, columns], float32."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    summed = tl.zeros([BLOCK], tl.float32)
    for start in range(0, num_columns, BLOCK):
        summed += tl.load(x + row * num_columns + start + column, mask=start + column < num_columns, other=0.0)
    tl.store(out + row, tl.sum(summed, axis=0) / num_columns)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., inputs] times weight [outputs, inputs], plus bias [outputs], as `functional.linear`."""
    outputs, inputs = weight.shape
    flat, weight = x.reshape(-1, inputs).contiguous(), weight.contiguous()
    out = torch.empty(len(flat), outputs, device=x.device, dtype=x.dtype)
    if len(flat):
        block_n, block_k = tile_of(outputs, inputs)
        _product[(triton.cdiv(outputs, block_n), triton.cdiv(len(flat), _ROWS))](
            flat, weight, weight if bias is None else bias, out, len(flat), outputs, inputs,
            HAS_BIAS=bias is not None, BLOCK_M=_ROWS, BLOCK_N=block_n, BLOCK_K=block_k, num_stages=2,
        )  # fmt: skip
    return out.view(*x.shape[:-1], outputs)


def tile_of(outputs: int, inputs: int) -> tuple[int, int]:
    """(outputs, inputs) of a tile, by the weights' shape alone: many programs for few outputs, long ones for many."""
    return 64 if outputs >= _MANY_OUTPUTS else 32, min(128, max(16, triton.next_power_of_2(inputs)))


def row_mean(x: Tensor) -> Tensor:
    """[..., 1] float32: the mean of the last dimension of x float32, kept as a dimension."""
    flat = x.reshape(-1, x.shape[-1]).contiguous()
    out = torch.empty(len(flat), device=x.device, dtype=torch.float32)
    if len(flat):
        _row_mean[(len(flat),)](flat, out, flat.shape[1], BLOCK=_COLUMNS)
    return out.view(*x.shape[:-1], 1)
