"""Layers with a state in place of attention: the steps of a pass (`models/state_book.py`) in one Triton kernel a layer.

A program takes some channels of a segment (short convolutions), or some columns of the matrix of one of its value heads
(gated delta nets, state spaces), through all steps of the segment, one row after another, with the state in registers.
So a row's result does not depend on what shares its pass. The reference is `torch_executor/recurrent.py`; everything is
computed in float32.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# Triton's types know neither numbers for `tl.constexpr` nor options of a launch.

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.models.architecture.recurrence import Recurrence
from paceline.models.cuda_executor.kernels.dependent import dependent, let_next_begin, wait_for_inputs
from paceline.models.state_book import LOAD, REPEAT, ROW, SAVE

MOST_TAPS = 4
"""Inputs that a convolution can sum: as many as a program holds in registers of their own."""
_CHANNELS, _COLUMNS = 128, 32
"""Channels, and columns of a matrix, of a program of four warps. For keys of 128 numbers and compute capability 9.0 the
compiler needs 164 registers a thread for 32 columns, 248 for 64, and for 32 columns of eight warps more than there are.
"""
_LOAD, _SAVE, _REPEAT, _ROW = (tl.constexpr(kind) for kind in (LOAD, SAVE, REPEAT, ROW))
_EPSILON = tl.constexpr(1e-6)
"""Of the norm of queries and keys, in transformers a constant too."""
_LINEAR_FROM = tl.constexpr(20.0)
"""From here on softplus(x) is x, as in PyTorch."""


@triton.jit
def _taps(taps, channel, inside, KERNEL: tl.constexpr):
    """The weights of the rows three, two and one before, and of a channel's own row; 0 where there are fewer."""
    at = taps + channel * KERNEL + KERNEL
    last = tl.load(at - 1, mask=inside, other=0.0).to(tl.float32)
    first = tl.zeros_like(last)
    second, third = first, first
    if KERNEL > 3:
        first = tl.load(at - 4, mask=inside, other=0.0).to(tl.float32)
    if KERNEL > 2:
        second = tl.load(at - 3, mask=inside, other=0.0).to(tl.float32)
    if KERNEL > 1:
        third = tl.load(at - 2, mask=inside, other=0.0).to(tl.float32)
    return first, second, third, last


@triton.jit
def _bias(bias, channel, inside, EXISTS: tl.constexpr):
    """The biases of channels, 0 where there are none."""
    found = tl.zeros_like(channel).to(tl.float32)
    if EXISTS:
        found = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    return found


@triton.jit
def _before(state, channel, inside, exists, like, CHANNELS: tl.constexpr, KERNEL: tl.constexpr):
    """The inputs of the rows three, two and one before, of a state that exists; 0 in a block as `like` elsewhere."""
    at = state + channel + (KERNEL - 1) * CHANNELS
    first = tl.zeros_like(like)
    second, third = first, first
    if exists:
        if KERNEL > 3:
            first = tl.load(at - 3 * CHANNELS, mask=inside, other=0.0)
        if KERNEL > 2:
            second = tl.load(at - 2 * CHANNELS, mask=inside, other=0.0)
        if KERNEL > 1:
            third = tl.load(at - CHANNELS, mask=inside, other=0.0)
    return first, second, third


@triton.jit
def _keep(state, channel, inside, first, second, third, CHANNELS: tl.constexpr, KERNEL: tl.constexpr):
    """Write what `_before` reads."""
    at = state + channel + (KERNEL - 1) * CHANNELS
    if KERNEL > 3:
        tl.store(at - 3 * CHANNELS, first, mask=inside)
    if KERNEL > 2:
        tl.store(at - 2 * CHANNELS, second, mask=inside)
    if KERNEL > 1:
        tl.store(at - CHANNELS, third, mask=inside)


@triton.jit
def _input(rows, kept, is_repeated, at, inside):
    """A row's own inputs, of the pass or kept ones."""
    if is_repeated:
        found = tl.load(kept + at, mask=inside, other=0.0)
    else:
        found = tl.load(rows + at, mask=inside, other=0.0).to(tl.float32)
    return found


