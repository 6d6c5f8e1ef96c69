"""Queries, keys and values of latent attention (`ModelConfig.latent`) for a team of threads.

A small product gives the latents of a row, and two others expand their norms to all heads; a key is put together when
it is written into the cache. Attention itself is that of other models. Not for what latent attention is
(`models/architecture/latent.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import overload

from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.latent import LATENT_EPS
from paceline.models.base import PAGE_SIZE
from paceline.models.compiled.kernel import OPTIONS, kernel
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.gemm import padded_rows
from paceline.models.numba_executor.kv_cache import first_element, write_token
from paceline.models.numba_executor.linear import product, rows_at_once
from paceline.models.numba_executor.operand import put
from paceline.models.numba_executor.rowwise import copy_numbers, norm_row, rotate
from paceline.models.numba_executor.team import barrier, take

LATENT_PHASES = 3
"""Phases of a layer's latents besides the product of queries, each with its own ticket counter."""
_EPS = np.float32(LATENT_EPS)


class LatentShape(NamedTuple):
    """Sizes of `LatentAttention`; all are 0 for other models.

    Attributes:
        query_rank: 0 where queries have no latent. rank: of keys and values.
        still, value: dimensions of a head of keys that do not turn, and of values.
        compressed: columns of the product that gives a row's latent of queries, what turns of its key, and its latent
            of keys and values. expanded: those of the product that gives all heads' keys, then all heads' values. Both
            are padded to whole panels.
    """

    query_rank: int = 0
    rank: int = 0
    still: int = 0
    value: int = 0
    compressed: int = 0
    expanded: int = 0


class LatentWeights(NamedTuple):
    """Weights of latent attention besides those of `qkv` (the queries') and `output`; empty for other models.

    `compress` [layers, compressed, hidden] and `expand` [layers, expanded, rank] are packed as other matrices are;
    `latent_norm` [layers, query_rank + rank] is float32.
    """

    compress: np.ndarray
    compress_scales: np.ndarray
    latent_norm: np.ndarray
    expand: np.ndarray
    expand_scales: np.ndarray


def latent_shape(config: ModelConfig) -> LatentShape:
    """The sizes for the kernels."""
    own = config.latent
    if own is None:
        return LatentShape()
    return LatentShape(
        own.q_lora_rank, own.kv_lora_rank, own.qk_nope_head_dim, own.v_head_dim,
        padded_rows(own.q_lora_rank + own.qk_rope_head_dim + own.kv_lora_rank),
        padded_rows(config.num_attention_heads * (own.qk_nope_head_dim + own.v_head_dim)),
    )  # fmt: skip


def project_latent(own, phase, query_phase, layer, met, thread, num_threads, num_rows, shape, weights, scratch):
    """See `_project`; nothing where the model has no such weights (`own` is None)."""
    raise NotImplementedError


@overload(project_latent, jit_options=OPTIONS)
def _project_where_needed(
    own, phase, query_phase, layer, met, thread, num_threads, num_rows, shape, weights, scratch
):  # fmt: skip
    def nothing(own, phase, query_phase, layer, met, thread, num_threads, num_rows, shape, weights, scratch):
        return met

    return nothing if isinstance(own, types.NoneType) else _project.py_func


