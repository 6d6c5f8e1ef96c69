"""Kernels for the beginning and the end of a pass: embeddings, rotary angles, and the argmax of logits.

A row's token may be the argmax of a row of the previous pass, which is still on the device. The reference functions are
torch's embedding, `torch_executor/layers.row_angles` and `laws.peaks_of`.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# Triton's types know neither numbers for `tl.constexpr`, nor options of a launch, nor that a sum is one number.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.models.cuda_executor.kernels.dependent import IN_TURN, dependent, let_next_begin, wait_for_inputs

_CHUNK = 4096


@triton.jit
def _embedded(tokens, picks, table, out, columns, first, size, BLOCK: tl.constexpr):
    """One row of `table`, widened: that of the row's token, or of the pick that a negative one names.

    The table has `size` tokens from `first` on; of others the row is zeros.
    """
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    token = tl.load(tokens + row).to(tl.int32)
    if token < 0:
        token = tl.load(picks - 1 - token).to(tl.int32)
    own = token - first
    inside = column < columns
    known = column < tl.where((own >= 0) & (own < size), columns, 0)
    values = tl.load(table + own.to(tl.int64) * columns + column, mask=known, other=0.0)
    tl.store(out + row.to(tl.int64) * columns + column, values.to(tl.float32), mask=inside)


@triton.jit
def _angles(positions, frequencies, cosines, sines, factor, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Cosines and sines of a row's angles, once for either half."""
    row, pair = tl.program_id(0), tl.arange(0, BLOCK)
    inside = pair < HALF
    angle = tl.load(positions + row).to(tl.float32) * tl.load(frequencies + pair, mask=inside, other=0.0)
    cosine, sine = tl.cos(angle) * factor, tl.sin(angle) * factor
    place = row.to(tl.int64) * (2 * HALF) + pair
    for half in tl.static_range(2):  # pyright: ignore[reportGeneralTypeIssues]
        tl.store(cosines + place + half * HALF, cosine, mask=inside)
        tl.store(sines + place + half * HALF, sine, mask=inside)


@triton.jit
def _peaks_of_chunks(
    logits, peaks, places, masses, columns, num_chunks, WEIGHS: tl.constexpr, CHUNK: tl.constexpr, WAITS: tl.constexpr
):  # fmt: skip
    """The largest of a chunk of a row, NaN where one is, and the first place where it is.

    WEIGHS: also the sum of exp(value - largest).
    """
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    let_next_begin(WAITS)
    wait_for_inputs(WAITS)
    values = tl.load(logits + row * columns + at, mask=at < columns, other=float("-inf"))
    is_bad = tl.sum((values != values).to(tl.int32), axis=0) > 0
    known = tl.where(values == values, values, float("-inf"))
    peak = tl.max(known, axis=0)
    tl.store(peaks + row * num_chunks + chunk, tl.where(is_bad, float("nan"), peak))
    if WEIGHS:
        weights = tl.where(values > float("-inf"), tl.exp(values - peak), 0.0)
        tl.store(masses + row * num_chunks + chunk, tl.sum(weights, axis=0))
    tl.store(places + row * num_chunks + chunk, chunk * CHUNK + tl.argmax(known, axis=0))


@triton.jit
def _peaks_of_rows(peaks, places, table, picks, num_chunks, BLOCK: tl.constexpr, WAITS: tl.constexpr):
    """The largest of a row's chunks, the first on ties, as a line of `table` and as a pick."""
    row, chunk = tl.program_id(0), tl.arange(0, BLOCK)
    let_next_begin(WAITS)
    wait_for_inputs(WAITS)
    inside = chunk < num_chunks
    values = tl.load(peaks + row * num_chunks + chunk, mask=inside, other=float("-inf"))
    is_bad = tl.sum((values != values).to(tl.int32), axis=0) > 0
    known = tl.where(values == values, values, float("-inf"))
    place = tl.load(places + row * num_chunks + tl.argmax(known, axis=0))
    tl.store(picks + row, place)
    tl.store(table + 2 * row, place.to(tl.float64))
    tl.store(table + 2 * row + 1, tl.where(is_bad, float("nan"), tl.max(known, axis=0)).to(tl.float64))