@triton.jit
def _number(rows, kept, is_repeated, at):
    """As `_input`, of one number."""
    if is_repeated:  # noqa: SIM108 - a branch, not a choice between two loads
        found = tl.load(kept + at)
    else:
        found = tl.load(rows + at).to(tl.float32)
    return found


@triton.jit(do_not_specialize=["layer"])
def _run_convolution(
    rows, starts, steps, states, kept, taps, out, row_stride, layer,
    LAYERS: tl.constexpr, CHANNELS: tl.constexpr, KERNEL: tl.constexpr, STATE: tl.constexpr, INPUTS: tl.constexpr,
    BLOCK: tl.constexpr, WAITS: tl.constexpr,
):  # fmt: skip
    """Some channels of a short convolution through the steps of a segment."""
    segment, channel = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < CHANNELS
    let_next_begin(WAITS)
    begin, end = tl.load(starts + segment), tl.load(starts + segment + 1)
    w0, w1, w2, w3 = _taps(taps, channel, inside, KERNEL)
    wait_for_inputs(WAITS)
    x0 = tl.zeros([BLOCK], tl.float32)
    x1, x2 = x0, x0
    for step in range(begin, end):
        kind, first, second = tl.load(steps + 3 * step), tl.load(steps + 3 * step + 1), tl.load(steps + 3 * step + 2)
        place = first.to(tl.int64) * LAYERS + layer
        if kind == _LOAD:
            x0, x1, x2 = _before(states + place * STATE, channel, inside, first >= 0, x0, CHANNELS, KERNEL)
        elif kind == _SAVE:
            _keep(states + place * STATE, channel, inside, x0, x1, x2, CHANNELS, KERNEL)
            tl.debug_barrier()  # see `_run_matrix`
        else:
            of_row, of_kept = rows + first.to(tl.int64) * row_stride, kept + place * INPUTS
            x3 = _input(of_row, of_kept, kind == _REPEAT, channel, inside)
            if kind == _ROW:
                summed = x0 * w0 + x1 * w1 + x2 * w2 + x3 * w3
                tl.store(out + first.to(tl.int64) * CHANNELS + channel, summed, mask=inside)
                to = kept + (second.to(tl.int64) * LAYERS + layer) * INPUTS
                if second >= 0:
                    tl.store(to + channel, x3, mask=inside)
            x0, x1, x2 = x1, x2, x3


@triton.jit
def _silu(x):
    return x * tl.sigmoid(x)


