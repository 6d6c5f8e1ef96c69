"""Queries, keys and values of latent attention (`ModelConfig.latent`) for a team of threads.

Two small products give the latents of a row, and others expand their norms to all heads; a key is put together when it
is written into the cache. Attention itself is that of other models. Not for what latent attention is
(`models/architecture/latent.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

from typing import NamedTuple

import numpy as np

from paceline.models.architecture.latent import LATENT_EPS
from paceline.models.base import PAGE_SIZE
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.gemm import padded_rows
from paceline.models.numba_executor.kernel import kernel
from paceline.models.numba_executor.kv_cache import first_element, write_token
from paceline.models.numba_executor.linear import product, rows_at_once
from paceline.models.numba_executor.operand import Operand, put
from paceline.models.numba_executor.rowwise import norm_row, rotate
from paceline.models.numba_executor.team import barrier, take

LATENT_PHASES = 4
"""Phases of a layer's latents besides the product of queries, each with its own ticket counter."""
_EPS = np.float32(LATENT_EPS)


class LatentShape(NamedTuple):
    """Sizes of `LatentAttention`; all are 0 for other models.

    Attributes:
        query_rank: 0 where queries have no latent. rank: of keys and values.
        still, value: dimensions of a head of keys that do not turn, and of values.
        joined, expanded: columns of the product that gives the key's turning part and the latent, and of the one that
            gives the heads' keys and values; both padded to whole panels.
    """

    query_rank: int = 0
    rank: int = 0
    still: int = 0
    value: int = 0
    joined: int = 0
    expanded: int = 0


class LatentWeights(NamedTuple):
    """Weights of latent attention besides those of `qkv` (the queries') and `output`; empty for other models.

    `query_a` [layers, query_rank, hidden]. `key_a` [layers, joined, hidden], rows that turn first. `key_value_b`
    [layers, expanded, rank], keys of all heads before values of all heads. Norms are float32.
    """

    query_a: np.ndarray
    query_a_scales: np.ndarray
    query_a_norm: np.ndarray
    key_a: np.ndarray
    key_a_scales: np.ndarray
    key_a_norm: np.ndarray
    key_value_b: np.ndarray
    key_value_b_scales: np.ndarray


class LatentScratch(NamedTuple):
    """Buffers, flat but for `head`.

    Attributes:
        query: [rows, query_rank]. joined: [rows, joined]. expanded: [rows, expanded].
        normed_query, normed: operands of [rows, query_rank], [rows, rank].
        head: [threads, 2 * head_dim], a key and its value, whose last elements are zeros.
    """

    query: np.ndarray
    joined: np.ndarray
    expanded: np.ndarray
    normed_query: Operand
    normed: Operand
    head: np.ndarray


def latent_shape(rope: int, still: int, value: int, rank: int, query_rank: int, heads: int) -> LatentShape:
    """The sizes for heads of these parts."""
    return LatentShape(query_rank, rank, still, value, padded_rows(rope + rank), padded_rows(heads * (still + value)))


@kernel
def project_latent(phase, query_phase, layer, met, thread, num_threads, num_rows, shape, weights, scratch):
    """qkv = queries, expanded = keys and values of the normed rows, joined = what turns; returns the barriers met.

    The caller waits for the last products.
    """
    counters, hidden, sizes = scratch.counters, shape.hidden, shape.latent
    own, lent, wide = weights.latent, scratch.latent, scratch.wide[thread]
    no_bias = own.key_a_norm[:0]
    product(
        counters, phase, thread, num_threads, scratch.normed, num_rows, hidden, own.key_a, own.key_a_scales, no_bias,
        layer, sizes.joined, lent.joined, False, wide,
    )  # fmt: skip
    if sizes.query_rank > 0:
        product(
            counters, phase + 1, thread, num_threads, scratch.normed, num_rows, hidden, own.query_a,
            own.query_a_scales, no_bias, layer, sizes.query_rank, lent.query, False, wide,
        )  # fmt: skip
    else:
        product(
            counters, query_phase, thread, num_threads, scratch.normed, num_rows, hidden, weights.qkv,
            weights.qkv_scales, no_bias, layer, shape.qkv, scratch.qkv, False, wide,
        )  # fmt: skip
    met = barrier(counters, met, num_threads)
    _norm_latents(counters, phase + 2, layer, num_threads, num_rows, shape, own, lent)
    met = barrier(counters, met, num_threads)
    product(
        counters, phase + 3, thread, num_threads, lent.normed, num_rows, sizes.rank, own.key_value_b,
        own.key_value_b_scales, no_bias, layer, sizes.expanded, lent.expanded, False, wide,
    )  # fmt: skip
    if sizes.query_rank > 0:
        product(
            counters, query_phase, thread, num_threads, lent.normed_query, num_rows, sizes.query_rank, weights.qkv,
            weights.qkv_scales, no_bias, layer, shape.qkv, scratch.qkv, False, wide,
        )  # fmt: skip
    return met


@kernel
def _norm_latents(counters, phase, layer, num_threads, num_rows, shape, own, lent):
    size, sizes = rows_at_once(num_rows, num_threads), shape.latent
    first = take(counters, phase, size, num_rows)
    while first >= 0:
        for row in range(first, min(first + size, num_rows)):
            at = row * sizes.joined + shape.rotary
            norm_row(lent.joined, at, own.key_a_norm, layer * sizes.rank, sizes.rank, _EPS, lent.joined, at)
            put(lent.normed, row, sizes.rank, 0, lent.joined, at, sizes.rank)
            if sizes.query_rank > 0:
                rank, at = sizes.query_rank, row * sizes.query_rank
                norm_row(lent.query, at, own.query_a_norm, layer * rank, rank, _EPS, lent.query, at)
                put(lent.normed_query, row, rank, 0, lent.query, at, rank)
        first = take(counters, phase, size, num_rows)


@kernel
def _copy(source, start, size, out, out_start):
    for i in range(0, size, v.LANES):
        v.store(out, out_start + i, v.load(source, start + i))


@kernel
def place_latent(row, layer, before, thread, angles, shape, weights, batch, scratch, keys, values):
    """Rotate a row's queries and what all heads' keys share; write the keys and values of all heads into the cache.

    `before` as in `first_element`.
    """
    dim, half, sizes, lent = shape.head_dim, shape.rotary // 2, shape.latent, scratch.latent
    turns = weights.rope_numbers[layer] >= 0
    shared, own, head_at = row * sizes.joined, row * sizes.expanded, lent.head[thread]
    if turns:
        rotate(lent.joined, shared, weights.rope_cos, weights.rope_sin, angles, half)
    _copy(lent.joined, shared, shape.rotary, head_at, 0)
    page, place = divmod(batch.slots[row], PAGE_SIZE)
    for head in range(shape.heads):
        if turns:
            at = row * shape.qkv + head * dim
            rotate(scratch.qkv, at, weights.rope_cos, weights.rope_sin, angles, half)
        key, value = own + head * sizes.still, own + shape.heads * sizes.still + head * sizes.value
        _copy(lent.expanded, key, sizes.still, head_at, shape.rotary)
        _copy(lent.expanded, value, sizes.value, head_at, dim)
        write_token(keys, values, first_element(keys, shape, page, before, head), place, dim, head_at, 0, dim)