@kernel
def _project(own, phase, query_phase, layer, met, thread, num_threads, num_rows, shape, weights, scratch):
    """qkv = the queries of the normed rows; latent = [rows, compressed], then [rows, expanded] with keys and values.

    Returns the count of barriers met; the caller waits for the last products. Normed latents are in `inner` (queries')
    and `mixed`, which nothing else needs meanwhile.
    """
    counters, sizes, wide = scratch.counters, shape.latent, scratch.wide[thread]
    no_bias = own.latent_norm[:0]
    product(
        counters, phase, thread, num_threads, scratch.normed, num_rows, shape.hidden, own.compress,
        own.compress_scales, no_bias, layer, sizes.compressed, scratch.latent, False, wide,
    )  # fmt: skip
    if sizes.query_rank == 0:
        product(
            counters, query_phase, thread, num_threads, scratch.normed, num_rows, shape.hidden, weights.qkv,
            weights.qkv_scales, no_bias, layer, shape.qkv, scratch.qkv, False, wide,
        )  # fmt: skip
    met = barrier(counters, met, num_threads)
    _norm_latents(counters, phase + 1, layer, num_threads, num_rows, shape, own.latent_norm, scratch)
    met = barrier(counters, met, num_threads)
    product(
        counters, phase + 2, thread, num_threads, scratch.mixed, num_rows, sizes.rank, own.expand, own.expand_scales,
        no_bias, layer, sizes.expanded, scratch.latent[num_rows * sizes.compressed :], False, wide,
    )  # fmt: skip
    if sizes.query_rank > 0:
        product(
            counters, query_phase, thread, num_threads, scratch.inner, num_rows, sizes.query_rank, weights.qkv,
            weights.qkv_scales, no_bias, layer, shape.qkv, scratch.qkv, False, wide,
        )  # fmt: skip
    return met


@kernel
def _norm_latents(counters, phase, layer, num_threads, num_rows, shape, norm, scratch):
    size, sizes, x = rows_at_once(num_rows, num_threads), shape.latent, scratch.latent
    query_rank, rank = sizes.query_rank, sizes.rank
    own = layer * (query_rank + rank)
    first = take(counters, phase, size, num_rows)
    while first >= 0:
        for row in range(first, min(first + size, num_rows)):
            start = row * sizes.compressed
            if query_rank > 0:
                norm_row(x, start, norm, own, query_rank, _EPS, x, start)
                put(scratch.inner, row, query_rank, 0, x, start, query_rank)
            at = start + query_rank + shape.rotary
            norm_row(x, at, norm, own + query_rank, rank, _EPS, x, at)
            put(scratch.mixed, row, rank, 0, x, at, rank)
        first = take(counters, phase, size, num_rows)


def place_latent(own, row, layer, before, thread, num_rows, angles, shape, weights, batch, scratch, keys, values):
    """See `_place`; nothing where the model has no such weights (`own` is None)."""
    raise NotImplementedError


@overload(place_latent, jit_options=OPTIONS)
def _place_where_needed(
    own, row, layer, before, thread, num_rows, angles, shape, weights, batch, scratch, keys, values
):  # fmt: skip
    def nothing(own, row, layer, before, thread, num_rows, angles, shape, weights, batch, scratch, keys, values):
        return None

    return nothing if isinstance(own, types.NoneType) else _place.py_func


@kernel
def _place(own, row, layer, before, thread, num_rows, angles, shape, weights, batch, scratch, keys, values):
    """Rotate a row's queries and what all heads' keys share; write the keys and values of all heads into the cache.

    `before` as in `first_element`.
    """
    dim, half, sizes, x, one = shape.head_dim, shape.rotary // 2, shape.latent, scratch.latent, scratch.row[thread]
    turns = weights.rope_numbers[layer] >= 0
    shared = row * sizes.compressed + sizes.query_rank
    expanded = num_rows * sizes.compressed + row * sizes.expanded
    if turns:
        rotate(x, shared, weights.rope_cos, weights.rope_sin, angles, half)
    copy_numbers(x, shared, one, 0, shape.rotary)
    for i in range(dim + sizes.value, 2 * dim, v.LANES):
        v.store(one, i, v.splat(np.float32(0)))
    page, place = divmod(batch.slots[row], PAGE_SIZE)
    for head in range(shape.heads):
        if turns:
            at = row * shape.qkv + head * dim
            rotate(scratch.qkv, at, weights.rope_cos, weights.rope_sin, angles, half)
        copy_numbers(x, expanded + head * sizes.still, one, shape.rotary, sizes.still)
        copy_numbers(x, expanded + shape.heads * sizes.still + head * sizes.value, one, dim, sizes.value)
        write_token(keys, values, first_element(keys, shape, page, before, head), place, dim, one, 0, dim)