@triton.jit(do_not_specialize=["layer"])
def _run_matrix(
    rows, starts, steps, states, kept, taps, bias, decay, shift, skip, out, row_stride, layer,
    LAYERS: tl.constexpr, KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr, QUERY_AT: tl.constexpr, KEY_AT: tl.constexpr, VALUE_AT: tl.constexpr,
    GATES: tl.constexpr, ADDS: tl.constexpr, HAS_BIAS: tl.constexpr,
    TILED: tl.constexpr, KERNEL: tl.constexpr, STATE: tl.constexpr, INPUTS: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, WAITS: tl.constexpr,
):  # fmt: skip
    """Some columns of the matrix of one value head through the steps of a segment; a state space's if `ADDS`.

    Heads that share a key, and pieces of a matrix, each compute what they share, and each write it to states, which
    they may read again in this pass. To kept inputs, which only later passes read, one of them does.
    """
    segment, head, piece = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    let_next_begin(WAITS)
    begin, end = tl.load(starts + segment), tl.load(starts + segment + 1)
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    SHARING: tl.constexpr = VALUE_HEADS // KEY_HEADS
    is_first = piece == 0
    if TILED:
        key_head = head % KEY_HEADS
        writes_keys = is_first & (head < KEY_HEADS)
    else:
        key_head = head // SHARING
        writes_keys = is_first & (head % SHARING == 0)
    dim, column = tl.arange(0, BLOCK_K), piece * BLOCK_V + tl.arange(0, BLOCK_V)
    in_key, in_value = dim < KEY_DIM, column < VALUE_DIM
    query_at, key_at = QUERY_AT + key_head * KEY_DIM + dim, KEY_AT + key_head * KEY_DIM + dim
    value_at, beta_at = VALUE_AT + head * VALUE_DIM + column, CHANNELS + head
    step_at = beta_at + GATES - VALUE_HEADS
    matrix_at = (KERNEL - 1) * CHANNELS + (head * KEY_DIM + dim[:, None]) * VALUE_DIM + column[None, :]
    in_matrix = in_key[:, None] & in_value[None, :]
    qw0, qw1, qw2, qw3 = _taps(taps, query_at, in_key, KERNEL)
    kw0, kw1, kw2, kw3 = _taps(taps, key_at, in_key, KERNEL)
    vw0, vw1, vw2, vw3 = _taps(taps, value_at, in_value, KERNEL)
    qb, kb = _bias(bias, query_at, in_key, HAS_BIAS), _bias(bias, key_at, in_key, HAS_BIAS)
    vb = _bias(bias, value_at, in_value, HAS_BIAS)
    rate, moved = -tl.exp(tl.load(decay + head).to(tl.float32)), tl.load(shift + head).to(tl.float32)
    wait_for_inputs(WAITS)
    q0 = tl.zeros([BLOCK_K], tl.float32)
    v0 = tl.zeros([BLOCK_V], tl.float32)
    q1, q2, k0, k1, k2, v1, v2 = q0, q0, q0, q0, q0, v0, v0
    matrix = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    for step in range(begin, end):
        kind, first, second = tl.load(steps + 3 * step), tl.load(steps + 3 * step + 1), tl.load(steps + 3 * step + 2)
        place = first.to(tl.int64) * LAYERS + layer
        state = states + place * STATE
        if kind == _LOAD:
            q0, q1, q2 = _before(state, query_at, in_key, first >= 0, q0, CHANNELS, KERNEL)
            k0, k1, k2 = _before(state, key_at, in_key, first >= 0, k0, CHANNELS, KERNEL)
            v0, v1, v2 = _before(state, value_at, in_value, first >= 0, v0, CHANNELS, KERNEL)
            matrix = tl.zeros_like(matrix)
            if first >= 0:
                matrix = tl.load(state + matrix_at, mask=in_matrix, other=0.0)
        elif kind == _SAVE:
            _keep(state, query_at, in_key, q0, q1, q2, CHANNELS, KERNEL)
            _keep(state, key_at, in_key, k0, k1, k2, CHANNELS, KERNEL)
            _keep(state, value_at, in_value, v0, v1, v2, CHANNELS, KERNEL)
            tl.store(state + matrix_at, matrix, mask=in_matrix)
            tl.debug_barrier()  # branches of a tree load it again, threads what others have stored
        else:
            of_row, of_kept = rows + first.to(tl.int64) * row_stride, kept + place * INPUTS
            again = kind == _REPEAT
            q3 = _input(of_row, of_kept, again, query_at, in_key)
            k3 = _input(of_row, of_kept, again, key_at, in_key)
            v3 = _input(of_row, of_kept, again, value_at, in_value)
            beta = _number(of_row, of_kept, again, beta_at)
            delta = _number(of_row, of_kept, again, step_at)
            query = _silu(q0 * qw0 + q1 * qw1 + q2 * qw2 + q3 * qw3 + qb)
            key = _silu(k0 * kw0 + k1 * kw1 + k2 * kw2 + k3 * kw3 + kb)
            value = _silu(v0 * vw0 + v1 * vw1 + v2 * vw2 + v3 * vw3 + vb)
            x = delta + moved
            softplus = tl.where(x > _LINEAR_FROM, x, tl.log(1.0 + tl.exp(tl.minimum(x, _LINEAR_FROM))))
            matrix *= tl.exp(rate * softplus)
            if ADDS:
                change = value * softplus
            else:
                query *= tl.rsqrt(tl.sum(query * query, axis=0) + _EPSILON) * (KEY_DIM**-0.5)
                key *= tl.rsqrt(tl.sum(key * key, axis=0) + _EPSILON)
                change = (value - tl.sum(matrix * key[:, None], axis=0)) * tl.sigmoid(beta)
            matrix += key[:, None] * change[None, :]
            if kind == _ROW:
                found = tl.sum(matrix * query[:, None], axis=0)
                if ADDS:
                    found += value * tl.load(skip + head).to(tl.float32)
                to = (first.to(tl.int64) * VALUE_HEADS + head) * VALUE_DIM
                tl.store(out + to + column, found, mask=in_value)
                own = kept + (second.to(tl.int64) * LAYERS + layer) * INPUTS
                if second >= 0:
                    tl.store(own + value_at, v3, mask=in_value)
                    if is_first:
                        tl.store(own + beta_at, beta)
                        tl.store(own + step_at, delta)
                    if writes_keys:
                        tl.store(own + query_at, q3, mask=in_key)
                        tl.store(own + key_at, k3, mask=in_key)
            q0, q1, q2 = q1, q2, q3
            k0, k1, k2 = k1, k2, k3
            v0, v1, v2 = v1, v2, v3


