"""What lies between the products of a layer, a few kernels in place of some forty: norms, turned heads, activations.

In a pass over few rows each kernel takes longer to begin than to compute, so their number is what such a pass costs.
Every program takes a row, or a piece of one, whose size is the model's: results do not depend on the number of rows.
Rounding is that of the layers in `torch_executor/layers.py`, which are the slow twins.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# Triton's types know neither numbers for `tl.constexpr` nor options of a launch.

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 1024


@triton.jit
def _normed(wide, scale, weight, kind: tl.constexpr):
    """weight * (wide * scale), rounded as torch does after each product."""
    scaled = (wide * scale).to(kind).to(tl.float32)
    return (scaled * weight.to(tl.float32)).to(kind)


@triton.jit
def _rms_norm(
    x, added, weight, total, out, columns, eps, HAS_ADDED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """One row: total = x + added, out = weight * total / sqrt(mean(total^2) + eps)."""
    row = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, BLOCK)
    inside = column < columns
    values = tl.load(x + row + column, mask=inside, other=0.0)
    if HAS_ADDED:
        values = values.to(tl.float32) + tl.load(added + row + column, mask=inside, other=0.0).to(tl.float32)
        values = values.to(total.dtype.element_ty)
        tl.store(total + row + column, values, mask=inside)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / columns + eps)
    known = tl.load(weight + column, mask=inside, other=0.0)
    tl.store(out + row + column, _normed(wide, scale, known, out.dtype.element_ty), mask=inside)


@triton.jit
def _turned(
    source, weight, cosines, sines, eps,
    HEAD_DIM: tl.constexpr, ROTARY: tl.constexpr, HAS_NORM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A head's values at `source`, normed where it has a norm, its first `ROTARY` turned by their angles."""
    dim = tl.arange(0, BLOCK_D)
    inside, turning = dim < HEAD_DIM, dim < ROTARY
    is_first = dim < ROTARY // 2
    partner = tl.where(is_first, dim + ROTARY // 2, dim - ROTARY // 2)
    own = tl.load(source + dim, mask=inside, other=0.0)
    other = tl.load(source + partner, mask=turning, other=0.0)
    kind: tl.constexpr = source.dtype.element_ty
    if HAS_NORM:
        wide = own.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / HEAD_DIM + eps)
        own = _normed(wide, scale, tl.load(weight + dim, mask=inside, other=0.0), kind)
        other = _normed(other.to(tl.float32), scale, tl.load(weight + partner, mask=turning, other=0.0), kind)
    cosine = tl.load(cosines + dim, mask=turning, other=1.0)
    sine = tl.load(sines + dim, mask=turning, other=0.0)
    across = tl.where(is_first, -other.to(tl.float32), other.to(tl.float32))
    return (own.to(tl.float32) * cosine + across * sine).to(kind)


@triton.jit
def _place_heads(
    query, key, value, query_weight, key_weight, cosines, sines, slots, out, keys, values,
    query_stride, key_stride, value_stride, eps,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, ROTARY: tl.constexpr,
    HAS_NORM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One head of one row: queries turned to `out`, keys turned and values as they are to the row's slot."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    dim = tl.arange(0, BLOCK_D)
    inside = dim < HEAD_DIM
    cosines += row * ROTARY
    sines += row * ROTARY
    if head < HEADS:
        source = query + row * query_stride + head * HEAD_DIM
        turned = _turned(source, query_weight, cosines, sines, eps, HEAD_DIM, ROTARY, HAS_NORM, BLOCK_D)
        tl.store(out + (row * HEADS + head) * HEAD_DIM + dim, turned, mask=inside)
    else:
        own = (head - HEADS) % KEY_HEADS
        slot = tl.load(slots + row).to(tl.int64)
        place = (slot * KEY_HEADS + own) * HEAD_DIM + dim
        if head < HEADS + KEY_HEADS:
            source = key + row * key_stride + own * HEAD_DIM
            turned = _turned(source, key_weight, cosines, sines, eps, HEAD_DIM, ROTARY, HAS_NORM, BLOCK_D)
            tl.store(keys + place, turned, mask=inside)
        else:
            tl.store(
                values + place, tl.load(value + row * value_stride + own * HEAD_DIM + dim, mask=inside), mask=inside
            )


@triton.jit
def _gated(gate, up, out, gate_stride, up_stride, columns, IS_SILU: tl.constexpr, BLOCK: tl.constexpr):
    """A piece of a row of out = act(gate) * up."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    x = tl.load(gate + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    if IS_SILU:  # noqa: SIM108 - decided when the kernel is compiled
        acted = x * tl.sigmoid(x)
    else:
        acted = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))  # gelu by tanh, 2 sqrt(2 / pi)
    kind: tl.constexpr = out.dtype.element_ty
    acted = acted.to(kind).to(tl.float32)
    raised = tl.load(up + row * up_stride + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * columns + column, (acted * raised).to(kind), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, added: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(x + added, its norm times `weight`) over the last dimension of x [..., n]; x itself where nothing is added."""
    flat = x.contiguous()
    out = torch.empty_like(flat)
    total = flat if added is None else torch.empty_like(flat)
    columns = x.shape[-1]
    if x.numel():
        _rms_norm[(flat.numel() // columns,)](
            flat, flat if added is None else added.contiguous(), weight, total, out, columns, eps,
            HAS_ADDED=added is not None, BLOCK=triton.next_power_of_2(columns),
        )  # fmt: skip
    return total, out


def place_heads(
    query: Tensor, key: Tensor, value: Tensor, norms: tuple[Tensor, Tensor, float] | None,
    angles: tuple[Tensor, Tensor], slots: Tensor, keys: Tensor, values: Tensor,
) -> Tensor:  # fmt: skip
    """[M, H, D] the queries turned by their rows' angles; keys, turned, and values go to the rows' slots.

    Args:
        query, key, value: [M, heads * D] each, rows contiguous.
        norms: weights [D] of queries and of keys, and eps; None without.
        angles: cosines and sines [M, 1, R] float32, as of `Pass`.
        slots: [M]. keys, values: [slots, K, D] of the layer.
    """
    key_heads, head_dim = keys.shape[1:]
    heads, rows, rotary = query.shape[1] // head_dim, len(query), angles[0].shape[-1]
    out = torch.empty(rows, heads, head_dim, device=query.device, dtype=query.dtype)
    query_weight, key_weight, eps = norms or (query, key, 0.0)
    if rows:
        _place_heads[(rows, heads + 2 * key_heads)](
            query, key, value, query_weight, key_weight, *angles, slots, out, keys, values,
            query.stride(0), key.stride(0), value.stride(0), eps,
            HEADS=heads, KEY_HEADS=key_heads, HEAD_DIM=head_dim, ROTARY=rotary, HAS_NORM=norms is not None,
            BLOCK_D=triton.next_power_of_2(head_dim), num_warps=1,
        )  # fmt: skip
    return out


def gated(gate: Tensor, up: Tensor, is_silu: bool) -> Tensor:
    """[M, n] act(gate) * up of [M, n] each, rows contiguous; the activation is silu, or gelu by tanh."""
    rows, columns = gate.shape
    out = torch.empty(rows, columns, device=gate.device, dtype=gate.dtype)
    if rows:
        _gated[(rows, triton.cdiv(columns, _COLUMNS))](
            gate, up, out, gate.stride(0), up.stride(0), columns, IS_SILU=is_silu, BLOCK=_COLUMNS
        )
    return out
