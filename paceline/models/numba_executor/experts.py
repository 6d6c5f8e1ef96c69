"""A mixture-of-experts feed-forward (Shazeer et al. 2017; as in Qwen2-MoE, Mixtral, gpt-oss, GLM-4.5 and DeepSeek-V3)
for a team of threads.

Rows are routed to experts and sorted by expert, and each expert multiplies its rows with the kernels of a dense layer.
The outputs of a row's experts are added in the order of the row's choice, so its result is bitwise the same whatever
rows share the pass. The cost of a pass is mostly reading the experts in use, whose number grows with that of rows.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

from typing import NamedTuple

import numpy as np

from paceline.models.architecture.experts import LEAST_TOTAL
from paceline.models.compiled.kernel import kernel
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.gemm import PANEL
from paceline.models.numba_executor.linear import chunk, inner_panel, inner_product, product
from paceline.models.numba_executor.matrix import multiply
from paceline.models.numba_executor.operand import Operand, copy_row, put, read_row
from paceline.models.numba_executor.rowwise import norm_row
from paceline.models.numba_executor.team import barrier, take

EXPERT_PHASES = 7
"""Phases of one layer's experts, each with its own ticket counter."""
_LEAST_TOTAL, _NEVER = np.float32(LEAST_TOTAL), np.float32(-np.inf)


class ExpertWeights(NamedTuple):
    """Weights of a mixture besides those of its experts; empty for dense models. Layers are those with experts.

    `router` [layers, experts, hidden], its `router_bias` [layers, experts] (empty for none), `selection_bias` [layers,
    experts] on scores (empty for none) and `shared_gate` [layers, hidden] (empty for none) are float32; the shared
    expert is packed as a dense feed-forward is, and so are the feed-forwards of the `dense` first layers.
    """

    router: np.ndarray
    router_bias: np.ndarray
    selection_bias: np.ndarray
    shared_gate: np.ndarray
    shared_gate_up: np.ndarray
    shared_gate_up_scales: np.ndarray
    shared_down: np.ndarray
    shared_down_scales: np.ndarray
    dense_gate_up: np.ndarray
    dense_gate_up_scales: np.ndarray
    dense_down: np.ndarray
    dense_down_scales: np.ndarray


class ExpertScratch(NamedTuple):
    """Flat buffers. A pair is a row and one of its experts; a place is the index of a pair in the order of experts.

    Attributes:
        logits: [rows, experts], which become scores. wanted: [rows, experts], scores by which experts are chosen where
            these are others, then [rows, groups], the scores of groups.
        chosen, shares: [rows, top_k]. shared_shares: [rows].
        places: [rows, top_k], the place of each pair. order: [pairs], the pair at each place.
        starts: [experts + 1], first place of each expert. active: [experts + 1], how many have rows, then which.
        sorted, inner, shared_inner: operands of [pairs, hidden], [pairs, inner], [rows, shared_inner].
        out, shared_out: [pairs, hidden], [rows, hidden].
        touched: [layers], experts with rows in the latest pass.
    """

    logits: np.ndarray
    wanted: np.ndarray
    chosen: np.ndarray
    shares: np.ndarray
    shared_shares: np.ndarray
    places: np.ndarray
    order: np.ndarray
    starts: np.ndarray
    active: np.ndarray
    sorted: Operand
    inner: Operand
    out: np.ndarray
    shared_inner: Operand
    shared_out: np.ndarray
    touched: np.ndarray


@kernel
def dot(a, b, b_start, size):
    """Sum of products of a[0:size] and b[b_start:] in sixteen chains."""
    sums = v.splat(np.float32(0))
    for i in range(0, size, v.LANES):
        sums = v.fma(v.load(a, i), v.load(b, b_start + i), sums)
    return v.sum_lanes(sums)


@kernel
def _softmax(x, start, size):
    """In place, over a few numbers."""
    top = x[start]
    for i in range(start, start + size):
        top = max(top, x[i])
    total = np.float32(0)
    for i in range(start, start + size):
        x[i] = np.exp(x[i] - top)
        total += x[i]
    for i in range(start, start + size):
        x[i] /= total


@kernel
def _sigmoid(x, start, size):
    """In place, over a few numbers."""
    for i in range(start, start + size):
        x[i] = np.float32(1) / (np.float32(1) + np.exp(-x[i]))


