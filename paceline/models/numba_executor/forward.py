"""One pass of a decoder-only transformer as one compiled function: `forward`.

`Shape` and the presence of vectors determine the parts of a layer (norms before or after, a gate, biases, windows,
caps, factors); no family is known here.

Every thread of a team runs it from start to end; phases end at a barrier, and threads take work inside a phase in
chunks. Arrays are flat and owned by the caller (`arrays.py`). Not for formats of weights (`weights.py`) or for building
batches (`executor.py`). Long, because its phases share the arrays of one pass and are compiled into one function.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

import numpy as np
from numba import types
from numba.extending import overload

from paceline.models.base import PAGE_SIZE
from paceline.models.compiled.kernel import OPTIONS, entry, kernel
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.arrays import Shape
from paceline.models.numba_executor.attend import attend_blocks, blocks_at_once, blocks_per_group, value_dim
from paceline.models.numba_executor.experts import EXPERT_PHASES, experts_beside_dense, experts_forward
from paceline.models.numba_executor.kv_cache import first_element, write_token
from paceline.models.numba_executor.latent import LATENT_PHASES, place_latent, project_latent
from paceline.models.numba_executor.layer_inputs import INPUT_PHASES, make_inputs, read_input
from paceline.models.numba_executor.layer_table import (
    CACHE,
    DOWN_COLUMN,
    FIRST_DOWN,
    FIRST_GATE_UP,
    FIRST_OUTPUT,
    FIRST_QKV,
    INNER,
    MIXTURE,
    PROJECTED,
    QKV,
    ROTARY,
    VALUES,
    heads_of,
)
from paceline.models.numba_executor.linear import chunk, inner_product_at, product, product_at, rows_at_once
from paceline.models.numba_executor.matrix import read_weights
from paceline.models.numba_executor.operand import put
from paceline.models.numba_executor.peaks import find_peaks
from paceline.models.numba_executor.recurrent import norm_groups, project_gates, run_states
from paceline.models.numba_executor.reference import refer, stored
from paceline.models.numba_executor.rowwise import layer_norm_row, norm_row, rotate
from paceline.models.numba_executor.team import barrier, share, take
from paceline.models.numba_executor.warm import barrier_at, barrier_before

_MERGES = 6 + EXPERT_PHASES
"""The first of two phases of a layer that add what attention and feed-forward give, where it is not done at once."""
_INPUTS = 8 + EXPERT_PHASES
"""The first phase of a layer's own input."""
_LATENT = _INPUTS + INPUT_PHASES
"""The first phase of a layer's latents."""
_DENSE_PHASES = 8
"""Phases of a layer with none of these."""
_ONE = np.float32(1)


@kernel
def phases_per_layer(shape):
    """Phases up to the last that a layer of this model may have.

    A pass finds its counters at 0 and in the cache of whichever core took chunks last: each cache line of them costs
    a tenth of a microsecond and more, so a model has no counters for parts that it lacks.
    """
    if shape.latent.rank > 0:
        return _LATENT + LATENT_PHASES
    if shape.layer_input > 0:
        return _INPUTS + INPUT_PHASES
    return _INPUTS if shape.experts > 0 or shape.apart else _DENSE_PHASES


