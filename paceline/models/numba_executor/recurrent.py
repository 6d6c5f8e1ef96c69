"""Layers with a state in place of attention: what is between their two products.

The forms are those of `architecture/recurrence.py`; the steps of a pass are those of `models/state_book.py`. A thread
takes some channels of a segment (short convolutions) or one of its value heads (matrices) through all steps, so
that the state stays in the thread's cache. Rows are applied one after another in the order of their text: a row's
result does not depend on what shares its pass. Not for the products (`forward.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

from typing import Any, NamedTuple

import numpy as np

from paceline.errors import UnsupportedModel
from paceline.models.architecture.recurrence import Recurrence
from paceline.models.compiled.kernel import kernel
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.experts import dot
from paceline.models.numba_executor.gemm import PANEL
from paceline.models.numba_executor.operand import put, read_row
from paceline.models.numba_executor.rowwise import copy_numbers, norm_row
from paceline.models.numba_executor.team import take
from paceline.models.state_book import AGAIN, LOAD, REPEAT, SAVE

CHANNELS_AT_ONCE = 64
"""Channels of a short convolution that a thread takes through all steps."""
_PAIR = 2 * v.LANES
_EPSILON = np.float32(1e-6)
"""Of the norm of a gated delta net's queries and keys, in transformers a constant too."""
_ONE = np.float32(1)


class RecurrentShape(NamedTuple):
    """Sizes of recurrent layers, see `Recurrence`; all 0 without such layers.

    Attributes:
        layers: their number. columns: of the first product, in whole panels. width: columns of the input of the second.
        gates: numbers of a row from which beta and g are computed. adds: see `_add`; else `_correct`.
        query_at, key_at, value_at: first channels. groups: parts of a row's output that are normed, each by itself,
            after all value heads; 0 where each head norms its own.
    """

    layers: int = 0
    columns: int = 0
    width: int = 0
    gates: int = 0
    kernel: int = 0
    channels: int = 0
    key_heads: int = 0
    value_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    tiled: bool = False
    inputs: int = 0
    state_size: int = 0
    adds: bool = False
    query_at: int = 0
    key_at: int = 0
    value_at: int = 0
    groups: int = 0


class RecurrentWeights(NamedTuple):
    """Weights of recurrent layers, flat over these layers; empty without such layers or, but for the first six, in
    short convolutions.

    `project` stacks the rows of the first product (query, key, value, z; or B, C, u), `gates` [gates, hidden] those of
    beta and g. `taps` [kernel, channels], the row's own last, and `bias` [channels]. `decay` [value_heads] is -e^A_log.
    `skip` [value_heads] is state spaces' D.
    """

    project: np.ndarray
    project_scales: np.ndarray
    out: np.ndarray
    out_scales: np.ndarray
    taps: np.ndarray
    bias: np.ndarray
    gates: np.ndarray
    step_shift: np.ndarray
    decay: np.ndarray
    norm: np.ndarray
    skip: np.ndarray


class States(NamedTuple):
    """The steps of a pass (`StateSteps`), and the flat arrays of a `StateStore`."""

    steps: np.ndarray
    starts: np.ndarray
    kept: np.ndarray
    inputs: np.ndarray


NO_STATES = States(np.zeros((0, 3), np.int32), np.zeros(1, np.int32), np.zeros(0, np.float32), np.zeros(0, np.float32))
"""Of a model without recurrent layers."""


