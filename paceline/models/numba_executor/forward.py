"""One pass of a Llama-family transformer as one compiled function: `forward(thread, ...)`.

Every thread of a team runs it from start to end; phases end at a barrier, work inside a phase is taken in chunks. All
arrays are flat and owned by the caller. Not the place for weights' formats (`weights.py`) or for building batches
(`executor.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

from typing import NamedTuple

import numpy as np

from paceline.models.base import PAGE_SIZE
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.attend import attend_blocks, blocks_at_once, blocks_per_group
from paceline.models.numba_executor.experts import EXPERT_PHASES, ExpertScratch, ExpertWeights, experts_forward
from paceline.models.numba_executor.kernel import entry, kernel
from paceline.models.numba_executor.linear import chunk, gated_product, product
from paceline.models.numba_executor.matrix import read_weights
from paceline.models.numba_executor.operand import Operand, put
from paceline.models.numba_executor.rowwise import norm_row, rotate
from paceline.models.numba_executor.team import barrier, take

PHASES_PER_LAYER = 6 + EXPERT_PHASES


class Shape(NamedTuple):
    """Sizes of the model; `qkv`, `vocab` are padded to whole panels.

    With `experts` above 0 every layer has that many feed-forwards of width `inner`, of which a row takes `top_k`, and
    one of width `shared_inner` (0 for none) that all rows take; `norm_top_k` rescales the chosen ones' shares to 1.
    """

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    qkv: int
    vocab: int
    experts: int
    top_k: int
    shared_inner: int
    norm_top_k: bool


class Weights(NamedTuple):
    """Packed panels, their scales per output column, and vectors; one flat array per kind over all layers.

    `query_norm` and `key_norm` [layers, head_dim] are empty where heads have no norm of their own.

    Panels are an array of numbers, or `Blocks` as a GGUF file has them, whose arrays of scales are empty.
    `gate_up` interleaves panels: gate panel 0, up panel 0, gate panel 1, ... `qkv` stacks query, key and value rows.
    Experts are matrices of `gate_up` and `down` like layers: number layer * experts + expert.
    """

    embedding: np.ndarray
    embedding_scales: np.ndarray
    head: np.ndarray
    head_scales: np.ndarray
    qkv: np.ndarray
    qkv_scales: np.ndarray
    qkv_bias: np.ndarray
    output: np.ndarray
    output_scales: np.ndarray
    gate_up: np.ndarray
    gate_up_scales: np.ndarray
    down: np.ndarray
    down_scales: np.ndarray
    attention_norm: np.ndarray
    mlp_norm: np.ndarray
    query_norm: np.ndarray
    key_norm: np.ndarray
    final_norm: np.ndarray
    experts: ExpertWeights
    rope_cos: np.ndarray
    rope_sin: np.ndarray


class Batch(NamedTuple):
    """The arrays of `models.base.Rows`, and what to do with them.

    `tap_places` [layers + 2] is the place of each tap in `taps`, or -1: what enters a layer, what leaves the last one,
    and what leaves the final norm. `layers` are those to run, ascending.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    segments: np.ndarray
    page_tables: np.ndarray
    natural_lengths: np.ndarray
    branch_slots: np.ndarray
    logit_rows: np.ndarray
    num_keys: np.ndarray
    tap_places: np.ndarray
    layers: np.ndarray


class Scratch(NamedTuple):
    """Buffers of one pass, flat but for the last seven: six are [threads, ...], then those of the experts."""

    counters: np.ndarray
    hidden: np.ndarray
    normed: Operand
    qkv: np.ndarray
    mixed: Operand
    inner: Operand
    logits: np.ndarray
    taps: np.ndarray
    page_mass: np.ndarray
    row: np.ndarray
    gate_up: np.ndarray
    wide: np.ndarray
    scores: np.ndarray
    page_starts: np.ndarray
    value_starts: np.ndarray
    sums: np.ndarray
    experts: ExpertScratch