class Program(NamedTuple):
    """The steps of a pass on the device, and what they read and write (`StateStore`).

    Attributes:
        starts: [S + 1] int32, first step of each segment; those that do not exist have none.
        steps: [n, 3] int32.
        states: [num_states, layers, state_size] float32.
        kept: [num_inputs, layers, inputs] float32.
    """

    starts: Tensor
    steps: Tensor
    states: Tensor
    kept: Tensor


def convolved(rows: Tensor, taps: Tensor, layer: int, program: Program, sizes: Recurrence) -> Tensor:
    """[M, channels] float32 of the rows' inputs [M, channels]; zeros for rows that no step applies.

    Args:
        taps: [channels, kernel], the row's own last.
        layer: its number among the recurrent layers.
    """
    out = torch.zeros(len(rows), sizes.channels, device=rows.device)
    if len(rows):
        grid = _num_segments(rows, program), triton.cdiv(sizes.channels, _CHANNELS)
        _run_convolution[grid](
            rows, program.starts, program.steps, program.states, program.kept, taps, out, rows.stride(0), layer,
            LAYERS=len(sizes.layers), CHANNELS=sizes.channels, KERNEL=sizes.kernel, STATE=sizes.state_size,
            INPUTS=sizes.inputs, BLOCK=_CHANNELS, **dependent(rows.device),
        )  # fmt: skip
    return out


class MatrixWeights(NamedTuple):
    """Weights of a layer whose states have matrices.

    Attributes:
        taps: [channels, kernel], the row's own last. bias: [channels], or None.
        decay, shift: [value_heads] logarithms of decay rates, and what is added to g's inputs.
        skip: [value_heads] D of a state space; None for a gated delta net.
    """

    taps: Tensor
    bias: Tensor | None
    decay: Tensor
    shift: Tensor
    skip: Tensor | None


def matrix_states(rows: Tensor, weights: MatrixWeights, layer: int, program: Program, sizes: Recurrence) -> Tensor:
    """[M, value_heads, value_dim] float32 of the rows' inputs [M, inputs]; `layer` as of `convolved`."""
    taps, bias, decay, shift, skip = weights
    out = torch.zeros(len(rows), sizes.value_heads, sizes.value_dim, device=rows.device)
    if len(rows):
        columns = min(_COLUMNS, triton.next_power_of_2(sizes.value_dim))
        grid = _num_segments(rows, program), sizes.value_heads, triton.cdiv(sizes.value_dim, columns)
        first = {f"{name}_AT": sizes.first_channel(name[0].lower()) for name in ("QUERY", "KEY", "VALUE")}
        _run_matrix[grid](
            rows, program.starts, program.steps, program.states, program.kept, taps, taps if bias is None else bias,
            decay, shift, taps if skip is None else skip, out, rows.stride(0), layer,
            LAYERS=len(sizes.layers), KEY_HEADS=sizes.key_heads, VALUE_HEADS=sizes.value_heads,
            KEY_DIM=sizes.key_dim, VALUE_DIM=sizes.value_dim, GATES=sizes.gates, ADDS=skip is not None,
            HAS_BIAS=bias is not None, TILED=sizes.tiled, KERNEL=sizes.kernel, **first,
            STATE=sizes.state_size, INPUTS=sizes.inputs, BLOCK_K=triton.next_power_of_2(sizes.key_dim),
            BLOCK_V=columns, **dependent(rows.device),
        )  # fmt: skip
    return out


def _num_segments(rows: Tensor, program: Program) -> int:
    """Segments that there may be: each has a row."""
    return min(len(rows), len(program.starts) - 1)
