"""One pass of a draft network as one compiled function: `run(thread, ...)` interprets the operations of a program.

Every thread of a team runs it from start to end; operations end at a barrier, and threads take work inside an operation
in chunks. A row's results do not depend on which rows share the pass. The caller owns all arrays. Not for building
programs (`program.py`) or for operations on single rows (`each_row.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

from typing import NamedTuple

import numpy as np

from paceline.models.compiled.kernel import entry, kernel
from paceline.models.numba_executor.attend import AttentionScratch, attend_blocks, blocks_at_once, blocks_per_group
from paceline.models.numba_executor.heads.each_row import on_row
from paceline.models.numba_executor.heads.program import (
    ATTEND,
    BIAS,
    CODE,
    FLAG,
    GATED,
    NONE,
    PRODUCT,
    SOURCE,
    SPAN,
    TARGET,
    TARGET_COLUMN,
    WEIGHT,
)
from paceline.models.numba_executor.linear import SILU, inner_product, product, rows_at_once
from paceline.models.numba_executor.operand import Operand, operand_from
from paceline.models.numba_executor.reference import stored
from paceline.models.numba_executor.team import barrier, share, take


class Store(NamedTuple):
    """Weights of a network and what it shares with its target.

    Attributes:
        panels, scales: packed matrices one after the other, and a scale per output column.
        matrices: [matrices, 4] where a matrix begins in `panels` and in `scales`, its padded columns, its depth.
        vectors: norm weights and biases.
        tables, table_scales: rows to look up by token, and a scale per row.
        table_places: [tables, 3] where a table begins in `tables` and in `table_scales`, and its width.
        draft_ids: [draft vocabulary] int32 target ids.
        head, head_scales: the target's output head; empty where it is not shared.
        embedding, embedding_scales: the target's embedding, see `matrix.py`.
        rope_cos, rope_sin: flat [positions, head_dim / 2].
    """

    panels: np.ndarray
    scales: np.ndarray
    matrices: np.ndarray
    vectors: np.ndarray
    tables: np.ndarray
    table_scales: np.ndarray
    table_places: np.ndarray
    draft_ids: np.ndarray
    head: np.ndarray
    head_scales: np.ndarray
    embedding: np.ndarray
    embedding_scales: np.ndarray
    rope_cos: np.ndarray
    rope_sin: np.ndarray


class Batch(NamedTuple):
    """Rows of all spans one after the other.

    `picks` is the row that GATHER reads for each; ARGMAX writes `token_ids` and `top_probs`.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    picks: np.ndarray
    top_probs: np.ndarray
    segments: np.ndarray
    page_tables: np.ndarray
    natural_lengths: np.ndarray
    branch_slots: np.ndarray
    num_keys: np.ndarray
    spans: np.ndarray


class Work(NamedTuple):
    """Buffers of a pass.

    `places` and `code_places` [buffers, 2] say where a buffer begins in `floats` or `codes`, and its width; `row`,
    `gate_up` and `wide` are [threads, ...].
    """

    counters: np.ndarray
    floats: np.ndarray
    codes: Operand
    places: np.ndarray
    row: np.ndarray
    gate_up: np.ndarray
    wide: np.ndarray
    attention: AttentionScratch


class _Attending(NamedTuple):
    """What `attend_blocks` reads and writes, under its names."""

    qkv: np.ndarray
    mixed: Operand
    attention: AttentionScratch


class _Rows(NamedTuple):
    """A span's rows for `attend_blocks`."""

    segments: np.ndarray
    natural_lengths: np.ndarray
    num_keys: np.ndarray
    branch_slots: np.ndarray
    page_tables: np.ndarray
    page_mass: np.ndarray


class _Depth(NamedTuple):
    """What `inner_product` asks a shape for."""

    hidden: int
    activation: int
    gated: bool