def recurrent_shape(recurrence: Recurrence | None) -> RecurrentShape:
    """Sizes for the kernels.

    Raises:
        UnsupportedModel: a size the kernels do not cover; the torch executor runs it.
    """
    if recurrence is None:
        return RecurrentShape()
    remedy = 'run it with executor="torch" (needs paceline[torch])'
    has_matrices, adds = recurrence.has_matrices, recurrence.kind == "state_space"
    names = ("mamba_d_head", "mamba_d_state") if adds else ("linear_value_head_dim", "linear_key_head_dim")
    width, groups = recurrence.width, recurrence.key_heads if adds else 0
    sizes = (
        (names[0], recurrence.value_dim, v.LANES if adds else _PAIR), (names[1], recurrence.key_dim, v.LANES),
        ("channels", recurrence.channels, PANEL if has_matrices else CHANNELS_AT_ONCE),
        ("a group of value heads", width // groups if groups else 0, PANEL),
    )  # fmt: skip
    for name, value, size in sizes:
        if value % size:
            raise UnsupportedModel(f"{name}: {value} is not a multiple of {size}; {remedy}")
    columns = recurrence.channels + width if has_matrices else 3 * recurrence.channels
    first = [recurrence.first_channel(part) if has_matrices else 0 for part in "qkv"]
    return RecurrentShape(
        len(recurrence.layers), columns, width, recurrence.gates, recurrence.kernel,
        recurrence.channels, recurrence.key_heads, recurrence.value_heads, recurrence.key_dim, recurrence.value_dim,
        recurrence.tiled, recurrence.inputs, recurrence.state_size, adds, *first, groups,
    )  # fmt: skip


def new_cells(num_threads: int, shape: RecurrentShape) -> np.ndarray:
    """[threads, ...] buffers: last inputs, the row's own, what the convolution gives, a matrix, and its output."""
    span = 2 * shape.key_dim + shape.value_dim if shape.value_heads else CHANNELS_AT_ONCE
    size = (shape.kernel + 1) * span + shape.key_dim * shape.value_dim + shape.value_dim
    return np.empty((num_threads, size if shape.layers else 0), np.float32)


@kernel
def project_gates(phase, layer, thread, num_rows, shape, weights, scratch):
    """beta and g of all value heads, before their functions, from the normed rows."""
    r, x = shape.recurrent, scratch.row[thread]
    row = take(scratch.counters, phase, 1, num_rows)
    while row >= 0:
        read_row(scratch.normed, row, shape.hidden, x)
        for gate in range(r.gates):
            at = (layer * r.gates + gate) * shape.hidden
            scratch.gates[row * r.gates + gate] = dot(x, weights.gates, at, shape.hidden)
        row = take(scratch.counters, phase, 1, num_rows)


@kernel
def run_states(phase, layer, thread, shape, eps, weights, states, scratch):
    """All rows of a layer from their projections `scratch.mix` to `scratch.mixed`, the input of the second product."""
    r = shape.recurrent
    parts = r.value_heads if r.value_heads > 0 else r.channels // CHANNELS_AT_ONCE
    total = (len(states.starts) - 1) * parts
    at = take(scratch.counters, phase, 1, total)
    while at >= 0:
        segment, part = divmod(at, parts)
        if r.value_heads > 0:
            _run_head(segment, part, layer, thread, shape, eps, weights, states, scratch)
        else:
            _run_channels(segment, part, layer, thread, r, weights, states, scratch)
        at = take(scratch.counters, phase, 1, total)


@kernel
def _run_channels(segment, part, layer, thread, r, weights, states, scratch):
    """Some channels of a short convolution through the steps of a segment."""
    size, channel, before = CHANNELS_AT_ONCE, part * CHANNELS_AT_ONCE, r.kernel - 1
    cell, mix = scratch.cells[thread], scratch.mix
    own, result = before * size, r.kernel * size
    for i in range(states.starts[segment], states.starts[segment + 1]):
        kind, first, second = states.steps[i, 0], states.steps[i, 1], states.steps[i, 2]
        state = (first * r.layers + layer) * r.state_size
        if kind == LOAD:
            _load_inputs(states.kept, state, first, before, r.channels, channel, cell, 0, size, size)
            continue
        if kind == SAVE:
            _save_inputs(states.kept, state, before, r.channels, channel, cell, 0, size, size)
            continue
        if kind == REPEAT:
            copy_numbers(states.inputs, (first * r.layers + layer) * r.inputs + channel, cell, own, size)
        else:
            row = first * r.columns + channel
            for j in range(0, size, v.LANES):
                v.store(cell, own + j, v.mul(v.load(mix, row + j), v.load(mix, row + 2 * r.channels + j)))
            if kind != AGAIN:
                _convolve(cell, 0, size, size, layer, channel, r, weights, cell, result)
                for j in range(0, size, v.LANES):
                    gated = v.mul(v.load(cell, result + j), v.load(mix, row + r.channels + j))
                    v.store(cell, result + j, gated)
                put(scratch.mixed, first, r.width, channel, cell, result, size)
                if second >= 0:
                    copy_numbers(cell, own, states.inputs, (second * r.layers + layer) * r.inputs + channel, size)
        copy_numbers(cell, size, cell, 0, before * size)  # each input is one further back


@kernel
def _load_inputs(kept, state, number, before, channels, channel, cell, start, stride, size):
    """The last inputs of some channels of a state, or zeros for the state of no token."""
    for t in range(before):
        if number >= 0:
            copy_numbers(kept, state + t * channels + channel, cell, start + t * stride, size)
        else:
            for j in range(0, size, v.LANES):
                v.store(cell, start + t * stride + j, v.splat(np.float32(0)))


@kernel
def _save_inputs(kept, state, before, channels, channel, cell, start, stride, size):
    for t in range(before):
        copy_numbers(cell, start + t * stride, kept, state + t * channels + channel, size)


@kernel
def _convolve(cell, start, stride, size, layer, channel, r, weights, out, out_start):
    """out = the bias, and the sum of the last inputs and the row's own times their taps."""
    first = layer * r.kernel * r.channels + channel
    for j in range(0, size, v.LANES):
        total = v.load(weights.bias, layer * r.channels + channel + j)
        for t in range(r.kernel):
            taps = v.load(weights.taps, first + t * r.channels + j)
            total = v.fma(v.load(cell, start + t * stride + j), taps, total)
        v.store(out, out_start + j, total)


@kernel
def _key_head(head, r):
    """(the key head of a value head, whether no value head before it has the same)."""
    if r.tiled:
        return head % r.key_heads, head < r.key_heads
    each = r.value_heads // r.key_heads
    return head // each, head % each == 0


@kernel
def _run_head(segment, head, layer, thread, shape, eps, weights, states, scratch):
    """One value head through the steps of a segment.

    The thread's cell holds, for the query, key and value of the head: the last inputs and the row's own [kernel, span],
    what the convolution gives [span], the matrix [key_dim, value_dim], and the output [value_dim].
    """
    r, cell, mix = shape.recurrent, scratch.cells[thread], scratch.mix
    keys, values, before = r.key_dim, r.value_dim, r.kernel - 1
    span = 2 * keys + values
    own, result = before * span, r.kernel * span
    matrix = result + span
    key_head, is_first = _key_head(head, r)
    query_at, key_at = r.query_at + key_head * keys, r.key_at + key_head * keys
    value_at, step_at = r.value_at + head * values, r.gates - r.value_heads + head
    memory = before * r.channels + head * keys * values
    for i in range(states.starts[segment], states.starts[segment + 1]):
        kind, first, second = states.steps[i, 0], states.steps[i, 1], states.steps[i, 2]
        state = (first * r.layers + layer) * r.state_size
        if kind == LOAD:
            _load_inputs(states.kept, state, first, before, r.channels, query_at, cell, 0, span, keys)
            _load_inputs(states.kept, state, first, before, r.channels, key_at, cell, keys, span, keys)
            _load_inputs(states.kept, state, first, before, r.channels, value_at, cell, 2 * keys, span, values)
            _load_inputs(states.kept, state, first, 1, r.channels, memory, cell, matrix, span, keys * values)
            continue
        if kind == SAVE:
            # heads that share a key each write the same, because branches of a tree load it again in this pass
            _save_inputs(states.kept, state, before, r.channels, query_at, cell, 0, span, keys)
            _save_inputs(states.kept, state, before, r.channels, key_at, cell, keys, span, keys)
            _save_inputs(states.kept, state, before, r.channels, value_at, cell, 2 * keys, span, values)
            copy_numbers(cell, matrix, states.kept, state + memory, keys * values)
            continue
        row, source, gates, gate = first * r.columns, mix, scratch.gates, first * r.gates
        if kind == REPEAT:
            row, source, gates = (first * r.layers + layer) * r.inputs, states.inputs, states.inputs
            gate = row + r.channels
        copy_numbers(source, row + query_at, cell, own, keys)
        copy_numbers(source, row + key_at, cell, own + keys, keys)
        copy_numbers(source, row + value_at, cell, own + 2 * keys, values)
        beta, step = gates[gate + head], gates[gate + step_at]
        if second >= 0 and kind != REPEAT and kind != AGAIN:
            kept = (second * r.layers + layer) * r.inputs
            if is_first:
                copy_numbers(cell, own, states.inputs, kept + query_at, keys)
                copy_numbers(cell, own + keys, states.inputs, kept + key_at, keys)
            copy_numbers(cell, own + 2 * keys, states.inputs, kept + value_at, values)
            states.inputs[kept + r.channels + head] = beta
            states.inputs[kept + r.channels + step_at] = step
        _convolve(cell, 0, span, keys, layer, query_at, r, weights, cell, result)
        _convolve(cell, keys, span, keys, layer, key_at, r, weights, cell, result + keys)
        _convolve(cell, 2 * keys, span, values, layer, value_at, r, weights, cell, result + 2 * keys)
        _activate(cell, result, span)
        own_head = layer * r.value_heads + head
        step = _softplus(step + weights.step_shift[own_head])
        gain = np.exp(weights.decay[own_head] * step)
        if r.adds:
            _add(cell, result, matrix, keys, values, gain, step, weights.skip[own_head])
        else:
            _to_unit(cell, result, keys, _ONE / np.sqrt(np.float32(keys)))
            _to_unit(cell, result + keys, keys, _ONE)
            _correct(cell, result, matrix, keys, values, gain, _ONE / (_ONE + np.exp(-beta)))
        if kind != REPEAT and kind != AGAIN:
            out, z = matrix + keys * values, row + r.channels + head * values
            if r.groups > 0:
                _gate(cell, out, mix, z, values)
                copy_numbers(cell, out, mix, z, values)  # for `norm_groups`
            else:
                norm_row(cell, out, weights.norm, layer * values, values, eps, cell, out)
                _gate(cell, out, mix, z, values)
                put(scratch.mixed, first, r.width, head * values, cell, out, values)
        copy_numbers(cell, span, cell, 0, before * span)  # each input is one further back


@kernel
def _softplus(x):
    """log(1 + e^x)."""
    return x if x > np.float32(20) else np.log1p(np.exp(x))


@kernel
def _activate(x, start, size):
    """silu in place."""
    one, zero = v.splat(_ONE), v.splat(np.float32(0))
    for i in range(start, start + size, v.LANES):
        y = v.load(x, i)
        v.store(x, i, v.div(y, v.add(one, v.exp(v.sub(zero, y)))))


@kernel
def _gate(x, start, gate, gate_start, size):
    """x *= silu(gate)."""
    one, zero = v.splat(_ONE), v.splat(np.float32(0))
    for i in range(0, size, v.LANES):
        y = v.load(gate, gate_start + i)
        silu = v.div(y, v.add(one, v.exp(v.sub(zero, y))))
        v.store(x, start + i, v.mul(v.load(x, start + i), silu))


@kernel
def _to_unit(x, start, size, length):
    """Scale a vector in place to `length`."""
    squares = v.splat(np.float32(0))
    for i in range(start, start + size, v.LANES):
        y = v.load(x, i)
        squares = v.fma(y, y, squares)
    factor = v.splat(length / np.sqrt(v.sum_lanes(squares) + _EPSILON))
    for i in range(start, start + size, v.LANES):
        v.store(x, i, v.mul(v.load(x, i), factor))


@kernel
def _correct(cell, vectors, matrix, keys, values, gain, beta):
    """S <- gain S + k (beta (v - gain S^T k))^T, and S^T q after the matrix; 32 columns at a time stay in the cache."""
    query, key, value, out = vectors, vectors + keys, vectors + 2 * keys, matrix + keys * values
    decay, share, zero = v.splat(gain), v.splat(beta), v.splat(np.float32(0))
    for column in range(0, values, _PAIR):
        low, high = zero, zero
        for i in range(keys):
            at, k = matrix + i * values + column, v.splat(cell[key + i])
            a, b = v.mul(v.load(cell, at), decay), v.mul(v.load(cell, at + v.LANES), decay)
            v.store(cell, at, a)
            v.store(cell, at + v.LANES, b)
            low, high = v.fma(a, k, low), v.fma(b, k, high)
        low = v.mul(v.sub(v.load(cell, value + column), low), share)
        high = v.mul(v.sub(v.load(cell, value + column + v.LANES), high), share)
        first, second = zero, zero
        for i in range(keys):
            at, k, q = matrix + i * values + column, v.splat(cell[key + i]), v.splat(cell[query + i])
            a, b = v.fma(k, low, v.load(cell, at)), v.fma(k, high, v.load(cell, at + v.LANES))
            v.store(cell, at, a)
            v.store(cell, at + v.LANES, b)
            first, second = v.fma(a, q, first), v.fma(b, q, second)
        v.store(cell, out + column, first)
        v.store(cell, out + column + v.LANES, second)


@kernel
def _add(cell, vectors, matrix, keys, values, gain, step, skip):
    """S <- gain S + k (step v)^T, and S^T q + skip v after the matrix."""
    query, key, value, out = vectors, vectors + keys, vectors + 2 * keys, matrix + keys * values
    decay = v.splat(gain)
    if values % _PAIR:
        column = values - v.LANES
        low = v.load(cell, value + column)
        first, low = v.mul(low, v.splat(skip)), v.mul(low, v.splat(step))
        for i in range(keys):
            at = matrix + i * values + column
            a = v.fma(v.splat(cell[key + i]), low, v.mul(v.load(cell, at), decay))
            v.store(cell, at, a)
            first = v.fma(a, v.splat(cell[query + i]), first)
        v.store(cell, out + column, first)
    for column in range(0, values - v.LANES, _PAIR):
        low, high = v.load(cell, value + column), v.load(cell, value + column + v.LANES)
        first, second = v.mul(low, v.splat(skip)), v.mul(high, v.splat(skip))
        low, high = v.mul(low, v.splat(step)), v.mul(high, v.splat(step))
        for i in range(keys):
            at, k, q = matrix + i * values + column, v.splat(cell[key + i]), v.splat(cell[query + i])
            a = v.fma(k, low, v.mul(v.load(cell, at), decay))
            b = v.fma(k, high, v.mul(v.load(cell, at + v.LANES), decay))
            v.store(cell, at, a)
            v.store(cell, at + v.LANES, b)
            first, second = v.fma(a, q, first), v.fma(b, q, second)
        v.store(cell, out + column, first)
        v.store(cell, out + column + v.LANES, second)


@kernel
def norm_groups(layer, thread, num_threads, num_rows, r, eps, weights, scratch):
    """`scratch.mixed` from the gated outputs of all value heads, which are in the place of z."""
    size = r.width // r.groups
    for at in range(thread, num_rows * r.groups, num_threads):
        row, group = divmod(at, r.groups)
        start = row * r.columns + r.channels + group * size
        norm_row(scratch.mix, start, weights.norm, layer * r.width + group * size, size, eps, scratch.mix, start)
        put(scratch.mixed, row, r.width, group * size, scratch.mix, start, size)


def recurrent_tensors(recurrence: Recurrence | None) -> tuple[Any, ...]:
    """Names of the tensors that a recurrent layer's two products are stacked from: (first, second)."""
    if recurrence is None or not recurrence.has_matrices:
        return ("conv.in_proj",), ("conv.out_proj",)
    return tuple(f"linear_attn.in_proj_{part}" for part in f"{recurrence.order}z"), ("linear_attn.out_proj",)