@triton.jit
def _likeliest_of_rows(peaks, places, masses, best, probs, num_chunks, BLOCK: tl.constexpr, WAITS: tl.constexpr):
    """The place of the largest of a row's chunks, the first on ties, and its probability."""
    row, chunk = tl.program_id(0), tl.arange(0, BLOCK)
    let_next_begin(WAITS)
    wait_for_inputs(WAITS)
    inside, at = chunk < num_chunks, row * num_chunks + chunk
    values = tl.load(peaks + at, mask=inside, other=float("-inf"))
    mass = tl.load(masses + at, mask=inside, other=0.0)
    known = tl.where(values == values, values, float("-inf"))
    peak = tl.max(known, axis=0)
    tl.store(best + row, tl.load(places + row * num_chunks + tl.argmax(known, axis=0)).to(tl.int64))
    tl.store(probs + row, 1 / tl.sum(mass * tl.exp(values - peak), axis=0))


def embedded(tokens: Tensor, picks: Tensor, table: Tensor, first: int = 0) -> Tensor:
    """[M, hidden] float32: of `tokens` [M] the rows of `table` [n, hidden]; -1 - i is token i of `picks`.

    The table has the tokens from `first` on; others have zeros.
    """
    columns = table.shape[1]
    out = torch.empty(len(tokens), columns, device=table.device, dtype=torch.float32)
    if len(tokens):
        _embedded[(len(tokens),)](
            tokens, picks, table, out, columns, first, len(table), BLOCK=triton.next_power_of_2(columns)
        )
    return out


def row_angles(positions: Tensor, inverse_frequencies: Tensor, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """See `layers.row_angles`: cosines and sines [M, 1, R] float32."""
    rows, half = len(positions), len(inverse_frequencies)
    cosines, sines = torch.empty(2, rows, 1, 2 * half, device=positions.device, dtype=torch.float32)
    if rows:
        _angles[(rows,)](
            positions, inverse_frequencies, cosines, sines, factor, HALF=half, BLOCK=triton.next_power_of_2(half)
        )
    return cosines, sines


def peaks_of(logits: Tensor, picks: Tensor, *, begins_early: bool = True) -> Tensor:
    """See `laws.peaks_of`; the argmax of each row is also written to `picks` [rows or more] int32.

    Args:
        begins_early: as of `entries.rms_norm`.
    """
    rows = len(logits)
    table = torch.empty(rows, 2, device=logits.device, dtype=torch.float64)
    if rows:
        peaks, places, _ = _by_chunk(logits, weighs=False, begins_early=begins_early)
        _peaks_of_rows[(rows,)](peaks, places, table, picks, peaks.shape[1], **_over(peaks))
    return table


def likeliest(logits: Tensor, *, begins_early: bool = True) -> tuple[Tensor, Tensor]:
    """See `laws.chains.likeliest`; `begins_early` as of `peaks_of`."""
    rows = len(logits)
    best = torch.empty(rows, device=logits.device, dtype=torch.int64)
    probs = torch.empty(rows, device=logits.device, dtype=torch.float32)
    if rows:
        peaks, places, masses = _by_chunk(logits, weighs=True, begins_early=begins_early)
        _likeliest_of_rows[(rows,)](peaks, places, masses, best, probs, peaks.shape[1], **_over(peaks))
    return best, probs


def _by_chunk(logits: Tensor, weighs: bool, begins_early: bool) -> tuple[Tensor, Tensor, Tensor]:
    """[rows, chunks] each: largest logits, their places and, if `weighs`, sums of weights relative to them."""
    rows, columns = logits.shape
    chunks = triton.cdiv(columns, _CHUNK)
    peaks, masses = torch.empty(2, rows, chunks, device=logits.device, dtype=torch.float32)
    places = torch.empty(rows, chunks, device=logits.device, dtype=torch.int32)
    _peaks_of_chunks[(rows, chunks)](
        logits,
        peaks,
        places,
        masses,
        columns,
        chunks,
        WEIGHS=weighs,
        CHUNK=_CHUNK,
        **(dependent(logits.device) if begins_early else IN_TURN),
    )
    return peaks, places, masses


def _over(chunks: Tensor) -> dict[str, Any]:
    """Options of a kernel over all chunks of a row."""
    return {"BLOCK": triton.next_power_of_2(chunks.shape[1]), **dependent(chunks.device)}
