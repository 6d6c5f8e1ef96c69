"""Drawing tokens of tempered laws on the device: the exponential race of `CounterRandomness.draw`, in two kernels.

Noise, weights and ties are those of `laws/answers.py`, which is the reference: splitmix64 numbered by token, laws in
float64 relative to the largest logit. Not for laws that are edited or cut by top_k or top_p.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Triton's types know neither numbers for `tl.constexpr` nor that an argmin is one number.

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.models.cuda_executor.laws.asked import Wide
from paceline.models.cuda_executor.laws.noise import signed
from paceline.sampling.randomness import INCREMENT, MULTIPLIERS

_CHUNK = 2048
_STEP, _FIRST, _SECOND = (tl.constexpr(signed(word)) for word in (INCREMENT, *MULTIPLIERS))


@triton.jit
def _shifted(words, PLACES: tl.constexpr):
    """int64 words after a logical right shift."""
    return (words.to(tl.uint64, bitcast=True) >> PLACES).to(tl.int64, bitcast=True)


@triton.jit
def _noise(key, token):
    """float64: the exponential noise of tokens under a key."""
    state = (token.to(tl.int64) + 1) * _STEP + key
    state = (state ^ _shifted(state, 30)) * _FIRST
    state = (state ^ _shifted(state, 27)) * _SECOND
    bits = _shifted(state ^ _shifted(state, 31), 12)
    return -tl.log((bits.to(tl.float64) + 0.5) * 2.220446049250313e-16)  # 2^-52


@triton.jit
def _race_of_chunks(
    logits, peaks, rows, temperatures, min_p, keys, times, places, columns, num_chunks, CHUNK: tl.constexpr
):  # fmt: skip
    """The earliest token of a chunk of a row of logits, the first on ties: when, and which.

    Times that are not numbers, of broken logits, never come: an argmin that compares them may be any place, even one
    outside the row, with which the next pass would begin.
    """
    own, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(rows + own)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = at < columns
    logit = tl.load(logits + row * columns + at, mask=inside, other=float("-inf")).to(tl.float64)
    gap = (logit - tl.load(peaks + 2 * row + 1)) / tl.load(temperatures + own)
    weight = tl.exp(tl.where(gap < tl.log(tl.load(min_p + own)), float("-inf"), gap))  # of 0 the logarithm is -inf
    time = _noise(tl.load(keys + own), at) / weight
    time = tl.where(inside & (time == time), time, float("inf"))
    tl.store(times + own * num_chunks + chunk, tl.min(time, axis=0))
    tl.store(places + own * num_chunks + chunk, chunk * CHUNK + tl.argmin(time, axis=0))


@triton.jit
def _race_of_rows(times, places, picks, num_chunks, BLOCK: tl.constexpr):
    """The earliest of a row's chunks, the first on ties."""
    own, chunk = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    time = tl.load(times + own * num_chunks + chunk, mask=chunk < num_chunks, other=float("inf"))
    place = tl.load(places + own * num_chunks + tl.argmin(time, axis=0))
    tl.store(picks + own, place.to(tl.float64))


def race(logits: Tensor, peaks: Tensor, wide: Wide) -> Tensor:
    """[w] float64 picks of the questions of `wide`, for which `is_race` holds.

    Args:
        logits: [rows, vocab] float32 contiguous.
        peaks: [rows, 2] float64, `peaks_of` the logits.
    """
    own, columns = wide.sampled, logits.shape[1]
    assert own is not None
    count, chunks = len(wide.places), triton.cdiv(columns, _CHUNK)
    times = torch.empty(count, chunks, device=logits.device, dtype=torch.float64)
    places = torch.empty(count, chunks, device=logits.device, dtype=torch.int32)
    picks = torch.empty(count, device=logits.device, dtype=torch.float64)
    _race_of_chunks[(count, chunks)](
        logits, peaks, wide.places, own.temperature, own.min_p, own.keys, times, places, columns, chunks, CHUNK=_CHUNK
    )
    _race_of_rows[(count,)](times, places, picks, chunks, BLOCK=triton.next_power_of_2(chunks))
    return picks