@kernel
def _drop_groups(row, num_rows, wanted, shape, by_two, e):
    """Put `_NEVER` in the place of a row's experts outside its best groups, lower numbers first on ties.

    A group is as good as its best expert, or `by_two` as its two best ones together.
    """
    size, start, scores = shape.experts // shape.groups, row * shape.experts, e.wanted
    first = num_rows * shape.experts + row * shape.groups
    for group in range(shape.groups):
        best = second = _NEVER
        for i in range(start + group * size, start + (group + 1) * size):
            if wanted[i] > best:
                best, second = wanted[i], best
            else:
                second = max(second, wanted[i])
        scores[first + group] = best + second if by_two else best
    for _ in range(shape.groups - shape.groups_kept):
        worst = first
        for i in range(first, first + shape.groups):
            if scores[i] <= scores[worst]:
                worst = i
        scores[worst] = np.float32(np.inf)
        group = worst - first
        wanted[start + group * size : start + (group + 1) * size] = _NEVER


@kernel
def _want_biased(row, num_rows, layer, shape, bias, e):
    """wanted = a row's scores plus `bias`, within the best groups."""
    start = row * shape.experts
    for i in range(shape.experts):
        e.wanted[start + i] = e.logits[start + i] + bias[layer * shape.experts + i]
    if shape.groups > 1:
        _drop_groups(row, num_rows, e.wanted, shape, True, e)


@kernel
def _choose(row, shape, wanted, e):
    """The `top_k` experts that a row wants most, lower numbers first on ties, and their shares."""
    start, first = row * shape.experts, row * shape.top_k
    total = np.float32(0)
    for choice in range(shape.top_k):
        best = start
        for i in range(start, start + shape.experts):
            if wanted[i] > wanted[best]:
                best = i
        e.chosen[first + choice], e.shares[first + choice] = best - start, e.logits[best]
        total += e.logits[best]
        wanted[best] = _NEVER
    for choice in range(shape.top_k):
        if shape.norm_top_k:
            e.shares[first + choice] /= total + _LEAST_TOTAL
        e.shares[first + choice] *= shape.routed_scale


@kernel
def _route(row, num_rows, layer, thread, shape, weights, scratch):
    """Compute a row's experts and their weights, and the weight of the shared expert."""
    e, hidden, x = scratch.experts, shape.hidden, scratch.row[thread]
    read_row(scratch.normed, row, hidden, x)
    for expert in range(shape.experts):
        at = layer * shape.experts + expert
        logit = dot(x, weights.experts.router, at * hidden, hidden)
        if len(weights.experts.router_bias) > 0:
            logit += weights.experts.router_bias[at]
        e.logits[row * shape.experts + expert] = logit
    if shape.sigmoid:
        _sigmoid(e.logits, row * shape.experts, shape.experts)
    else:
        _softmax(e.logits, row * shape.experts, shape.experts)
    if len(weights.experts.selection_bias) > 0:
        _want_biased(row, num_rows, layer, shape, weights.experts.selection_bias, e)
        _choose(row, shape, e.wanted, e)
    else:
        if shape.groups > 1:
            _drop_groups(row, num_rows, e.logits, shape, False, e)
        _choose(row, shape, e.logits, e)
    if shape.shared_inner > 0:
        share = np.float32(1)
        if len(weights.experts.shared_gate) > 0:
            share /= share + np.exp(-dot(x, weights.experts.shared_gate, layer * hidden, hidden))
        e.shared_shares[row] = share


@kernel
def _sort(num_rows, layer, shape, e):
    """Pairs in order of expert, then of row: places, order, starts, active."""
    pairs = num_rows * shape.top_k
    e.starts[: shape.experts + 1] = 0
    for pair in range(pairs):
        e.starts[e.chosen[pair] + 1] += 1
    active = 0
    for expert in range(shape.experts):
        if e.starts[expert + 1] > 0:
            active += 1
            e.active[active] = expert
        e.starts[expert + 1] += e.starts[expert]
    e.active[0] = e.touched[layer] = active
    for pair in range(pairs - 1, -1, -1):  # each expert's end counts down to its first place
        expert = e.chosen[pair]
        e.starts[expert + 1] -= 1
        e.places[pair] = e.starts[expert + 1]
        e.order[e.places[pair]] = pair
    for expert in range(shape.experts):
        e.starts[expert] = e.starts[expert + 1]
    e.starts[shape.experts] = pairs