@kernel
def _place_row(row, layer, shape, eps, weights, batch, qkv, keys, values, layer_stride):
    """Norm (where the model does) and rotate a row's queries and keys; write its key and value into the cache."""
    dim, half = shape.head_dim, shape.head_dim // 2
    start = row * shape.qkv
    for head in range(shape.heads + shape.kv_heads):
        if len(weights.query_norm) > 0:
            norm = weights.query_norm if head < shape.heads else weights.key_norm
            norm_row(qkv, start + head * dim, norm, layer * dim, dim, eps, qkv, start + head * dim)
        rotate(qkv, start + head * dim, weights.rope_cos, weights.rope_sin, batch.positions[row] * half, half)
    page, place = divmod(batch.slots[row], PAGE_SIZE)
    for head in range(shape.kv_heads):
        at = layer * layer_stride + (page * shape.kv_heads + head) * dim * PAGE_SIZE
        k = start + (shape.heads + head) * dim
        value = k + shape.kv_heads * dim
        for i in range(0, dim, v.LANES):
            v.scatter(keys, at + i * PAGE_SIZE + place, PAGE_SIZE, v.load(qkv, k + i))
            v.store(values, at + place * dim + i, v.load(qkv, value + i))


@kernel
def _norm_rows(scratch, phase, thread, num_threads, num_rows, weight, weight_start, hidden, eps):
    size = chunk(num_rows, num_threads)
    first = take(scratch.counters, phase, size, num_rows)
    while first >= 0:
        for row in range(first, min(first + size, num_rows)):
            norm_row(scratch.hidden, row * hidden, weight, weight_start, hidden, eps, scratch.row[thread], 0)
            put(scratch.normed, row, hidden, 0, scratch.row[thread], 0, hidden)
        first = take(scratch.counters, phase, size, num_rows)


@kernel
def _place_rows(phase, layer, num_threads, num_rows, shape, eps, weights, batch, scratch, keys, values, layer_stride):
    size = chunk(num_rows, num_threads)
    first = take(scratch.counters, phase, size, num_rows)
    while first >= 0:
        for row in range(first, min(first + size, num_rows)):
            _place_row(row, layer, shape, eps, weights, batch, scratch.qkv, keys, values, layer_stride)
        first = take(scratch.counters, phase, size, num_rows)


@kernel
def _attend_rows(phase, layer, thread, num_threads, num_rows, shape, batch, scratch, keys, values, layer_stride):
    total = num_rows * shape.kv_heads * blocks_per_group(shape)
    size = blocks_at_once(num_rows, len(batch.page_tables), num_threads, shape)
    first = take(scratch.counters, phase, size, total)
    while first >= 0:
        last = min(first + size, total)
        attend_blocks(first, last, layer, thread, shape, batch, scratch, keys, values, layer_stride)
        first = take(scratch.counters, phase, size, total)


@kernel
def _tap(place, thread, num_rows, hidden, scratch):
    """Copy the hidden state to tap number `place` (one thread does)."""
    if place >= 0 and thread == 0:
        size = num_rows * hidden
        for i in range(0, size, v.LANES):
            v.store(scratch.taps, place * size + i, v.load(scratch.hidden, i))


