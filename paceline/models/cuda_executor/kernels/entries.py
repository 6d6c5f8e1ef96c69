"""Fused kernels between the products of a layer, in place of some forty kernels: norms, rotation, activations.

In a pass over few rows launching a kernel takes longer than running it, so their number decides the cost of a pass.
Every program processes a row, or a piece of fixed size of one, so results do not depend on the number of rows. Rounding
is that of the layers in `torch_executor/layers.py`, which are the reference.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# Triton's types know neither numbers for `tl.constexpr` nor options of a launch.

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.models.cuda_executor.kernels.dependent import IN_TURN, dependent, let_next_begin, wait_for_inputs

_COLUMNS = 1024
_NORM_WARPS = 16
"""Warps of a norm: the reads of one row are its whole time."""


@triton.jit
def _normed(wide, scale, weight, kind: tl.constexpr):
    """weight * wide * scale, rounded once."""
    return (wide * scale * weight.to(tl.float32)).to(kind)


@triton.jit
def _added_up(source, stride, inside, PARTS: tl.constexpr):
    """float32: the sum, in order, of `PARTS` entries that lie `stride` apart."""
    total = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):  # pyright: ignore[reportGeneralTypeIssues]
        total += tl.load(source + part * stride, mask=inside, other=0.0).to(tl.float32)
    return total


@triton.jit(do_not_specialize_on_alignment=["asked"])
def _rms_norm(
    x, added, bias, weight, total, out, asked, columns, added_stride, out_stride, eps,
    PARTS: tl.constexpr, HAS_BIAS: tl.constexpr, PICKS: tl.constexpr, BLOCK: tl.constexpr, WAITS: tl.constexpr,
):  # fmt: skip
    """One row: total = x + added + bias, out = weight * total / sqrt(mean(total^2) + eps).

    PICKS: the rows are those that `asked` names, and their totals are not kept.
    """
    row = tl.program_id(0).to(tl.int64) * columns
    to = tl.program_id(0).to(tl.int64) * out_stride
    if PICKS:
        row = tl.load(asked + tl.program_id(0)).to(tl.int64) * columns
    column = tl.arange(0, BLOCK)
    inside = column < columns
    let_next_begin(WAITS)
    known = tl.load(weight + column, mask=inside, other=0.0)
    wait_for_inputs(WAITS)
    values = tl.load(x + row + column, mask=inside, other=0.0)
    if PARTS > 0:
        more = _added_up(added + row + column, added_stride.to(tl.int64), inside, PARTS)
        if HAS_BIAS:
            more += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
        values = (values.to(tl.float32) + more).to(total.dtype.element_ty)
        if not PICKS:
            tl.store(total + row + column, values, mask=inside)
    wide = values.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / columns + eps)
    tl.store(out + to + column, _normed(wide, scale, known, out.dtype.element_ty), mask=inside)


@triton.jit
def _head_of(source, part_stride, bias, dim, inside, PARTS: tl.constexpr, HAS_BIAS: tl.constexpr):
    """float32: entries `dim` of a head whose first is at `source`, and at `bias` the first of its bias."""
    values = _added_up(source + dim, part_stride, inside, PARTS)
    if HAS_BIAS:
        values += tl.load(bias + dim, mask=inside, other=0.0).to(tl.float32)
    return values


@triton.jit
def _turned(
    source, part_stride, bias, weight, cosines, sines, eps, kind: tl.constexpr, PARTS: tl.constexpr,
    HAS_BIAS: tl.constexpr, HEAD_DIM: tl.constexpr, ROTARY: tl.constexpr, HAS_NORM: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """A head's values, normed where it has a norm, its first `ROTARY` turned by their angles."""
    dim = tl.arange(0, BLOCK_D)
    inside, turning = dim < HEAD_DIM, dim < ROTARY
    is_first = dim < ROTARY // 2
    partner = tl.where(is_first, dim + ROTARY // 2, dim - ROTARY // 2)
    own = _head_of(source, part_stride, bias, dim, inside, PARTS, HAS_BIAS)
    other = _head_of(source, part_stride, bias, partner, turning, PARTS, HAS_BIAS)
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(own * own, axis=0) / HEAD_DIM + eps)
        own = _normed(own, scale, tl.load(weight + dim, mask=inside, other=0.0), kind).to(tl.float32)
        other = _normed(other, scale, tl.load(weight + partner, mask=turning, other=0.0), kind).to(tl.float32)
    cosine = tl.load(cosines + dim, mask=turning, other=1.0)
    sine = tl.load(sines + dim, mask=turning, other=0.0)
    return (own * cosine + tl.where(is_first, -other, other) * sine).to(kind)


