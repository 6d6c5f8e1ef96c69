"""Linear layers for a team of threads: products, and the gated half of a feed-forward, in chunks of panels.

Shared by the dense layer (`forward.py`) and the mixture of experts (`experts.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

import numpy as np

from paceline.models.architecture.family import SWIGLU_ALPHA, SWIGLU_LIMIT
from paceline.models.base import PAGE_SIZE
from paceline.models.compiled.kernel import kernel
from paceline.models.numba_executor import vector as v
from paceline.models.numba_executor.gemm import PANEL
from paceline.models.numba_executor.matrix import multiply
from paceline.models.numba_executor.operand import put
from paceline.models.numba_executor.team import take_after

CHUNKS_PER_THREAD = 4
SILU, GELU, CLAMPED, GELU_ERF, RELU2 = range(5)
"""Activations of a feed-forward, as `ModelConfig.mlp` names them."""


@kernel
def chunk(total, num_threads):
    """Elements per chunk so that every thread gets a few."""
    return max(1, total // (CHUNKS_PER_THREAD * num_threads))


@kernel
def rows_at_once(num_rows, num_threads):
    """Rows that a thread takes at a time: as many neighbours as go to every thread, up to a page.

    Neighbours share cache lines, in keys and in the scales of activations. Two threads that write to the same lines
    wait for each other: that took longer than the work itself.
    """
    return max(chunk(num_rows, num_threads), min(-(-num_rows // num_threads), PAGE_SIZE))


@kernel
def product(
    counters, phase, thread, num_threads, x, num_rows, depth, w, scales, bias, layer, columns, out, add, wide
):  # fmt: skip
    """out (+)= x W^T of matrix number `layer` of equal ones [columns, depth], panels taken in chunks."""
    product_at(
        counters, phase, thread, num_threads, x, num_rows, depth, w, layer * columns * depth, scales, bias,
        layer * columns, columns, out, columns, add, wide,
    )  # fmt: skip


@kernel
def product_at(
    counters, phase, thread, num_threads, x, num_rows, depth, w, w_first, scales, bias, first_column, columns, out,
    stride, add, wide,
):  # fmt: skip
    """As `product`, of the matrix that begins at element `w_first` and column `first_column`.

    Rows of `out` are `stride` apart.
    """
    panels = columns // PANEL
    size = chunk(panels, num_threads)
    first = thread * size
    while 0 <= first < panels:
        multiply(
            x, 0, num_rows, depth, w, w_first, scales, bias, first_column, out, 0, stride, first,
            min(first + size, panels), add, wide,
        )  # fmt: skip
        first = take_after(counters, phase, size, panels, num_threads)


@kernel
def _gelu_erf(x):
    """x (1 + erf(x / sqrt 2)) / 2; the error function to 1.5e-7 by Abramowitz and Stegun, 7.1.26."""
    one, zero = v.splat(np.float32(1)), v.splat(np.float32(0))
    z = v.mul(v.maximum(x, v.sub(zero, x)), v.splat(np.float32(0.7071067811865476)))
    t = v.div(one, v.fma(z, v.splat(np.float32(0.3275911)), one))
    rest = v.fma(t, v.splat(np.float32(1.061405429)), v.splat(np.float32(-1.453152027)))
    rest = v.fma(rest, t, v.splat(np.float32(1.421413741)))
    rest = v.fma(rest, t, v.splat(np.float32(-0.284496736)))
    rest = v.mul(v.fma(rest, t, v.splat(np.float32(0.254829592))), t)
    rest = v.mul(rest, v.exp(v.sub(zero, v.mul(z, z))))  # 1 - erf(z)
    half = v.mul(v.splat(np.float32(0.5)), rest)
    return v.sub(v.maximum(x, zero), v.mul(v.maximum(x, v.sub(zero, x)), half))


@kernel
def activate(buffer, start, shape):
    """Apply the activation to a panel in place; with a gate, multiply by the panel after it.

    All are x / (1 + e^-y), with y = x (silu), twice the argument of the tanh (gelu) or y = alpha x (gpt-oss, which
    clamps both panels and adds 1 to the one after the gate), but for gelu by the error function and squared ReLUs.
    """
    one, zero, limit = v.splat(np.float32(1)), v.splat(np.float32(0)), v.splat(np.float32(SWIGLU_LIMIT))
    for at in range(start, start + PANEL, v.LANES):
        x = v.load(buffer, at)
        if shape.activation == GELU_ERF:
            v.store(buffer, at, _gelu_erf(x))
            continue
        if shape.activation == RELU2:
            raised = v.maximum(x, zero)
            v.store(buffer, at, v.mul(raised, raised))
            continue
        y = x
        if shape.activation == GELU:
            cubic = v.fma(v.mul(v.mul(x, x), x), v.splat(np.float32(0.044715)), x)
            y = v.mul(cubic, v.splat(np.float32(2 * 0.7978845608028654)))
        up = one
        if shape.gated:
            up = v.load(buffer, at + PANEL)
        if shape.activation == CLAMPED:
            x = v.minimum(x, limit)
            y = v.mul(x, v.splat(np.float32(SWIGLU_ALPHA)))
            up = v.add(v.maximum(v.minimum(up, limit), v.sub(zero, limit)), one)
        if shape.gated:
            x = v.mul(x, up)
        v.store(buffer, at, v.div(x, v.add(one, v.exp(v.sub(zero, y)))))


@kernel
def _finish(buffer, num_rows, shape, out, first_row, depth, column):
    """Write act(gate) * up of rows [gate panel | up panel], or act(up) of rows [up panel], to `out`."""
    width = 2 * PANEL if shape.gated else PANEL
    for row in range(num_rows):
        activate(buffer, row * width, shape)
        put(out, first_row + row, depth, column, buffer, row * width, PANEL)


@kernel
def inner_panel(
    panel, thread, first_row, num_rows, x, shape, w, scales, bias, first_column, inner, scratch, out
):  # fmt: skip
    """32 columns of act(gate) * up, or of act(up) without a gate.

    The matrix of interleaved gate and up panels begins at `first_column`.
    """
    each, hidden, buffer = 2 if shape.gated else 1, shape.hidden, scratch.gate_up[thread]
    multiply(
        x, first_row, num_rows, hidden, w, first_column * hidden, scales, bias, first_column, buffer,
        -each * PANEL * panel, each * PANEL, each * panel, each * (panel + 1), False, scratch.wide[thread],
    )  # fmt: skip
    _finish(buffer, num_rows, shape, out, first_row, inner, panel * PANEL)


@kernel
def inner_product(
    counters, phase, thread, num_threads, num_rows, shape, x, w, scales, bias, layer, inner, scratch, out
):  # fmt: skip
    """out [rows, inner] of feed-forward number `layer` of equal ones."""
    first_column = layer * inner * (2 if shape.gated else 1)
    inner_product_at(
        counters, phase, thread, num_threads, num_rows, shape, x, w, scales, bias, first_column, inner, scratch, out
    )  # fmt: skip


@kernel
def inner_product_at(
    counters, phase, thread, num_threads, num_rows, shape, x, w, scales, bias, first_column, inner, scratch, out
):  # fmt: skip
    """As `inner_product`, of the matrix that begins at `first_column`.

    A thread applies the gate to panels while they are in its cache.
    """
    panels = inner // PANEL
    size = chunk(panels, num_threads)
    first = thread * size
    while 0 <= first < panels:
        for panel in range(first, min(first + size, panels)):
            inner_panel(panel, thread, 0, num_rows, x, shape, w, scales, bias, first_column, inner, scratch, out)
        first = take_after(counters, phase, size, panels, num_threads)
