"""The noise of `laws/noise.py` in kernels, bit for bit but for the logarithm's last digit."""

# pyright: reportArgumentType=false
# Triton's types do not know numbers for `tl.constexpr`.

import triton
import triton.language as tl

from paceline.models.cuda_executor.laws.noise import signed
from paceline.sampling.randomness import INCREMENT, MULTIPLIERS

_STEP, _FIRST, _SECOND = (tl.constexpr(signed(word)) for word in (INCREMENT, *MULTIPLIERS))


@triton.jit
def _shifted(words, PLACES: tl.constexpr):
    """int64 words after a logical right shift."""
    return (words.to(tl.uint64, bitcast=True) >> PLACES).to(tl.int64, bitcast=True)


@triton.jit
def noise(key: tl.tensor, token: tl.tensor) -> tl.tensor:
    """float64: the exponential noise of tokens under a key."""
    state = (token.to(tl.int64) + 1) * _STEP + key
    state = (state ^ _shifted(state, 30)) * _FIRST
    state = (state ^ _shifted(state, 27)) * _SECOND
    bits = _shifted(state ^ _shifted(state, 31), 12)
    return -tl.log((bits.to(tl.float64) + 0.5) * 2.220446049250313e-16)  # 2^-52
