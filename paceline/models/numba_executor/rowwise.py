"""Operations on one row: RMS norm, layer norm, and rotary embedding of a head.

Shared by the target's pass (`forward.py`) and the passes of draft heads (`heads/`). Not for products (`gemm.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

import numpy as np

from paceline.models.compiled.kernel import kernel
from paceline.models.numba_executor import vector as v


@kernel
def copy_numbers(source, start, out, out_start, size):
    """out[out_start : out_start + size] = source[start : start + size], in ascending order; `size` in whole vectors."""
    for i in range(0, size, v.LANES):
        v.store(out, out_start + i, v.load(source, start + i))


@kernel
def norm_row(source, source_start, weight, weight_start, size, eps, out, out_start):
    """RMS norm of one row (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps) * weight."""
    squares = v.splat(np.float32(0))
    for i in range(0, size, v.LANES):
        x = v.load(source, source_start + i)
        squares = v.fma(x, x, squares)
    scale = np.float32(1) / np.sqrt(v.sum_lanes(squares) / np.float32(size) + eps)
    factor = v.splat(scale)
    for i in range(0, size, v.LANES):
        x = v.mul(v.load(source, source_start + i), factor)
        v.store(out, out_start + i, v.mul(x, v.load(weight, weight_start + i)))


@kernel
def layer_norm_row(source, source_start, weight, bias, vector_start, size, eps, out, out_start):
    """Layer norm of one row (Ba et al. 2016): (x - mean) / sqrt(variance + eps) * weight + bias."""
    total, squares = v.splat(np.float32(0)), v.splat(np.float32(0))
    for i in range(0, size, v.LANES):
        total = v.add(total, v.load(source, source_start + i))
    mean = v.splat(v.sum_lanes(total) / np.float32(size))
    for i in range(0, size, v.LANES):
        x = v.sub(v.load(source, source_start + i), mean)
        squares = v.fma(x, x, squares)
    factor = v.splat(np.float32(1) / np.sqrt(v.sum_lanes(squares) / np.float32(size) + eps))
    for i in range(0, size, v.LANES):
        x = v.mul(v.sub(v.load(source, source_start + i), mean), factor)
        v.store(out, out_start + i, v.fma(x, v.load(weight, vector_start + i), v.load(bias, vector_start + i)))


@kernel
def rotate(x, start, cos, sin, angle_start, half):
    """Rotary embedding of one head in place, halves paired as in transformers."""
    whole = half // v.LANES * v.LANES
    for i in range(0, whole, v.LANES):
        a, b = v.load(x, start + i), v.load(x, start + half + i)
        c, s = v.load(cos, angle_start + i), v.load(sin, angle_start + i)
        v.store(x, start + i, v.sub(v.mul(a, c), v.mul(b, s)))
        v.store(x, start + half + i, v.add(v.mul(b, c), v.mul(a, s)))
    for i in range(whole, half):
        a, b = x[start + i], x[start + half + i]
        c, s = cos[angle_start + i], sin[angle_start + i]
        x[start + i] = a * c - b * s
        x[start + half + i] = b * c + a * s