@kernel
def _grow(query, start, size, position, shape):
    """Multiply a query by the factor of its position."""
    steps = np.float32(position // shape.query_growth_every)
    factor = _ONE + shape.query_growth * np.log(_ONE + steps)
    for i in range(start, start + size, v.LANES):
        v.store(query, i, v.mul(v.load(query, i), v.splat(factor)))


@kernel
def _norm_values(start, sizes, dim, eps, ones, qkv):
    """Norm a row's values, which are projected or copied from its keys, which begin at `start`."""
    values = start + sizes[PROJECTED] * dim
    source = values if sizes[VALUES] else start
    for at in range(0, sizes[PROJECTED] * dim, dim):
        norm_row(qkv, source + at, ones, 0, dim, eps, qkv, values + at)


@kernel
def _place_row(row, layer, thread, num_rows, shape, heads, eps, weights, batch, scratch, keys, values):
    """Norm (where the model does) and rotate a row's queries and keys; write its key and value into the cache."""
    sizes, dim, widest, place_of_layer = weights.sizes[layer], heads.head_dim, shape.rotary // 2, weights.places[layer]
    qkv = scratch.qkv
    start, table, half, projected = row * shape.qkv, weights.rope_numbers[layer], sizes[ROTARY] // 2, sizes[PROJECTED]
    angles = (table * (len(weights.rope_cos) // (max(widest, 1) * shape.tables)) + batch.positions[row]) * widest
    if shape.latent.rank > 0:
        place_latent(
            weights.latent,
            row,
            layer,
            sizes[CACHE],
            thread,
            num_rows,
            angles,
            shape,
            weights,
            batch,
            scratch,
            keys,
            values,
        )
        return
    if len(weights.varied.value_norm) > 0:
        _norm_values(start + shape.heads * dim, sizes, dim, eps, weights.varied.value_norm, qkv)
    if shape.wide_norm:
        width, key_width = shape.heads * dim, shape.kv_heads * dim
        norm_row(qkv, start, weights.query_norm, place_of_layer * width, width, eps, qkv, start)
        norm_row(qkv, start + width, weights.key_norm, place_of_layer * key_width, key_width, eps, qkv, start + width)
    for head in range(shape.heads + projected):
        at, has_norm = start + head * dim, len(weights.query_norm) > 0 and not shape.wide_norm
        norm = weights.query_norm if head < shape.heads else weights.key_norm
        if table >= 0 and shape.norms_last:
            rotate(qkv, at, weights.rope_cos, weights.rope_sin, angles, half)
        if has_norm:
            norm_row(qkv, at, norm, place_of_layer * shape.head_dim, dim, eps, qkv, at)
        if table >= 0 and not shape.norms_last:
            rotate(qkv, at, weights.rope_cos, weights.rope_sin, angles, half)
        if shape.query_growth > 0 and head < shape.heads:
            _grow(qkv, at, dim, batch.positions[row], shape)
    page, place = divmod(batch.slots[row], PAGE_SIZE)
    for head in range(projected):
        at = first_element(keys, heads, page, sizes[CACHE], head)
        key = start + (shape.heads + head) * dim
        write_token(keys, values, at, place, dim, qkv, key, key + projected * dim)


@kernel
def _norm(shape, source, source_start, weight, bias, vector_start, eps, out, out_start):
    """A row of hidden states, normed as the model does."""
    eps = eps / (shape.residual_scale * shape.residual_scale)
    if shape.layer_norm:
        layer_norm_row(source, source_start, weight, bias, vector_start, shape.hidden, eps, out, out_start)
    else:
        norm_row(source, source_start, weight, vector_start, shape.hidden, eps, out, out_start)


@kernel
def _norm_rows(scratch, phase, thread, num_threads, num_rows, weight, bias, layer, shape, eps):
    """normed = what the next product reads of hidden."""
    size, hidden = rows_at_once(num_rows, num_threads), shape.hidden
    first = take(scratch.counters, phase, size, num_rows)
    while first >= 0:
        for row in range(first, min(first + size, num_rows)):
            if shape.pre_norms:
                _norm(shape, scratch.hidden, row * hidden, weight, bias, layer * hidden, eps, scratch.row[thread], 0)
                put(scratch.normed, row, hidden, 0, scratch.row[thread], 0, hidden)
            else:
                put(scratch.normed, row, hidden, 0, scratch.hidden, row * hidden, hidden)
        first = take(scratch.counters, phase, size, num_rows)


@kernel
def _merge_rows(scratch, phase, thread, num_threads, num_rows, weight, layer, shape, eps, factor):
    """hidden += delta, normed where the model does; then times `factor`."""
    size, hidden = rows_at_once(num_rows, num_threads), shape.hidden
    first = take(scratch.counters, phase, size, num_rows)
    while first >= 0:
        for row in range(first, min(first + size, num_rows)):
            at = row * hidden
            if shape.post_norms:
                norm_row(scratch.delta, at, weight, layer * hidden, hidden, eps, scratch.delta, at)
            for i in range(at, at + hidden, v.LANES):
                v.store(scratch.hidden, i, v.add(v.load(scratch.hidden, i), v.load(scratch.delta, i)))
            for i in range(at, at + hidden if factor != _ONE else at, v.LANES):
                v.store(scratch.hidden, i, v.mul(v.load(scratch.hidden, i), v.splat(factor)))
        first = take(scratch.counters, phase, size, num_rows)


@kernel
def _place_rows(
    phase, layer, thread, num_threads, num_rows, shape, heads, eps, weights, batch, scratch, keys, values
):  # fmt: skip
    size = max(rows_at_once(num_rows, num_threads), PAGE_SIZE)  # a page's keys of all tokens share cache lines
    first = take(scratch.counters, phase, size, num_rows)
    while first >= 0:
        for row in range(first, min(first + size, num_rows)):
            _place_row(row, layer, thread, num_rows, shape, heads, eps, weights, batch, scratch, keys, values)
        first = take(scratch.counters, phase, size, num_rows)


@kernel
def _attend_rows(
    phase, layer, weights, thread, num_threads, num_rows, heads, batch, scratch, keys, values
):  # fmt: skip
    place, before = weights.places[layer], weights.sizes[layer, CACHE]
    window, sinks = weights.windows[layer], weights.sinks[place * heads.heads : (place + 1) * heads.heads]
    gate = (heads.heads + 2 * heads.kv_heads) * heads.head_dim if heads.gated_attention else -1
    total = num_rows * heads.kv_heads * blocks_per_group(heads)
    size = blocks_at_once(num_rows, len(batch.page_tables), num_threads, heads)
    first = take(scratch.counters, phase, size, total)
    while first >= 0:
        last = min(first + size, total)
        attend_blocks(first, last, before, window, sinks, gate, thread, heads, batch, scratch, keys, values)
        first = take(scratch.counters, phase, size, total)


@kernel
def _tap(place, thread, num_rows, shape, scratch):
    """Copy the hidden states to tap number `place` (one thread does)."""
    if place >= 0 and thread == 0:
        size, scale = num_rows * shape.hidden, v.splat(shape.residual_scale)
        for i in range(0, size, v.LANES):
            v.store(scratch.taps, place * size + i, v.mul(v.load(scratch.hidden, i), scale))


@kernel
def _attend(phase, layer, met, thread, num_threads, num_rows, shape, eps, weights, batch, scratch, added, keys, values):
    """The attention of normed rows, up to its output projection; returns the count of barriers met."""
    counters, hidden, sizes = scratch.counters, shape.hidden, weights.sizes[layer]
    heads, place = heads_of(sizes, shape), weights.places[layer]
    width, first, column = heads.heads * value_dim(heads), sizes[FIRST_OUTPUT], place * hidden
    met = _barrier_before_qkv(layer, met, thread, num_threads, shape, weights, counters)
    if shape.latent.rank > 0:
        met = project_latent(
            weights.latent, phase + _LATENT, phase + 1, place, met, thread, num_threads, num_rows, shape, weights,
            scratch,
        )  # fmt: skip
    else:
        product_at(
            counters, phase + 1, thread, num_threads, scratch.normed, num_rows, hidden, weights.qkv,
            sizes[FIRST_QKV] * hidden, weights.qkv_scales, weights.qkv_bias, sizes[FIRST_QKV], sizes[QKV], scratch.qkv,
            shape.qkv, False, scratch.wide[thread],
        )  # fmt: skip
    met = barrier_at(counters, met, thread, num_threads, weights.output, first, column, hidden, width, 1)
    _place_rows(
        phase + 2, layer, thread, num_threads, num_rows, shape, heads, eps, weights, batch, scratch, keys, values
    )  # fmt: skip
    met = barrier_at(counters, met, thread, num_threads, weights.output, first, column, hidden, width, 1)
    _attend_rows(
        phase + 3, layer, weights, thread, num_threads, num_rows, heads, batch, scratch, keys, values,
    )  # fmt: skip
    met = barrier_at(counters, met, thread, num_threads, weights.output, first, column, hidden, width, 1)
    product_at(
        counters, phase + 4, thread, num_threads, scratch.mixed, num_rows, width, weights.output, first,
        weights.output_scales, weights.output_bias, column, hidden, added, hidden, not shape.apart,
        scratch.wide[thread],
    )  # fmt: skip
    return met


def _remember(w, phase, place, met, thread, num_threads, num_rows, shape, eps, states, scratch, added):
    """The recurrent layer number `place` of normed rows, as `_attend`; nothing where `w` is None."""
    raise NotImplementedError


@overload(_remember, jit_options=OPTIONS)
def _remember_where_needed(w, phase, place, met, thread, num_threads, num_rows, shape, eps, states, scratch, added):
    def nothing(w, phase, place, met, thread, num_threads, num_rows, shape, eps, states, scratch, added):
        return met

    return nothing if isinstance(w, types.NoneType) else _run_recurrent.py_func


@kernel
def _run_recurrent(w, phase, place, met, thread, num_threads, num_rows, shape, eps, states, scratch, added):
    counters, hidden, r = scratch.counters, shape.hidden, shape.recurrent
    met = barrier_before(counters, met, thread, num_threads, w.project, place, r.columns, hidden, 1)
    if r.gates > 0:
        project_gates(phase + 2, place, thread, num_rows, shape, w, scratch)
    product(
        counters, phase + 1, thread, num_threads, scratch.normed, num_rows, hidden, w.project, w.project_scales,
        w.project_scales[:0], place, r.columns, scratch.mix, False, scratch.wide[thread],
    )  # fmt: skip
    met = barrier_before(counters, met, thread, num_threads, w.out, place, hidden, r.width, 1)
    run_states(phase + 3, place, thread, shape, eps, w, states, scratch)
    if r.groups > 0:
        met = barrier(counters, met, num_threads)
        norm_groups(place, thread, num_threads, num_rows, r, eps, w, scratch)
    met = barrier_before(counters, met, thread, num_threads, w.out, place, hidden, r.width, 1)
    product(
        counters, phase + 4, thread, num_threads, scratch.mixed, num_rows, r.width, w.out, w.out_scales,
        w.out_scales[:0], place, hidden, added, not shape.apart, scratch.wide[thread],
    )  # fmt: skip
    return met


@kernel
def _layer(layer, met, thread, num_threads, num_rows, shape, eps, weights, batch, scratch, keys, values):
    """Attention block, then feed-forward block where there is one; returns the count of barriers met."""
    counters, hidden, sizes = scratch.counters, shape.hidden, weights.sizes[layer]
    phase = 1 + layer * phases_per_layer(shape)
    added = scratch.delta if shape.apart else scratch.hidden
    _tap(batch.tap_places[layer], thread, num_rows, shape, scratch)
    _norm_rows(
        scratch, phase, thread, num_threads, num_rows, weights.attention_norm, weights.attention_norm_bias, layer,
        shape, eps,
    )  # fmt: skip
    if shape.recurrent.layers > 0 and weights.is_recurrent[layer]:
        met = _remember(
            weights.recurrent, phase, weights.places[layer], met, thread, num_threads, num_rows, shape, eps,
            batch.states, scratch, added,
        )  # fmt: skip
    else:
        met = _attend(
            phase, layer, met, thread, num_threads, num_rows, shape, eps, weights, batch, scratch, added, keys, values
        )  # fmt: skip
    if sizes[INNER] == 0:
        return barrier(counters, met, num_threads)
    each = 2 if shape.gated else 1
    inner, first_up = each * sizes[INNER], sizes[FIRST_GATE_UP]
    if shape.experts > 0:
        met = barrier(counters, met, num_threads)
    else:
        met = barrier_at(
            counters, met, thread, num_threads, weights.gate_up, first_up * hidden, first_up, inner, hidden, each
        )
    if shape.parallel:
        _norm_rows(
            scratch, phase + 5, thread, num_threads, num_rows, weights.mlp_norm, weights.mlp_norm_bias, layer, shape,
            eps,
        )  # fmt: skip
        met = barrier(counters, met, num_threads)
    if shape.apart:
        _merge_rows(
            scratch, phase + _MERGES, thread, num_threads, num_rows, weights.attention_out_norm, layer, shape, eps,
            _ONE,
        )  # fmt: skip
        met = barrier(counters, met, num_threads)
    if not shape.parallel:
        _norm_rows(
            scratch, phase + 5, thread, num_threads, num_rows, weights.mlp_norm, weights.mlp_norm_bias, layer, shape,
            eps,
        )  # fmt: skip
    if shape.experts > 0:
        met = barrier(counters, met, num_threads)
        return _mixture(
            weights.experts, phase, layer, met, thread, num_threads, num_rows, shape, eps, weights, scratch, added
        )  # fmt: skip
    met = barrier_at(
        counters, met, thread, num_threads, weights.gate_up, first_up * hidden, first_up, inner, hidden, each
    )
    return _feed_forward(
        phase, layer, met, thread, num_threads, num_rows, shape, eps, weights, scratch, added, sizes[INNER], first_up,
        sizes[FIRST_DOWN], sizes[DOWN_COLUMN], weights.gate_up, weights.gate_up_scales, weights.down,
        weights.down_scales,
    )  # fmt: skip


def _mixture(own, phase, layer, met, thread, num_threads, num_rows, shape, eps, weights, scratch, added):
    """The feed-forward block of a layer of a model with experts, whose weights are `own`; see `_feed_forward`."""
    raise NotImplementedError


@overload(_mixture, jit_options=OPTIONS)
def _mixture_where_needed(own, phase, layer, met, thread, num_threads, num_rows, shape, eps, weights, scratch, added):
    def nothing(own, phase, layer, met, thread, num_threads, num_rows, shape, eps, weights, scratch, added):
        return met

    return nothing if isinstance(own, types.NoneType) else _run_mixture.py_func


@kernel
def _run_mixture(own, phase, layer, met, thread, num_threads, num_rows, shape, eps, weights, scratch, added):
    if shape.apart:
        met = experts_beside_dense(
            phase + 6, layer, met, thread, num_threads, num_rows, shape, eps, weights, scratch
        )  # fmt: skip
        return _leave(phase, layer, met, thread, num_threads, num_rows, shape, eps, weights, scratch)
    number = weights.sizes[layer, MIXTURE]
    if number >= 0:
        return experts_forward(
            phase + 6, number, met, thread, num_threads, num_rows, shape, weights, scratch
        )  # fmt: skip
    inner, each = shape.dense_inner, 2 if shape.gated else 1
    return _feed_forward(
        phase, layer, met, thread, num_threads, num_rows, shape, eps, weights, scratch, added, inner,
        layer * each * inner, layer * shape.hidden * inner, layer * shape.hidden, own.dense_gate_up,
        own.dense_gate_up_scales, own.dense_down, own.dense_down_scales,
    )  # fmt: skip


@kernel
def _barrier_before_qkv(layer, met, thread, num_threads, shape, weights, counters):
    first, columns, depth = weights.sizes[layer, FIRST_QKV], weights.sizes[layer, QKV], shape.query_depth
    return barrier_at(counters, met, thread, num_threads, weights.qkv, first * depth, first, columns, depth, 1)


@kernel
def _feed_forward(
    phase, layer, met, thread, num_threads, num_rows, shape, eps, weights, scratch, added, inner, first_up, first_down,
    down_column, gate_up, gate_up_scales, down, down_scales,
):  # fmt: skip
    """The dense feed-forward block of normed rows; returns the count of barriers met.

    Its matrices begin at column `first_up` of `gate_up`, at element `first_down` of `down` and at column `down_column`.
    """
    counters, hidden = scratch.counters, shape.hidden
    inner_product_at(
        counters, phase + 6, thread, num_threads, num_rows, shape, scratch.normed, gate_up, gate_up_scales,
        weights.gate_up_bias, first_up, inner, scratch, scratch.inner,
    )  # fmt: skip
    met = barrier_at(counters, met, thread, num_threads, down, first_down, down_column, hidden, inner, 1)
    product_at(
        counters, phase + 7, thread, num_threads, scratch.inner, num_rows, inner, down, first_down, down_scales,
        weights.down_bias, down_column, hidden, added, hidden, not shape.apart, scratch.wide[thread],
    )  # fmt: skip
    if layer + 1 < shape.layers and shape.recurrent.layers > 0:
        met = barrier(counters, met, num_threads)
    elif layer + 1 < shape.layers:
        met = _barrier_before_qkv(layer + 1, met, thread, num_threads, shape, weights, counters)
    else:
        met = barrier_before(counters, met, thread, num_threads, weights.head, 0, shape.vocab, shape.hidden, 1)
    if shape.apart:
        met = _leave(phase, layer, met, thread, num_threads, num_rows, shape, eps, weights, scratch)
    return met


@kernel
def _leave(phase, layer, met, thread, num_threads, num_rows, shape, eps, weights, scratch):
    """Add to the hidden states what the feed-forward gives, then what the layer's own input does, and scale them."""
    factor = weights.varied.layer_scalars[layer] if len(weights.varied.layer_scalars) > 0 else _ONE
    _merge_rows(
        scratch, phase + _MERGES + 1, thread, num_threads, num_rows, weights.mlp_out_norm, layer, shape, eps,
        _ONE if shape.layer_input > 0 else factor,
    )  # fmt: skip
    met = barrier(scratch.counters, met, num_threads)
    if shape.layer_input > 0:
        first, norm = phase + _INPUTS, weights.varied.input_out_norm
        met = read_input(first, layer, met, thread, num_threads, num_rows, shape, weights.varied, scratch)
        _merge_rows(scratch, first + 4, thread, num_threads, num_rows, norm, layer, shape, eps, factor)
        met = barrier(scratch.counters, met, num_threads)
    return met


@kernel
def _scale_logits(phase, thread, num_threads, num_rows, shape, scratch):
    """Scale logits, and cap them where the model does."""
    factor, total = v.splat(shape.logit_scale), num_rows * shape.vocab
    size = chunk(total // v.LANES, num_threads) * v.LANES
    first = take(scratch.counters, phase, size, total)
    while first >= 0:
        for i in range(first, min(first + size, total), v.LANES):
            x = v.mul(v.load(scratch.logits, i), factor)
            if shape.logit_cap > 0:
                x = v.soft_cap(x, shape.logit_cap)
            v.store(scratch.logits, i, x)
        first = take(scratch.counters, phase, size, total)


@kernel
def _head(met, thread, num_threads, num_rows, shape, eps, weights, batch, scratch):
    """Final norm of all rows (for the tap), logits of the asked rows and where they are largest."""
    counters, hidden = scratch.counters, shape.hidden
    phase = 1 + shape.layers * phases_per_layer(shape)
    asked = len(batch.logit_rows)
    _tap(batch.tap_places[shape.layers], thread, num_rows, shape, scratch)
    if thread == 0:
        for i in range(asked):
            source = batch.logit_rows[i] * hidden
            _norm(
                shape, scratch.hidden, source, weights.final_norm, weights.final_norm_bias, 0, eps,
                scratch.row[thread], 0,
            )  # fmt: skip
            put(scratch.normed, i, hidden, 0, scratch.row[thread], 0, hidden)
        place = batch.tap_places[shape.layers + 1]
        if place >= 0:
            for row in range(num_rows):
                at = (place * num_rows + row) * hidden
                _norm(
                    shape, scratch.hidden, row * hidden, weights.final_norm, weights.final_norm_bias, 0, eps,
                    scratch.taps, at,
                )  # fmt: skip
    met = barrier_before(counters, met, thread, num_threads, weights.head, 0, shape.vocab, hidden, 1)
    product(
        counters, phase, thread, num_threads, scratch.normed, asked, hidden, weights.head, weights.head_scales,
        weights.head_scales[:0], 0, shape.vocab, scratch.logits, False, scratch.wide[thread],
    )  # fmt: skip
    met = barrier(counters, met, num_threads)
    if shape.logit_cap > 0 or shape.logit_scale != _ONE:
        _scale_logits(phase + 1, thread, num_threads, asked, shape, scratch)
        met = barrier(counters, met, num_threads)
    find_peaks(
        counters, phase + 2, met, thread, num_threads, scratch.logits, asked, shape.vocab, shape.scored, scratch.peaks
    )


@kernel
def _embed_row(row, shape, weights, batch, scratch):
    """hidden = the token's embedding, scaled, and with its position's added where positions are learned.

    Or what the pass was given in its place.
    """
    hidden, start = shape.hidden, row * shape.hidden
    if len(batch.inputs) > 0:
        for i in range(start, start + hidden, v.LANES):
            v.store(scratch.hidden, i, v.load(batch.inputs, i))
        return
    read_weights(weights.embedding, weights.embedding_scales, batch.token_ids[row], hidden, scratch.hidden, start)
    if shape.embedding_scale != _ONE:
        for i in range(start, start + hidden, v.LANES):
            v.store(scratch.hidden, i, v.mul(v.load(scratch.hidden, i), v.splat(shape.embedding_scale)))
    if len(weights.positions) > 0:
        position = batch.positions[row] * hidden
        for i in range(0, hidden, v.LANES):
            x = v.add(v.load(scratch.hidden, start + i), v.load(weights.positions, position + i))
            v.store(scratch.hidden, start + i, x)


@kernel
def _run(thread, num_threads, shape, eps, weights, batch, scratch, keys, values):
    """One pass; at the end scratch.logits holds [asked rows, padded vocabulary], scratch.peaks what `find_peaks` gives.

    Args:
        thread, num_threads: this member of the team.
        shape, eps: sizes, and the norm's epsilon as float32.
        weights, batch, scratch: see the named tuples; scratch.counters must be zero. All but `batch` are `Kept`.
        keys, values: flat caches [pages, layers, kv_heads, elements of a page] (`kv_cache.py`).
    """
    batch = refer(batch)
    num_rows = len(batch.token_ids)
    row = take(scratch.counters, 0, 1, num_rows)
    while row >= 0:
        _embed_row(row, shape, weights, batch, scratch)
        row = take(scratch.counters, 0, 1, num_rows)
    met = barrier(scratch.counters, 0, num_threads)
    if shape.layer_input > 0:
        phase = 4 + shape.layers * phases_per_layer(shape)
        met = make_inputs(phase, met, thread, num_threads, num_rows, shape, eps, weights.varied, batch, scratch)
    for layer in batch.layers:
        met = _layer(layer, met, thread, num_threads, num_rows, shape, eps, weights, batch, scratch, keys, values)
    _head(met, thread, num_threads, num_rows, shape, eps, weights, batch, scratch)


@kernel
def _follow(thread, args):
    _run(thread, *stored(args))


@entry
def forward(slot, args):
    """`_run(thread, *args)` on every member of the team that this job slot belongs to."""
    share(slot, _follow, args)


def num_counters(shape: Shape) -> int:
    """Counters a pass needs: arrivals, the embedding, the phases of every layer, the head, the logits, their peaks, and
    two for inputs of layers."""
    return 7 + shape.layers * phases_per_layer.py_func(shape)