@triton.jit(do_not_specialize_on_alignment=["slots"])
def _place_heads(
    query, key, value, bias, query_weight, key_weight, cosines, sines, slots, out, keys, values,
    query_stride, key_stride, value_stride, part_stride, eps,
    PARTS: tl.constexpr, HAS_BIAS: tl.constexpr, HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROTARY: tl.constexpr, HAS_NORM: tl.constexpr, NORMS_VALUES: tl.constexpr,
    BLOCK_D: tl.constexpr, WAITS: tl.constexpr,
):  # fmt: skip
    """One head of one row: queries turned to `out`, keys turned and values to the row's slot."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    let_next_begin(WAITS)
    apart = part_stride.to(tl.int64)
    dim = tl.arange(0, BLOCK_D)
    inside = dim < HEAD_DIM
    cosines += row * ROTARY
    sines += row * ROTARY
    kind: tl.constexpr = out.dtype.element_ty
    if HAS_BIAS:
        bias += head * HEAD_DIM
    slot = tl.load(slots + row).to(tl.int64)
    wait_for_inputs(WAITS)
    if head < HEADS:
        source = query + row * query_stride + head * HEAD_DIM
        turned = _turned(
            source, apart, bias, query_weight, cosines, sines, eps, kind, PARTS, HAS_BIAS, HEAD_DIM, ROTARY, HAS_NORM,
            BLOCK_D,
        )  # fmt: skip
        tl.store(out + (row * HEADS + head) * HEAD_DIM + dim, turned, mask=inside)
    else:
        own = (head - HEADS) % KEY_HEADS
        place = (slot * KEY_HEADS + own) * HEAD_DIM + dim
        if head < HEADS + KEY_HEADS:
            source = key + row * key_stride + own * HEAD_DIM
            turned = _turned(
                source, apart, bias, key_weight, cosines, sines, eps, kind, PARTS, HAS_BIAS, HEAD_DIM, ROTARY,
                HAS_NORM, BLOCK_D,
            )  # fmt: skip
            tl.store(keys + place, turned, mask=inside)
        else:
            source = value + row * value_stride + own * HEAD_DIM
            found = _head_of(source, apart, bias, dim, inside, PARTS, HAS_BIAS)
            if NORMS_VALUES:
                found *= tl.rsqrt(tl.sum(found * found, axis=0) / HEAD_DIM + eps)
            tl.store(values + place, found.to(kind), mask=inside)


@triton.jit
def acted(x: tl.tensor, IS_SILU: tl.constexpr) -> tl.tensor:
    """silu(x), or gelu(x) by tanh, of x in float32."""
    if IS_SILU:  # noqa: SIM108 - decided when the kernel is compiled
        found = x * tl.sigmoid(x)
    else:
        found = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))  # 2 sqrt(2 / pi)
    return found


@triton.jit
def _gated(
    gate, up, out, gate_stride, up_stride, columns, IS_SILU: tl.constexpr, BLOCK: tl.constexpr, WAITS: tl.constexpr
):  # fmt: skip
    """A piece of a row of out = act(gate) * up."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    let_next_begin(WAITS)
    wait_for_inputs(WAITS)
    x = tl.load(gate + row * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    kind: tl.constexpr = out.dtype.element_ty
    rounded = acted(x, IS_SILU).to(kind).to(tl.float32)
    raised = tl.load(up + row * up_stride + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * columns + column, (rounded * raised).to(kind), mask=inside)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, added: Tensor | None = None, bias: Tensor | None = None,
    asked: Tensor | None = None, out: Tensor | None = None, *, begins_early: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(x + added + bias, its RMS norm) over the last dimension of x [M, n]; x itself where nothing is added.

    The sum has the dtype of x, which may be wider than that of the norm, by default the dtype of `weight`.

    Args:
        added: [M, n], or [parts, M, n] the parts of a sum.
        bias: [n], only together with `added`.
        asked: [k] indices of rows; if given, only the norms [k, n] of these rows are computed, and x is returned as is.
        out: where the norms go, in its own dtype; columns of wider rows at most.
        begins_early: whether the kernel before it is one of ours; see `kernels/dependent.py`.
    """
    flat = x.contiguous()
    columns = x.shape[-1]
    rows = flat.numel() // columns if asked is None else len(asked)
    if out is None:
        shape = flat.shape if asked is None else (rows, columns)
        out = torch.empty(shape, dtype=weight.dtype, device=x.device)
    total = flat if added is None or asked is not None else torch.empty_like(flat)
    if rows:
        more = flat if added is None else added.contiguous()
        _rms_norm[(rows,)](
            flat, more, weight if bias is None else bias, weight, total, out, flat if asked is None else asked,
            columns, flat.numel(), out.stride(-2) if out.ndim > 1 else columns, eps,
            PARTS=0 if added is None else more.numel() // flat.numel(), HAS_BIAS=bias is not None,
            PICKS=asked is not None, BLOCK=triton.next_power_of_2(columns), num_warps=_NORM_WARPS,
            **(dependent(x.device) if begins_early else IN_TURN),
        )  # fmt: skip
    return total, out


class HeadNorms(NamedTuple):
    """Norms of the heads of one layer.

    Attributes:
        query, key: [D] weights.
        eps: of all of them.
        values: whether values are normed too, without weights.
    """

    query: Tensor
    key: Tensor
    eps: float
    values: bool = False


def place_heads(
    query: Tensor, key: Tensor | None, value: Tensor | None, norms: HeadNorms | None,
    angles: tuple[Tensor, Tensor], slots: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Rotated queries [M, H, D]; rotated keys and the values are written to the rows' slots.

    Args:
        query, key, value: [M, heads * D] each, or [parts, M, heads * D] the parts of a sum, views into one tensor.
            Without keys nothing is written.
        norms: None without norms.
        angles: cosines and sines [M, 1, R] float32, see `Pass`.
        slots: [M]. keys, values: [slots, K, D] of the layer.
        bias: of queries, keys and values, one after another.
    """
    new = 0 if key is None else keys.shape[1]
    key, value = query if key is None else key, query if value is None else value
    key_heads, head_dim = keys.shape[1:]
    rows, width = query.shape[-2:]
    heads, rotary, has_parts = width // head_dim, angles[0].shape[-1], query.ndim == 3
    out = torch.empty(rows, heads, head_dim, device=query.device, dtype=keys.dtype)
    norms, has_norm = norms or HeadNorms(query, query, 0.0), norms is not None
    if rows:
        _place_heads[(rows, heads + 2 * new)](
            query, key, value, query if bias is None else bias, norms.query, norms.key, *angles, slots, out, keys,
            values, query.stride(-2), key.stride(-2), value.stride(-2), query.stride(0) if has_parts else 0, norms.eps,
            PARTS=len(query) if has_parts else 1, HAS_BIAS=bias is not None, HEADS=heads, KEY_HEADS=key_heads,
            HEAD_DIM=head_dim, ROTARY=rotary, HAS_NORM=has_norm, NORMS_VALUES=norms.values,
            BLOCK_D=triton.next_power_of_2(head_dim), num_warps=1, **dependent(query.device),
        )  # fmt: skip
    return out


def gated(gate: Tensor, up: Tensor, is_silu: bool) -> Tensor:
    """[M, n] act(gate) * up of [M, n] each, rows contiguous; the activation is silu, or gelu by tanh."""
    rows, columns = gate.shape
    out = torch.empty(rows, columns, device=gate.device, dtype=gate.dtype)
    if rows:
        _gated[(rows, triton.cdiv(columns, _COLUMNS))](
            gate, up, out, gate.stride(0), up.stride(0), columns, IS_SILU=is_silu, BLOCK=_COLUMNS,
            **dependent(gate.device),
        )  # fmt: skip
    return out
