"""The counter-based noise of `sampling/randomness.py` for many keys at once, bit for bit the same.

splitmix64 (Steele, Lea and Flood 2014) on signed 64-bit integers: sums and products wrap as unsigned ones do, and right
shifts are masked to be logical.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from paceline.sampling.randomness import INCREMENT, MULTIPLIERS


def signed(word: int) -> int:
    """The signed number with the 64 bits of `word`."""
    return word - (1 << 64) if word >> 63 else word


def words(keys: Sequence[int] | np.ndarray) -> np.ndarray:
    """int64 with the bits of unsigned 64-bit keys, in their shape."""
    return np.array(keys, np.uint64).view(np.int64)


def exponentials(keys: Tensor, tokens: Tensor) -> Tensor:
    """[n, k] float64: what `CounterRandomness.exponentials` gives `tokens` ([k], or [n, k]) under `keys` [n] int64.

    The bits are numpy's; the logarithm may differ in its last digit.
    """
    state = (tokens + 1) * signed(INCREMENT) + keys[:, None]
    state = (state ^ _shifted(state, 30)) * signed(MULTIPLIERS[0])
    state = (state ^ _shifted(state, 27)) * signed(MULTIPLIERS[1])
    bits = _shifted(state ^ _shifted(state, 31), 12)
    return -((bits.double() + 0.5) * 2.0**-52).log()


def _shifted(words: Tensor, places: int) -> Tensor:
    """`words` after a logical right shift."""
    return (words >> places) & ((1 << (64 - places)) - 1)
