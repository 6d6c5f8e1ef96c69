"""Losses of a head's law against the target's, row by row in one compiled loop; `losses.py` uses it on a CPU.

torch makes ten passes over the logits of a few hundred rows for the same values, each from and to memory; here a row
stays in the cache. Numba compiles it, so no C compiler is needed. Not for the matrix products or for other losses.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from paceline.models.compiled.disk import keep_on_disk

_LEAST = np.float32(-87.0)
"""The exponential of a smaller number is no normal float32."""
_LOG2E, _LN2_HIGH, _LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
_C2, _C3, _C4, _C5, _C6, _C7 = (
    np.float32(c) for c in (0.5, 1.6666665459e-1, 4.1665795894e-2, 8.3334519073e-3, 1.3981999507e-3, 1.9875691500e-4)
)
_HALF, _ONE, _ZERO, _BIAS, _PLACE = np.float32(0.5), np.float32(1.0), np.float32(0.0), np.int32(127), np.int32(23)


@njit(inline="always", fastmath=True, error_model="numpy")
def _exp(x: Any) -> Any:
    """exp of a float32 that is not above 0, to two units in the last place (Cephes' polynomial); vectorises."""
    x = max(x, _LEAST)
    whole = np.int32(x * _LOG2E - _HALF)  # rounds to the nearest: towards zero, and x is not above it
    part = np.float32(whole)
    rest = x - part * _LN2_HIGH - part * _LN2_LOW
    series = ((((_C7 * rest + _C6) * rest + _C5) * rest + _C4) * rest + _C3) * rest + _C2
    return (series * rest * rest + rest + _ONE) * np.int32((whole + _BIAS) << _PLACE).view(np.float32)


@njit(nogil=True, fastmath=True, error_model="numpy")
def grade(
    logits: Any, target: Any, weights: Any, eta: Any, losses: Any, entropies: Any, acceptance: Any, hits: Any
) -> None:
    """Loss, acceptance probability and gradient of n positions over m tokens.

    Args:
        logits: [n, m] float32 of the head; overwritten by the gradient of the weighted loss by the logits.
        target: [n, m] float32 logits of the target; overwritten.
        weights: [n] float32 weight of each position in the gradient.
        eta: float32 of the LK hybrid; below 0 for soft cross entropy (`losses.py`).
        losses: [n] float32 out, unweighted.
        entropies: [n] float32 out, of the target's laws.
        acceptance: [n] float32 out, sum min(p, q).
        hits: [n] bool out, whether both laws have the same most probable token.
    """
    for i in range(len(logits)):
        q, p = logits[i], target[i]
        top, highest = q[0], p[0]
        for k in range(len(q)):
            top, highest = max(top, q[k]), max(highest, p[k])
        hits[i] = _place(q, top) == _place(p, highest)
        total, mass, cross, itself = _ZERO, _ZERO, _ZERO, _ZERO
        for k in range(len(q)):
            e = _exp(p[k] - highest)
            cross += e * (q[k] - top)
            itself += e * (p[k] - highest)
            mass += e
            p[k] = e
        for k in range(len(q)):
            e = _exp(q[k] - top)
            total += e
            q[k] = e
        of_p, of_q = _ONE / mass, _ONE / total
        accepted, below = _ZERO, _ZERO
        for k in range(len(q)):
            drafted, wanted = q[k] * of_q, p[k] * of_p
            accepted += min(drafted, wanted)
            below += drafted if drafted < wanted else _ZERO
        soft_loss = np.log(total) - cross * of_p
        entropies[i] = np.log(mass) - itself * of_p
        share = np.exp(-eta * accepted) if eta >= _ZERO else _ONE
        rest = _ONE - share
        soft, hard = weights[i] * share, weights[i] * rest
        for k in range(len(q)):
            drafted, wanted = q[k] * of_q, p[k] * of_p
            rise = (_ONE if drafted < wanted else _ZERO) - below
            q[k] = soft * (drafted - wanted) - hard * drafted * rise
        losses[i] = share * soft_loss + rest * (_ONE - accepted)
        acceptance[i] = accepted


@njit(inline="always")
def _place(values: Any, top: Any) -> Any:
    """The first index of `top`; the number of values where it does not occur, as with NaN."""
    for place in range(len(values)):
        if values[place] == top:
            return place
    return len(values)


@cache
def compiled_grade() -> Callable[..., None]:
    """`grade`, compiled and cached on disk until this file changes."""
    return keep_on_disk(grade, [Path(__file__)])