@kernel
def _gather(counters, phase, num_threads, num_rows, shape, scratch):
    """Copy every place's row, so that an expert's rows lie together."""
    e, hidden, pairs = scratch.experts, shape.hidden, num_rows * shape.top_k
    size = chunk(pairs, num_threads)
    first = take(counters, phase, size, pairs)
    while first >= 0:
        for place in range(first, min(first + size, pairs)):
            copy_row(scratch.normed, e.order[place] // shape.top_k, e.sorted, place, hidden)
        first = take(counters, phase, size, pairs)


@kernel
def _multiply_experts(counters, phase, layer, thread, shape, weights, scratch, is_down):
    """The gated products, or the products down, of all experts with rows; an item is a panel of an expert."""
    e, hidden, inner = scratch.experts, shape.hidden, shape.inner
    panels, each = (hidden if is_down else inner) // PANEL, 2 if shape.gated else 1
    items = e.active[0] * panels
    item = take(counters, phase, 1, items)
    while item >= 0:
        which, panel = divmod(item, panels)
        expert = e.active[1 + which]
        first, last, matrix = e.starts[expert], e.starts[expert + 1], layer * shape.experts + expert
        if is_down:
            multiply(
                e.inner, first, last - first, inner, weights.down, matrix * hidden * inner,
                weights.down_scales, weights.down_bias, matrix * hidden, e.out[first * hidden :], 0, hidden,
                panel, panel + 1, False, scratch.wide[thread],
            )  # fmt: skip
        else:
            inner_panel(
                panel, thread, first, last - first, e.sorted, shape, weights.gate_up,
                weights.gate_up_scales, weights.gate_up_bias, matrix * each * inner, inner, scratch, e.inner,
            )  # fmt: skip
        item = take(counters, phase, 1, items)


@kernel
def _combine_row(row, shape, scratch):
    """hidden += shares of the chosen experts in the order of choice, then of the shared one."""
    e, hidden = scratch.experts, shape.hidden
    for i in range(0, hidden, v.LANES):
        total = v.splat(np.float32(0))
        for choice in range(row * shape.top_k, (row + 1) * shape.top_k):
            total = v.fma(v.splat(e.shares[choice]), v.load(e.out, e.places[choice] * hidden + i), total)
        if shape.shared_inner > 0:
            total = v.fma(v.splat(e.shared_shares[row]), v.load(e.shared_out, row * hidden + i), total)
        v.store(scratch.hidden, row * hidden + i, v.add(v.load(scratch.hidden, row * hidden + i), total))


@kernel
def experts_forward(phase, layer, met, thread, num_threads, num_rows, shape, weights, scratch):
    """hidden += mixture(normed), one layer's feed-forward; returns the count of barriers met.

    `layer` is its number among the layers with experts.
    """
    counters, e, w = scratch.counters, scratch.experts, weights.experts
    row = take(counters, phase, 1, num_rows)
    while row >= 0:
        _route(row, num_rows, layer, thread, shape, weights, scratch)
        row = take(counters, phase, 1, num_rows)
    met = barrier(counters, met, num_threads)
    if thread == 0:
        _sort(num_rows, layer, shape, e)
    met = barrier(counters, met, num_threads)
    _gather(counters, phase + 1, num_threads, num_rows, shape, scratch)
    met = barrier(counters, met, num_threads)
    _multiply_experts(counters, phase + 2, layer, thread, shape, weights, scratch, False)
    if shape.shared_inner > 0:
        inner_product(
            counters, phase + 3, thread, num_threads, num_rows, shape, scratch.normed, w.shared_gate_up,
            w.shared_gate_up_scales, w.shared_gate_up_scales[:0], layer, shape.shared_inner, scratch, e.shared_inner,
        )  # fmt: skip
    met = barrier(counters, met, num_threads)
    _multiply_experts(counters, phase + 4, layer, thread, shape, weights, scratch, True)
    if shape.shared_inner > 0:
        product(
            counters, phase + 5, thread, num_threads, e.shared_inner, num_rows, shape.shared_inner, w.shared_down,
            w.shared_down_scales, w.shared_down_scales[:0], layer, shape.hidden, e.shared_out, False,
            scratch.wide[thread],
        )  # fmt: skip
    met = barrier(counters, met, num_threads)
    row = take(counters, phase + 6, 1, num_rows)
    while row >= 0:
        _combine_row(row, shape, scratch)
        row = take(counters, phase + 6, 1, num_rows)
    return barrier(counters, met, num_threads)


@kernel
def _prepare_row(row, num_rows, layer, thread, shape, eps, weights, scratch):
    """Route a row by its own norm, then put what the experts are given into `normed`."""
    e, hidden, own, vectors = scratch.experts, shape.hidden, scratch.row[thread], weights.varied
    norm_row(scratch.hidden, row * hidden, vectors.router_norm, layer * hidden, hidden, eps, own, 0)
    put(scratch.normed, row, hidden, 0, own, 0, hidden)
    _route(row, num_rows, layer, thread, shape, weights, scratch)
    for choice in range(row * shape.top_k, (row + 1) * shape.top_k):
        e.shares[choice] *= vectors.expert_scales[layer * shape.experts + e.chosen[choice]]
    norm_row(scratch.hidden, row * hidden, vectors.experts_norm, layer * hidden, hidden, eps, own, 0)
    put(scratch.normed, row, hidden, 0, own, 0, hidden)


@kernel
def _add_row(row, layer, shape, eps, vectors, scratch):
    """delta = the dense feed-forward and the experts in the order of choice, each with its norm."""
    e, hidden, at = scratch.experts, shape.hidden, row * shape.hidden
    for i in range(0, hidden, v.LANES):
        total = v.splat(np.float32(0))
        for choice in range(row * shape.top_k, (row + 1) * shape.top_k):
            total = v.fma(v.splat(e.shares[choice]), v.load(e.out, e.places[choice] * hidden + i), total)
        v.store(scratch.delta, at + i, total)
    norm_row(scratch.delta, at, vectors.experts_out_norm, layer * hidden, hidden, eps, scratch.delta, at)
    norm_row(e.shared_out, at, vectors.dense_out_norm, layer * hidden, hidden, eps, e.shared_out, at)
    for i in range(at, at + hidden, v.LANES):
        v.store(scratch.delta, i, v.add(v.load(scratch.delta, i), v.load(e.shared_out, i)))


@kernel
def experts_beside_dense(phase, layer, met, thread, num_threads, num_rows, shape, eps, weights, scratch):
    """delta = dense(normed) + mixture(hidden), see `Experts.beside_dense`; returns the count of barriers met."""
    counters, e, w = scratch.counters, scratch.experts, weights.experts
    inner_product(
        counters, phase, thread, num_threads, num_rows, shape, scratch.normed, w.shared_gate_up,
        w.shared_gate_up_scales, w.shared_gate_up_scales[:0], layer, shape.shared_inner, scratch, e.shared_inner,
    )  # fmt: skip
    met = barrier(counters, met, num_threads)
    product(
        counters, phase + 1, thread, num_threads, e.shared_inner, num_rows, shape.shared_inner, w.shared_down,
        w.shared_down_scales, w.shared_down_scales[:0], layer, shape.hidden, e.shared_out, False, scratch.wide[thread],
    )  # fmt: skip
    row = take(counters, phase + 2, 1, num_rows)
    while row >= 0:
        _prepare_row(row, num_rows, layer, thread, shape, eps, weights, scratch)
        row = take(counters, phase + 2, 1, num_rows)
    met = barrier(counters, met, num_threads)
    if thread == 0:
        _sort(num_rows, layer, shape, e)
    met = barrier(counters, met, num_threads)
    _gather(counters, phase + 3, num_threads, num_rows, shape, scratch)
    met = barrier(counters, met, num_threads)
    _multiply_experts(counters, phase + 4, layer, thread, shape, weights, scratch, False)
    met = barrier(counters, met, num_threads)
    _multiply_experts(counters, phase + 5, layer, thread, shape, weights, scratch, True)
    met = barrier(counters, met, num_threads)
    row = take(counters, phase + 6, 1, num_rows)
    while row >= 0:
        _add_row(row, layer, shape, eps, weights.varied, scratch)
        row = take(counters, phase + 6, 1, num_rows)
    return barrier(counters, met, num_threads)
