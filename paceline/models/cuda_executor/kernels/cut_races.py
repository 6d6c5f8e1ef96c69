"""Drawing tokens of laws that top_k or top_p cuts, without sorting the vocabulary: race first, then look at the winner.

The winner of the race over all tokens also wins it among those that a cut leaves, if it is one of them; otherwise the
next one may. Whether a token is in the nucleus follows from the mass of the tokens before it. The winner is drawn from
the law before the cut, so with top_p = 0.9 nine in ten are inside, and few rows need a second look. top_k is a limit of
logits, found beforehand. Small top_p are sorted (`Wide.is_race`), or many winners would be looked at.

Weights, masses and ties are those of `laws/warp.py`, which is the reference. Not for laws that are edited, nor for a
large top_k: `laws/answers.py` sorts there.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Triton's types know neither numbers for `tl.constexpr` nor that an argmin is one number.

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.models.cuda_executor.kernels.noise import noise
from paceline.models.cuda_executor.laws.asked import Wide
from paceline.models.cuda_executor.laws.warp import MASS_UNIT

_CHUNK = 4096
_WARPS = 16
_LEAST_ROWS = 8
"""With fewer rows, one program each leaves the device idle. By the number of operations in double precision rows of
150,000 logits take an H100 0.7 ms, however many there are, and sorting 0.1 ms for each row. Not measured yet:
`benchmarks/gpu.py --parts draws` does."""
_DOUBLES = {(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)}
"""Compute capabilities with at least half as many units for double precision as for single; others have few."""
_UNIT, _WHOLE = tl.constexpr(MASS_UNIT), tl.constexpr(2.0**52)


@triton.jit
def _gaps(logits, at, columns, peak, temperature, least):
    """float64 gaps of the logits `at` from the peak, over the temperature; -inf below `least`."""
    logit = tl.load(logits + at, mask=at < columns, other=float("-inf")).to(tl.float64)
    gap = (logit - peak) / temperature
    return tl.where(gap >= least, gap, float("-inf"))


@triton.jit
def _earliest_after(logits, columns, peak, temperature, least, key, last_time, last, CHUNK: tl.constexpr):
    """(when, which): the earliest token after another one, by time and number. Times that are no numbers never come."""
    earliest, which = tl.full((), float("inf"), tl.float64), tl.full((), 0, tl.int32)
    for start in range(0, columns, CHUNK):
        at = start + tl.arange(0, CHUNK)
        time = noise(key, at) / tl.exp(_gaps(logits, at, columns, peak, temperature, least))
        comes = (time > last_time) | ((time == last_time) & (at > last))
        time = tl.where((at < columns) & comes, time, float("inf"))
        best = tl.min(time, axis=0)
        which = tl.where(best < earliest, start + tl.argmin(time, axis=0), which)
        earliest = tl.minimum(earliest, best)
    return earliest, which


@triton.jit
def _mass_before(logits, columns, peak, temperature, least, level, last, CHUNK: tl.constexpr):
    """int64 units of the mass of the tokens before the one `last` with the gap `level`, in order of gap and number."""
    mass = tl.full((), 0, tl.int64)
    for start in range(0, columns, CHUNK):
        at = start + tl.arange(0, CHUNK)
        gap = _gaps(logits, at, columns, peak, temperature, least)
        is_before = (gap > level) | ((gap == level) & (at < last))
        units = tl.exp(gap) * _UNIT + _WHOLE - _WHOLE  # rounded to even, as 2^52 has no fractions
        mass += tl.sum(tl.where(is_before, units, 0.0).to(tl.int64), axis=0)
    return mass


@triton.jit
def _cut_race(
    logits, peaks, rows, temperatures, min_p, edges, top_p, keys, picks, columns, CHUNK: tl.constexpr
):  # fmt: skip
    """The pick of one question."""
    own = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + own)
    logits += row * columns
    peak, temperature = tl.load(peaks + 2 * row + 1), tl.load(temperatures + own)
    edge = (tl.load(edges + own).to(tl.float64) - peak) / temperature
    least = tl.maximum(edge, tl.log(tl.load(min_p + own)))  # of 0 the logarithm is -inf
    key, share = tl.load(keys + own), tl.load(top_p + own)
    time, pick = _earliest_after(logits, columns, peak, temperature, least, key, -1.0, -1, CHUNK)
    if share < 1:
        needed = share * _mass_before(
            logits, columns, peak, temperature, least, float("-inf"), -1, CHUNK
        ).to(tl.float64)  # fmt: skip
        is_outside = time < float("inf")
        while is_outside:
            level = (tl.load(logits + pick).to(tl.float64) - peak) / temperature
            before = _mass_before(logits, columns, peak, temperature, least, level, pick, CHUNK)
            is_outside = (before.to(tl.float64) >= needed) & (time < float("inf"))
            if is_outside:
                time, pick = _earliest_after(logits, columns, peak, temperature, least, key, time, pick, CHUNK)
    tl.store(picks + own, pick.to(tl.int64))


@cache
def _has_doubles(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) in _DOUBLES


def pays(num_rows: int, device: torch.device) -> bool:
    """Whether `cut_race` is expected to take less time than sorting."""
    return device.type != "cuda" or (num_rows >= _LEAST_ROWS and _has_doubles(device))


def cut_race(logits: Tensor, peaks: Tensor, wide: Wide) -> Tensor:
    """[w] float64 picks; see `races.race`."""
    own = wide.sampled
    assert own is not None
    picks = torch.empty(len(wide.places), device=logits.device, dtype=torch.int64)
    _cut_race[(len(picks),)](
        logits, peaks, wide.places, own.temperature, own.min_p, _edges(logits, wide), own.top_p, own.keys, picks,
        logits.shape[1], CHUNK=_CHUNK, num_warps=_WARPS,
    )  # fmt: skip
    return picks.double()


def _edges(logits: Tensor, wide: Wide) -> Tensor:
    """[w] float32 the smallest logit that top_k leaves, -inf where it leaves all."""
    own = wide.sampled
    assert own is not None
    if not own.largest_k:
        return logits.new_full((len(wide.places),), -torch.inf)
    rows = logits if len(wide.places) == len(logits) else logits[wide.places]
    most = min(own.largest_k, rows.shape[1])
    largest = rows.topk(most, dim=-1).values
    edges = largest.gather(1, (own.top_k - 1).clamp(0, most - 1))
    return edges.masked_fill(own.top_k == 0, -torch.inf).view(-1)
