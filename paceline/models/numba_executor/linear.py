"""The linear parts of a layer: products with panels taken in chunks, and the gated feed-forward.

Shared by the dense layer (`forward.py`) and the mixture of experts (`experts.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

import numpy as np

from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.gemm import PANEL
from paceline.models.numba_executor.kernel import kernel
from paceline.models.numba_executor.matrix import multiply
from paceline.models.numba_executor.operand import put
from paceline.models.numba_executor.team import take

CHUNKS_PER_THREAD = 4


@kernel
def chunk(total, num_threads):
    """Elements per chunk so that every thread gets a few."""
    return max(1, total // (CHUNKS_PER_THREAD * num_threads))


@kernel
def product(
    counters, phase, num_threads, x, num_rows, depth, w, scales, bias, layer, columns, out, add, wide
):  # fmt: skip
    """out (+)= x W^T of one layer's matrix [columns, depth], panels taken in chunks."""
    panels = columns // PANEL
    size = chunk(panels, num_threads)
    first = take(counters, phase, size, panels)
    while first >= 0:
        multiply(
            x, 0, num_rows, depth, w, layer * columns * depth, scales, bias, layer * columns, out, 0, columns,
            first, min(first + size, panels), add, wide,
        )  # fmt: skip
        first = take(counters, phase, size, panels)


@kernel
def _gate(gate_up, num_rows, out, first_row, depth, column):
    """out = silu(gate) * up for one pair of panels, [num_rows, gate panel | up panel]; overwrites the gate panel."""
    one = v.splat(np.float32(1))
    for row in range(num_rows):
        start = row * 2 * PANEL
        for at in range(start, start + PANEL, v.LANES):
            gate, up = v.load(gate_up, at), v.load(gate_up, at + PANEL)
            decay = v.exp(v.sub(v.splat(np.float32(0)), gate))
            v.store(gate_up, at, v.div(v.mul(gate, up), v.add(one, decay)))
        put(out, first_row + row, depth, column, gate_up, start, PANEL)


@kernel
def gated_pair(pair, thread, first_row, num_rows, x, hidden, w, scales, layer, inner, scratch, out):
    """One panel's 32 columns of silu(gate) * up, for a matrix of interleaved gate and up panels."""
    columns, buffer = 2 * inner, scratch.gate_up[thread]
    multiply(
        x, first_row, num_rows, hidden, w, layer * columns * hidden, scales, scales[:0], layer * columns, buffer,
        -2 * PANEL * pair, 2 * PANEL, 2 * pair, 2 * pair + 2, False, scratch.wide[thread],
    )  # fmt: skip
    _gate(buffer, num_rows, out, first_row, inner, pair * PANEL)


@kernel
def gated_product(counters, phase, thread, num_threads, num_rows, shape, x, w, scales, layer, inner, scratch, out):
    """out [rows, inner] = silu(gate) * up: a thread gates each pair of panels while it is still in its cache."""
    pairs = inner // PANEL
    size = chunk(pairs, num_threads)
    first = take(counters, phase, size, pairs)
    while first >= 0:
        for pair in range(first, min(first + size, pairs)):
            gated_pair(pair, thread, 0, num_rows, x, shape.hidden, w, scales, layer, inner, scratch, out)
        first = take(counters, phase, size, pairs)
