"""Drawing tokens of tempered laws on the device: the exponential race of `CounterRandomness.draw`, in two kernels.

Noise, weights and ties are those of `laws/answers.py`, which is the reference: splitmix64 numbered by token, laws in
float64 relative to the largest logit. Not for laws that are edited, nor for those that are cut by top_k or top_p
(`cut_races.py`).
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Triton's types know neither numbers for `tl.constexpr` nor that an argmin is one number.

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.models.cuda_executor.kernels.cut_races import cut_race, pays
from paceline.models.cuda_executor.kernels.noise import noise
from paceline.models.cuda_executor.laws.asked import Wide

_CHUNK = 2048


@triton.jit
def _race_of_chunks(
    logits, peaks, rows, temperatures, min_p, keys, ids, times, places, columns, num_chunks, HAS_IDS: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """The earliest token of a chunk of a row of logits, the first on ties: when, and which.

    HAS_IDS: `ids` are the tokens of columns.

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
    token = at
    if HAS_IDS:
        token = tl.load(ids + at, mask=inside, other=0).to(tl.int32)
    time = noise(tl.load(keys + own), token) / weight
    time = tl.where(inside & (time == time), time, float("inf"))
    tl.store(times + own * num_chunks + chunk, tl.min(time, axis=0))
    tl.store(places + own * num_chunks + chunk, chunk * CHUNK + tl.argmin(time, axis=0))


@triton.jit
def _race_of_rows(times, places, picks, num_chunks, BLOCK: tl.constexpr):
    """The earliest of a row's chunks, the first on ties."""
    own, chunk = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    time = tl.load(times + own * num_chunks + chunk, mask=chunk < num_chunks, other=float("inf"))
    place = tl.load(places + own * num_chunks + tl.argmin(time, axis=0))
    tl.store(picks + own, place.to(tl.int64))


def race(logits: Tensor, peaks: Tensor, wide: Wide) -> Tensor | None:
    """[w] float64 picks of the questions of `wide`, for which `is_race` holds; None where sorting takes less time.

    Args:
        logits: [rows, vocab] float32 contiguous.
        peaks: [rows, 2] float64, `peaks_of` the logits.
    """
    own = wide.sampled
    assert own is not None
    if own.truncates:
        return cut_race(logits, peaks, wide) if pays(len(wide.places), logits.device) else None
    return _raced(logits, peaks, wide.places, own.temperature, own.min_p, own.keys, None).double()


def draw(logits: Tensor, best: Tensor, temperature: Tensor, min_p: Tensor, keys: Tensor, ids: Tensor | None) -> Tensor:
    """[n] columns drawn from tempered laws of logits [n, columns] float32.

    Args:
        best: [n] column of the largest logit.
        temperature, min_p: [n, 1] float64. keys: [n] int64, noise of each row.
        ids: [columns] token of each column; None where columns are tokens.
    """
    peaks = logits.gather(1, best[:, None]).double().expand(-1, 2).contiguous()
    rows = torch.arange(len(logits), device=logits.device)
    return _raced(logits, peaks, rows, temperature.contiguous(), min_p.contiguous(), keys.contiguous(), ids)


def _raced(
    logits: Tensor, peaks: Tensor, rows: Tensor, temperature: Tensor, min_p: Tensor, keys: Tensor, ids: Tensor | None
) -> Tensor:
    """[w] int64 the column of the earliest token of each of `rows` [w]."""
    count, columns = len(rows), logits.shape[1]
    chunks = triton.cdiv(columns, _CHUNK)
    times = torch.empty(count, chunks, device=logits.device, dtype=torch.float64)
    places = torch.empty(count, chunks, device=logits.device, dtype=torch.int32)
    picks = torch.empty(count, device=logits.device, dtype=torch.int64)
    _race_of_chunks[(count, chunks)](
        logits, peaks, rows, temperature, min_p, keys, rows if ids is None else ids, times, places, columns, chunks,
        HAS_IDS=ids is not None, CHUNK=_CHUNK,
    )  # fmt: skip
    _race_of_rows[(count,)](times, places, picks, chunks, BLOCK=triton.next_power_of_2(chunks))
    return picks