@kernel(forceinline=True)
def _multiply(number, op, count, num_threads, store, work, thread):
    """target (+)= source W^T (+ bias); W is a matrix of the network's own, or the target's output head."""
    source, codes = work.places[op[SOURCE], 0], work.codes
    target = work.places[op[TARGET], 0] + op[TARGET_COLUMN]
    x = operand_from(codes, source)
    bias = store.vectors[:0] if op[BIAS] == NONE else store.vectors[op[BIAS] :]
    columns, depth = work.places[op[TARGET], 1], work.places[op[SOURCE], 1]
    w, scales = store.head, store.head_scales
    if op[WEIGHT] != NONE:
        w, scales = store.panels[store.matrices[op[WEIGHT], 0] :], store.scales[store.matrices[op[WEIGHT], 1] :]
    product(
        work.counters, number, thread, num_threads, x, count, depth, w, scales, bias, 0, columns, work.floats[target:],
        op[FLAG] != 0, work.wide[thread],
    )  # fmt: skip


@kernel(forceinline=True)
def _gate(number, op, count, num_threads, store, work, thread):
    """target = silu(gate) * up."""
    start, scale, columns, depth = store.matrices[op[WEIGHT]]
    source, target, codes = work.places[op[SOURCE], 0], work.places[op[TARGET], 0], work.codes
    x = operand_from(codes, source)
    out = operand_from(codes, target)
    inner_product(
        work.counters, number, thread, num_threads, count, _Depth(depth, SILU, True), x, store.panels[start:],
        store.scales[scale:], store.scales[:0], 0, columns // 2, work, out,
    )  # fmt: skip


@kernel(forceinline=True)
def _attend(number, op, first, count, num_threads, shape, batch, work, keys, values, thread):
    """Attention of layer `weight`, from the buffer of queries, keys and values."""
    end, target, codes = first + count, work.places[op[TARGET], 0], work.codes
    rows = _Rows(
        batch.segments[first:end], batch.natural_lengths[first:end], batch.num_keys[first:end],
        batch.branch_slots[first:end], batch.page_tables,
        work.floats[:0],
    )  # fmt: skip
    lent = _Attending(
        work.floats[work.places[op[SOURCE], 0] :],
        operand_from(codes, target),
        work.attention,
    )  # fmt: skip
    total = count * shape.kv_heads * blocks_per_group(shape)
    size = blocks_at_once(count, len(batch.page_tables), num_threads, shape)
    start = take(work.counters, number, size, total)
    while start >= 0:
        last = min(start + size, total)
        attend_blocks(
            start, last, op[WEIGHT] * shape.kv_heads * shape.head_dim, 0, work.floats[:0], -1, thread, shape, rows,
            lent, keys, values,
        )  # fmt: skip
        start = take(work.counters, number, size, total)


@kernel(forceinline=True)
def _each_row(number, op, first, count, num_threads, shape, eps, store, batch, work, keys, values, thread):
    """Operations that take row by row."""
    size = rows_at_once(count, num_threads)
    start = take(work.counters, number, size, count)
    while start >= 0:
        for row in range(start, min(start + size, count)):
            on_row(op, row, first, count, shape, eps, store, batch, work, keys, values, thread)
        start = take(work.counters, number, size, count)


@kernel
def _run(thread, num_threads, operations, shape, eps, store, batch, work, keys, values):
    """Walk through `operations`; see `program.py` for what they are.

    Args:
        thread, num_threads: this member of the team.
        operations: [n, NUM_COLUMNS] int64.
        shape, eps: attention's shape, and the norms' epsilon as float32.
        store, batch, work: see the named tuples; work.counters [n + 1] must be zero. All but `batch` are `Kept`.
        keys, values: flat caches [pages, layers, kv_heads, 16 * head_dim].
    """
    met = 0
    for number in range(len(operations)):
        op = operations[number]
        first, count = batch.spans[op[SPAN], 0], batch.spans[op[SPAN], 1]
        if op[CODE] == PRODUCT:
            _multiply(number, op, count, num_threads, store, work, thread)
        elif op[CODE] == GATED:
            _gate(number, op, count, num_threads, store, work, thread)
        elif op[CODE] == ATTEND:
            _attend(number, op, first, count, num_threads, shape, batch, work, keys, values, thread)
        else:
            _each_row(number, op, first, count, num_threads, shape, eps, store, batch, work, keys, values, thread)
        met = barrier(work.counters, met, num_threads)


@kernel
def _follow(thread, args):
    _run(thread, *stored(args))


@entry
def run(slot, args):
    """`_run(thread, *args)` on every member of the team that this job slot belongs to."""
    share(slot, _follow, args)
