"""Operations of a draft network on one row: look-ups, norms, activations, writing of keys and values, argmax.

Not for dividing rows among threads (`interpret.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

import math

import numpy as np

from paceline.models.base import PAGE_SIZE
from paceline.models.compiled.kernel import kernel
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.heads.program import (
    ARGMAX,
    BIAS,
    CODE,
    COPY,
    EMBED,
    FLAG,
    GATHER,
    HEAD_NORM,
    LOOKUP,
    LSTM,
    MIX_NORM_GELU,
    NORM,
    NORM_PUT,
    PLACE,
    PUT,
    RELU,
    RESIDUAL_SILU,
    SCALE,
    SOURCE,
    SOURCE_COLUMN,
    TARGET,
    TARGET_COLUMN,
    TIMES,
    WEIGHT,
    WIDTH,
)
from paceline.models.numba_executor.kv_cache import first_element, write_token
from paceline.models.numba_executor.matrix import read_weights
from paceline.models.numba_executor.operand import operand_from, put
from paceline.models.numba_executor.rowwise import norm_row, rotate

_SQRT_HALF = np.float32(math.sqrt(0.5))
_NOTHING = np.float32(-np.inf)


@kernel
def on_row(op, row, first, count, shape, eps, store, batch, work, keys, values, thread):
    """Run operation `op` on row `row` of its span."""
    code, width, token = op[CODE], op[WIDTH], batch.token_ids[first + row]
    source = work.places[op[SOURCE], 0] + row * work.places[op[SOURCE], 1] + op[SOURCE_COLUMN]
    target = work.places[op[TARGET], 0] + row * work.places[op[TARGET], 1] + op[TARGET_COLUMN]
    floats = work.floats
    if code == EMBED:
        read_weights(store.embedding, store.embedding_scales, token, width, floats, target)
    elif code == LOOKUP:
        _look_up(token, op[WEIGHT], store, floats, target)
    elif code == NORM:
        norm_row(floats, source, store.vectors, op[WEIGHT], width, eps, floats, target)
    elif code == NORM_PUT:
        norm_row(floats, source, store.vectors, op[WEIGHT], width, eps, work.row[thread], 0)
        _put_row(op, row, work, work.row[thread], 0)
    elif code == PUT:
        _put_row(op, row, work, floats, source)
    elif code == GATHER:
        picked = work.places[op[SOURCE], 0] + batch.picks[first + row] * work.places[op[SOURCE], 1]
        _copy(floats, picked + op[SOURCE_COLUMN], target, width)
    elif code == COPY:
        _copy(floats, source, target, width)
    elif code == HEAD_NORM:
        for head in range(op[FLAG]):
            at = source + head * shape.head_dim
            norm_row(floats, at, store.vectors, op[WEIGHT], shape.head_dim, eps, floats, at)
    elif code == PLACE:
        _place(source, first + row, op[WEIGHT], op[FLAG], shape, store, batch, floats, keys, values)
    elif code == RESIDUAL_SILU:
        _add_silu(floats, source, target, width)
    elif code == MIX_NORM_GELU:
        _mix(floats, source, target, width, store.vectors, op[SCALE])
        norm_row(floats, target, store.vectors, op[WEIGHT], width, eps, floats, target)
        _shift_gelu(floats, target, width, store.vectors, op[BIAS])
    elif code == RELU:
        zero = v.splat(np.float32(0))
        for i in range(target, target + width, v.LANES):
            v.store(floats, i, v.maximum(v.load(floats, i), zero))
    elif code == TIMES:
        factor = v.splat(store.vectors[op[SCALE]])
        for i in range(target, target + width, v.LANES):
            v.store(floats, i, v.mul(v.load(floats, i), factor))
    elif code == LSTM:
        _lstm(floats, source, work.places[op[TARGET], 0], first + row, batch.picks[first + row], width)
    elif code == ARGMAX:
        _best(source, width, first + row, store, batch, floats)


@kernel
def _put_row(op, row, work, source, start):
    at, codes = work.places[op[TARGET], 0], work.codes
    target = operand_from(codes, at)
    put(target, row, work.places[op[TARGET], 1], op[TARGET_COLUMN], source, start, op[WIDTH])


@kernel
def _copy(floats, source, target, size):
    for i in range(0, size, v.LANES):
        v.store(floats, target + i, v.load(floats, source + i))


@kernel
def _add_silu(floats, source, target, size):
    """target = source + silu(target): a residual block (Cai et al. 2024, section 2.1.1)."""
    one, zero = v.splat(np.float32(1)), v.splat(np.float32(0))
    for i in range(0, size, v.LANES):
        x = v.load(floats, target + i)
        silu = v.div(x, v.add(one, v.exp(v.sub(zero, x))))
        v.store(floats, target + i, v.add(v.load(floats, source + i), silu))


@kernel
def _mix(floats, source, target, size, vectors, factors):
    """target = target * vectors[factors] + source * vectors[factors + 1]."""
    keep, take = v.splat(vectors[factors]), v.splat(vectors[factors + 1])
    for i in range(0, size, v.LANES):
        kept = v.mul(v.load(floats, target + i), keep)
        v.store(floats, target + i, v.fma(v.load(floats, source + i), take, kept))


@kernel
def _shift_gelu(floats, start, size, vectors, shift):
    """gelu(x + shift) in place, by the error function."""
    for i in range(size):
        x = floats[start + i] + vectors[shift + i]
        floats[start + i] = np.float32(0.5) * x * (np.float32(1) + np.float32(math.erf(x * _SQRT_HALF)))


@kernel
def _sigmoid(x):
    one, zero = v.splat(np.float32(1)), v.splat(np.float32(0))
    return v.div(one, v.add(one, v.exp(v.sub(zero, x))))


@kernel
def _tanh(x):
    return v.soft_cap(x, np.float32(1))


@kernel
def _lstm(floats, gates, states, row, above, size):
    """Row `row` of [output | cell] at `states`, from gates [input | forget | candidate | output] and row `above`.

    cell = sigmoid(forget) * cell of above + sigmoid(input) * tanh(candidate); output = sigmoid(output) * tanh(cell).
    """
    output, kept = states + 2 * size * row, states + 2 * size * above + size
    for i in range(gates, gates + size, v.LANES):
        added = v.mul(_sigmoid(v.load(floats, i)), _tanh(v.load(floats, i + 2 * size)))
        cell = v.fma(_sigmoid(v.load(floats, i + size)), v.load(floats, kept + i - gates), added)
        v.store(floats, output + size + i - gates, cell)
        v.store(floats, output + i - gates, v.mul(_sigmoid(v.load(floats, i + 3 * size)), _tanh(cell)))


@kernel
def _look_up(token, table, store, out, start):
    """Row `token` of one of the network's tables."""
    first, scales, width = store.table_places[table, 0], store.table_places[table, 1], store.table_places[table, 2]
    factor = v.splat(store.table_scales[scales + token])
    for i in range(0, width, v.LANES):
        v.store(out, start + i, v.mul(v.load(store.tables, first + token * width + i), factor))