@kernel
def _layer(layer, met, thread, num_threads, num_rows, shape, eps, weights, batch, scratch, keys, values, layer_stride):
    """Attention block, then gated feed-forward block; returns the count of barriers met."""
    counters, hidden, heads_width = scratch.counters, shape.hidden, shape.heads * shape.head_dim
    phase = 1 + layer * PHASES_PER_LAYER
    no_bias = weights.qkv_scales[:0]
    _tap(batch.tap_places[layer], thread, num_rows, hidden, scratch)
    _norm_rows(scratch, phase, thread, num_threads, num_rows, weights.attention_norm, layer * hidden, hidden, eps)
    met = barrier(counters, met, num_threads)
    product(
        counters, phase + 1, num_threads, scratch.normed, num_rows, hidden, weights.qkv, weights.qkv_scales,
        weights.qkv_bias, layer, shape.qkv, scratch.qkv, False, scratch.wide[thread],
    )  # fmt: skip
    met = barrier(counters, met, num_threads)
    _place_rows(
        phase + 2, layer, num_threads, num_rows, shape, eps, weights, batch, scratch, keys, values, layer_stride
    )
    met = barrier(counters, met, num_threads)
    _attend_rows(phase + 3, layer, thread, num_threads, num_rows, shape, batch, scratch, keys, values, layer_stride)
    met = barrier(counters, met, num_threads)
    product(
        counters, phase + 4, num_threads, scratch.mixed, num_rows, heads_width, weights.output, weights.output_scales,
        no_bias, layer, hidden, scratch.hidden, True, scratch.wide[thread],
    )  # fmt: skip
    met = barrier(counters, met, num_threads)
    _norm_rows(scratch, phase + 5, thread, num_threads, num_rows, weights.mlp_norm, layer * hidden, hidden, eps)
    met = barrier(counters, met, num_threads)
    if shape.experts > 0:
        return experts_forward(phase + 6, layer, met, thread, num_threads, num_rows, shape, weights, scratch)
    gated_product(
        counters, phase + 6, thread, num_threads, num_rows, shape, scratch.normed, weights.gate_up,
        weights.gate_up_scales, layer, shape.inner, scratch, scratch.inner,
    )  # fmt: skip
    met = barrier(counters, met, num_threads)
    product(
        counters, phase + 7, num_threads, scratch.inner, num_rows, shape.inner, weights.down, weights.down_scales,
        no_bias, layer, hidden, scratch.hidden, True, scratch.wide[thread],
    )  # fmt: skip
    return barrier(counters, met, num_threads)


@kernel
def _head(met, thread, num_threads, num_rows, shape, eps, weights, batch, scratch):
    """Final norm of all rows (for the tap) and logits of the asked rows."""
    counters, hidden = scratch.counters, shape.hidden
    phase = 1 + shape.layers * PHASES_PER_LAYER
    asked = len(batch.logit_rows)
    _tap(batch.tap_places[shape.layers], thread, num_rows, hidden, scratch)
    if thread == 0:
        for i in range(asked):
            source = batch.logit_rows[i] * hidden
            norm_row(scratch.hidden, source, weights.final_norm, 0, hidden, eps, scratch.row[thread], 0)
            put(scratch.normed, i, hidden, 0, scratch.row[thread], 0, hidden)
        place = batch.tap_places[shape.layers + 1]
        if place >= 0:
            for row in range(num_rows):
                at = (place * num_rows + row) * hidden
                norm_row(scratch.hidden, row * hidden, weights.final_norm, 0, hidden, eps, scratch.taps, at)
    met = barrier(counters, met, num_threads)
    product(
        counters, phase, num_threads, scratch.normed, asked, hidden, weights.head, weights.head_scales,
        weights.head_scales[:0], 0, shape.vocab, scratch.logits, False, scratch.wide[thread],
    )  # fmt: skip
    return barrier(counters, met, num_threads)


@entry
def forward(thread, num_threads, shape, eps, weights, batch, scratch, keys, values):
    """One pass; scratch.logits holds [asked rows, padded vocabulary] at the end.

    Args:
        thread, num_threads: this member of the team.
        shape, eps: sizes, and the norm's epsilon as float32.
        weights, batch, scratch: see the named tuples; scratch.counters must be zero.
        keys, values: flat caches [layers, pages, kv_heads, 16 * head_dim].
    """
    num_rows, hidden = len(batch.token_ids), shape.hidden
    layer_stride = len(keys) // shape.layers
    row = take(scratch.counters, 0, 1, num_rows)
    while row >= 0:
        token = batch.token_ids[row]
        read_weights(weights.embedding, weights.embedding_scales, token, hidden, scratch.hidden, row * hidden)
        row = take(scratch.counters, 0, 1, num_rows)
    met = barrier(scratch.counters, 0, num_threads)
    for layer in batch.layers:
        met = _layer(
            layer, met, thread, num_threads, num_rows, shape, eps, weights, batch, scratch, keys, values, layer_stride
        )
    _head(met, thread, num_threads, num_rows, shape, eps, weights, batch, scratch)


def num_counters(num_layers: int) -> int:
    """Counters a pass needs: arrivals, the embedding, the phases of every layer, the head."""
    return 3 + num_layers * PHASES_PER_LAYER
