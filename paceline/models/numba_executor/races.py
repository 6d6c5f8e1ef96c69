"""Draws a token from a row of logits without computing its law: the race of `CounterRandomness.draw`.

The token is argmin of noise / weight, weight = exp((logit - largest) / temperature). Few tokens can win: a block of
logits is passed over if a lower bound of each token's noise over an upper bound of its weight exceeds the best time so
far. Both bounds are a few integer and single-precision operations, and only what passes them is computed in double
precision, as on the host. So most of the logarithms and exponentials of `Law` are saved.

The winner of the race over all tokens also wins it among those left by top-k or top-p, if it is one of them. Whether it
is follows from the number of larger logits, or from their share of the mass. Where it is not, or where that share is
too close to top-p, the caller computes the law. Not for laws that are cheap (min-p) or depend on two limits.
"""

# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportReturnType=false
# (llvmlite is untyped, and an intrinsic has another signature in compiled code than in Python)

import math

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

from paceline.models.compiled.kernel import OPTIONS, entry, kernel
from paceline.models.numba_executor.noise import exponential, word

UNDECIDED = -1
_BLOCK = 256
_LOW = np.uint64(40)
_HIGH = np.int32(0xFFFFFF)
"""The largest of the 24 high bits of a noise word."""
_SLACK = 1.001
"""More than single precision can be wrong by in the bounds."""
_MARGIN = 1e-3
"""Relative difference from top-p that decides whether a token is in the nucleus; the sums are right to about 1e-5."""
_TIE = 1e-14
"""Difference of logits, over their distance to the largest plus the temperature, below which double precision may give
them the same weight."""
_LOWEST, _BIAS, _ONE = np.float32(-120), np.float32(127), np.float32(1 << 23)
_HALF, _EXPONENT, _SHIFT = np.float32(0.5), np.int32(127), np.int32(23)
_C1, _C2, _C3, _C4, _C5 = (np.float32(math.log(2) ** n / math.factorial(n)) for n in range(1, 6))
_LOG2_E = 1 / math.log(2)


@intrinsic
def _as_float(typingctx, bits):
    """The float32 with the bits of an int32."""

    def emit(context, builder, sig, args):
        return builder.bitcast(args[0], context.get_value_type(types.float32))

    return types.float32(types.int32), emit


@kernel
def _time(token, key, logit, peak, temperature):
    """When a token comes: its noise over its weight."""
    return exponential(token, key) / math.exp((np.float64(logit) - np.float64(peak)) / temperature)


@kernel
def _may_come(logits, first, end, peak, scale, time, key):
    """Whether a token of a block may come before `time`, given in units of 2^-24.

    A noise -log(u) is at least 1 - u, of which 24 bits are read. A power of two 2^(n + f) is at most (1 + f) 2^n, the
    number whose bits are those of n + f + 127 in fixed point.
    """
    count = np.int32(0)
    for i in range(first, end):
        left = np.float32(_HIGH - np.int32(word(np.uint64(i), key) >> _LOW))
        exponent = max(np.float32(logits[i] - peak) * scale, _LOWEST)
        count += np.int32(left < time * _as_float(np.int32((exponent + _BIAS) * _ONE)))
    return count > 0


@njit(**OPTIONS, fastmath={"reassoc", "contract"})
def _masses(logits, first, end, peak, scale, level, low, high):
    """(sum of the weights of a block, sum of those whose logit exceeds `level`, number of logits from low to high)."""
    whole, above, equal = np.float32(0), np.float32(0), np.int32(0)
    for i in range(first, end):
        exponent = max(np.float32(logits[i] - peak) * scale, _LOWEST)
        n = np.int32(exponent - _HALF)
        f = exponent - np.float32(n)
        power = np.float32(1) + f * (_C1 + f * (_C2 + f * (_C3 + f * (_C4 + f * _C5))))
        weight = power * _as_float((n + _EXPONENT) << _SHIFT)
        whole += weight
        above += weight if logits[i] > level else np.float32(0)
        equal += np.int32(low <= logits[i] <= high)
    return whole, above, equal


@kernel
def _share_above(logits, peak, temperature, scale, level):
    """The share of the mass of the tokens whose logit exceeds that of one; 1 where others may have its weight, of which
    a nucleus takes those with lower ids first."""
    near = _TIE * (temperature + np.float64(peak) - np.float64(level))
    low, high = logits.dtype.type(level - near), logits.dtype.type(level + near)
    whole, above, equal = 0.0, 0.0, 0
    for first in range(0, len(logits), _BLOCK):
        sums = _masses(logits, first, min(first + _BLOCK, len(logits)), peak, scale, level, low, high)
        whole += sums[0]
        above += sums[1]
        equal += sums[2]
    return above / whole if equal == 1 else 1.0


@kernel
def _num_above(logits, level):
    count = np.int32(0)
    for i in range(len(logits)):
        count += np.int32(logits[i] > level)
    return count


@entry
def race(logits, best, temperature, top_k, top_p, key):
    """The token that the request draws from a row, or `UNDECIDED`.

    Args:
        logits: [vocab] float32 or float64, finite or -inf.
        best: index of the largest.
        temperature: above 0.
        top_k, top_p: as in `SamplingParams`; at most one of them limits the law.
        key: uint64, of the noise.
    """
    peak, scale = logits[best], np.float32(_LOG2_E / temperature)
    if not math.isfinite(scale):
        return UNDECIDED
    token, earliest = best, _time(best, key, peak, peak, temperature)
    for first in range(0, len(logits), _BLOCK):
        end = min(first + _BLOCK, len(logits))
        if not _may_come(logits, first, end, peak, scale, np.float32(earliest * _SLACK * (1 << 24)), key):
            continue
        for i in range(first, end):
            time = _time(i, key, logits[i], peak, temperature)
            if time < earliest or (time == earliest and i < token):
                token, earliest = i, time
    level = logits[token]
    if top_k > 0 and _num_above(logits, level) >= top_k:
        return UNDECIDED
    if top_p < 1 and _share_above(logits, peak, temperature, scale, level) >= top_p * (1 - _MARGIN):
        return UNDECIDED
    return token
