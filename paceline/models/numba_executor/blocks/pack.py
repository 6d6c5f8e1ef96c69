"""Packs codes, scales and shifts of 32 rows into a panel, in the order in which kernels read them.

Each half of a panel, 16 rows, is a sequence of units: the unit's scales and shifts, those of all rows side by side,
then the codes of its groups. The four weights that a step multiplies, of 16 rows, are one register of 64 bytes.
Registers with fewer than 8 bits per code share a line of 64 bytes (`BlockFormat.fields`); a line is loaded once, and
every register is a shift and a mask of it.
"""

import numpy as np

from paceline.models.numba_executor.blocks.formats import GROUP, HALF, LINE, PANEL, STEPS, BlockFormat
from paceline.models.numba_executor.blocks.unpack import Codes

_LANE = 4


def pack(codes: Codes, form: BlockFormat) -> np.ndarray:
    """A matrix [n, k] as flat uint8: panels of 32 rows one after the other, zeros after the last row."""
    depth = codes.codes.shape[1]
    units = depth // form.unit
    lines = _lines(_halves(codes.codes), form)
    out = np.zeros((len(lines), units, form.unit_bytes), np.uint8)
    at = 0
    for numbers in (codes.scales, codes.shifts, codes.scale_steps, codes.shift_steps):
        if numbers is not None:
            side_by_side = _by_span(numbers).reshape(len(out), units, -1)
            out[:, :, at : at + side_by_side.shape[2]] = side_by_side
            at += side_by_side.shape[2]
    out[:, :, form.head_bytes :] = lines.reshape(len(out), units, -1)
    return out.reshape(-1)


def panel_bytes(form: BlockFormat, depth: int) -> int:
    """Bytes of a panel over `depth` columns."""
    return depth // form.unit * form.unit_bytes * (PANEL // HALF)


def _halves(rows: np.ndarray) -> np.ndarray:
    """[n, m] as [halves of panels, 16, m], zeros after the last row."""
    missing = -len(rows) % PANEL
    padded = np.concatenate([rows, np.zeros((missing, rows.shape[1]), rows.dtype)]) if missing else rows
    return padded.reshape(-1, HALF, rows.shape[1])


def _by_span(numbers: np.ndarray) -> np.ndarray:
    """[n, m] as bytes [halves, m, 16 * size]: the numbers of 16 rows side by side."""
    return np.ascontiguousarray(_halves(numbers).transpose(0, 2, 1)).view(np.uint8)


def _lines(halves: np.ndarray, form: BlockFormat) -> np.ndarray:
    """Codes [halves, 16, k] as the lines of groups [halves, k / 32, bytes of a group]."""
    count, _, depth = halves.shape
    shape = (count, HALF, depth // GROUP, STEPS, _LANE)
    registers = halves.reshape(shape).transpose(0, 2, 3, 1, 4).reshape(count, depth // GROUP, STEPS, LINE)
    out = np.zeros((count, depth // GROUP, form.code_bytes // LINE, LINE), np.uint8)
    for step in range(STEPS):
        for field in form.fields(step):
            part = registers[:, :, step] >> field.place & (2**field.bits - 1)
            out[:, :, field.line] |= part << field.start
    return out.reshape(count, depth // GROUP, form.code_bytes)
