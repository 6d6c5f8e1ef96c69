"""Inputs that layers have besides hidden states: embeddings of their own and a projection of the model's (Gemma 4).

All is for a team of threads; a row's results do not depend on the rows that share the pass. Not for what adds a
layer's input to the hidden states (`forward.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

from typing import NamedTuple

import numpy as np

from paceline.models.compiled.kernel import kernel
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.gemm import PANEL
from paceline.models.numba_executor.linear import activate, product, rows_at_once
from paceline.models.numba_executor.matrix import read_weights
from paceline.models.numba_executor.operand import Operand, put
from paceline.models.numba_executor.rowwise import norm_row
from paceline.models.numba_executor.team import barrier, take
from paceline.models.numba_executor.warm import barrier_before

INPUT_PHASES = 5
"""Phases of one layer's input, each with its own ticket counter."""


class VariedWeights(NamedTuple):
    """Weights that models have whose layers differ, besides those of all models; empty elsewhere.

    Attributes:
        value_norm: ones, of a head.
        layer_scalars: [layers].
        input_tokens: a table [vocabulary, layers * width], packed. input_projection: [layers * width, hidden], packed.
        input_norm: [width] of the projections.
        input_gate, input_up: packed as layers are, [width, hidden] and [hidden, width].
        input_out_norm: [layers, hidden].
        router_norm, experts_norm, experts_out_norm, dense_out_norm: [layers, hidden], of experts beside a dense
            feed-forward. expert_scales: [layers, experts], factors on their shares.
    """

    value_norm: np.ndarray
    layer_scalars: np.ndarray
    input_tokens: np.ndarray
    input_tokens_scales: np.ndarray
    input_projection: np.ndarray
    input_projection_scales: np.ndarray
    input_norm: np.ndarray
    input_gate: np.ndarray
    input_gate_scales: np.ndarray
    input_up: np.ndarray
    input_up_scales: np.ndarray
    input_out_norm: np.ndarray
    router_norm: np.ndarray
    experts_norm: np.ndarray
    experts_out_norm: np.ndarray
    dense_out_norm: np.ndarray
    expert_scales: np.ndarray


class InputScratch(NamedTuple):
    """Buffers: inputs [rows, layers * width]; gate, raised [rows, width]; row [threads, layers * width]."""

    inputs: np.ndarray
    gate: np.ndarray
    raised: Operand
    row: np.ndarray


@kernel
def _input_row(row, thread, shape, eps, w, batch, lent):
    """inputs = (norm(projection / sqrt(hidden)) + embedding sqrt(width)) / sqrt(2), layer by layer."""
    width, total, own = shape.layer_input, shape.layers * shape.layer_input, lent.row[thread]
    read_weights(w.input_tokens, w.input_tokens_scales, batch.token_ids[row], total, own, 0)
    start, one = row * total, np.float32(1)
    down = v.splat(one / np.sqrt(np.float32(shape.hidden)))
    grown, half = v.splat(np.sqrt(np.float32(width))), v.splat(one / np.sqrt(np.float32(2)))
    for i in range(start, start + total, v.LANES):
        v.store(lent.inputs, i, v.mul(v.load(lent.inputs, i), down))
    for at in range(0, total, width):
        norm_row(lent.inputs, start + at, w.input_norm, 0, width, eps, lent.inputs, start + at)
    for i in range(0, total, v.LANES):
        both = v.fma(v.load(own, i), grown, v.load(lent.inputs, start + i))
        v.store(lent.inputs, start + i, v.mul(both, half))


@kernel
def make_inputs(phase, met, thread, num_threads, num_rows, shape, eps, w, batch, scratch):
    """The inputs of all layers, from embeddings in scratch.hidden; two phases; returns the count of barriers met."""
    counters, hidden, lent = scratch.counters, shape.hidden, scratch.layer_inputs
    total = shape.layers * shape.layer_input
    if thread == 0:
        for row in range(num_rows):
            put(scratch.normed, row, hidden, 0, scratch.hidden, row * hidden, hidden)
    met = barrier(counters, met, num_threads)
    product(
        counters, phase, thread, num_threads, scratch.normed, num_rows, hidden, w.input_projection,
        w.input_projection_scales, w.input_projection_scales[:0], 0, total, lent.inputs, False, scratch.wide[thread],
    )  # fmt: skip
    met = barrier(counters, met, num_threads)
    size = rows_at_once(num_rows, num_threads)
    first = take(counters, phase + 1, size, num_rows)
    while first >= 0:
        for row in range(first, min(first + size, num_rows)):
            _input_row(row, thread, shape, eps, w, batch, lent)
        first = take(counters, phase + 1, size, num_rows)
    return barrier(counters, met, num_threads)


@kernel
def _raise_row(row, layer, thread, shape, scratch):
    """raised = act(gate) * input."""
    width, lent, buffer = shape.layer_input, scratch.layer_inputs, scratch.gate_up[thread]
    start = (row * shape.layers + layer) * width
    for panel in range(0, width, PANEL):
        for i in range(0, PANEL, v.LANES):
            v.store(buffer, i, v.load(lent.gate, row * width + panel + i))
            v.store(buffer, PANEL + i, v.load(lent.inputs, start + panel + i))
        activate(buffer, 0, shape)
        put(lent.raised, row, width, panel, buffer, 0, PANEL)


@kernel
def read_input(phase, layer, met, thread, num_threads, num_rows, shape, w, scratch):
    """delta = up(act(gate(hidden)) * input) of one layer; four phases; returns the count of barriers met."""
    counters, hidden, width, lent = scratch.counters, shape.hidden, shape.layer_input, scratch.layer_inputs
    size = rows_at_once(num_rows, num_threads)
    first = take(counters, phase, size, num_rows)
    while first >= 0:
        for row in range(first, min(first + size, num_rows)):
            put(scratch.normed, row, hidden, 0, scratch.hidden, row * hidden, hidden)
        first = take(counters, phase, size, num_rows)
    met = barrier_before(counters, met, thread, num_threads, w.input_gate, layer, width, hidden, 1)
    product(
        counters, phase + 1, thread, num_threads, scratch.normed, num_rows, hidden, w.input_gate, w.input_gate_scales,
        w.input_gate_scales[:0], layer, width, lent.gate, False, scratch.wide[thread],
    )  # fmt: skip
    met = barrier(counters, met, num_threads)
    first = take(counters, phase + 2, size, num_rows)
    while first >= 0:
        for row in range(first, min(first + size, num_rows)):
            _raise_row(row, layer, thread, shape, scratch)
        first = take(counters, phase + 2, size, num_rows)
    met = barrier_before(counters, met, thread, num_threads, w.input_up, layer, hidden, width, 1)
    product(
        counters, phase + 3, thread, num_threads, lent.raised, num_rows, width, w.input_up, w.input_up_scales,
        w.input_up_scales[:0], layer, hidden, scratch.delta, False, scratch.wide[thread],
    )  # fmt: skip
    return barrier(counters, met, num_threads)