@kernel
def _place(start, row, layer, query_heads, shape, store, batch, floats, keys, values):
    """Rotate queries and keys of a row of [query_heads | kv_heads | kv_heads] and write its key and value."""
    dim, half = shape.head_dim, shape.head_dim // 2
    for head in range(query_heads + shape.kv_heads):
        rotate(floats, start + head * dim, store.rope_cos, store.rope_sin, batch.positions[row] * half, half)
    page, place = divmod(batch.slots[row], PAGE_SIZE)
    for head in range(shape.kv_heads):
        at = first_element(keys, shape, page, layer * shape.kv_heads * dim, head)
        key = start + (query_heads + head) * dim
        value = key + shape.kv_heads * dim
        write_token(keys, values, at, place, dim, floats, key, value)


@kernel
def _best(start, size, row, store, batch, floats):
    """Set the token of row `row` to the argmax of `size` logits, and store its probability."""
    for i in range(start + size, start + (size + v.LANES - 1) // v.LANES * v.LANES):
        floats[i] = _NOTHING
    highest = v.splat(_NOTHING)
    for i in range(start, start + size, v.LANES):
        highest = v.maximum(highest, v.load(floats, i))
    top = v.max_lanes(highest)
    best = 0
    while floats[start + best] != top and best < size - 1:
        best += 1
    total, tops = v.splat(np.float32(0)), v.splat(top)
    for i in range(start, start + size, v.LANES):
        total = v.add(total, v.exp(v.sub(v.load(floats, i), tops)))
    batch.token_ids[row] = store.draft_ids[best] if len(store.draft_ids) > 0 else best
    batch.top_probs[row] = np.float32(1) / v.sum_lanes(total)
