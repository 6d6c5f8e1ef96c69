"""The noise of `sampling/randomness.py` in compiled code: splitmix64 numbered by token, started at a draw's key."""

import math

import numpy as np

from paceline.models.compiled.kernel import kernel
from paceline.sampling.randomness import INCREMENT, MULTIPLIERS

_INCREMENT, _FIRST, _SECOND = (np.uint64(word) for word in (INCREMENT, *MULTIPLIERS))
_1, _12, _27, _30, _31 = (np.uint64(n) for n in (1, 12, 27, 30, 31))
_UNIT = 2.0**-52


@kernel
def word(token, key):
    """The 64 bits of a token's noise under a key, both uint64: `randomness._stream`."""
    state = (token + _1) * _INCREMENT + key
    state = (state ^ (state >> _30)) * _FIRST
    state = (state ^ (state >> _27)) * _SECOND
    return state ^ (state >> _31)


@kernel
def exponential(token, key):
    """float64: `CounterRandomness.exponentials` of one token; the logarithm may differ in its last digit."""
    return -math.log((np.float64(word(np.uint64(token), key) >> _12) + 0.5) * _UNIT)
