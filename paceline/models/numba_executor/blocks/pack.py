"""Codes, scales and shifts of 32 rows as the bytes of a panel, in the order in which a kernel reads them.

Each half of a panel, 16 rows, is a sequence of units: the unit's scales and shifts, those of all rows side by side,
then the codes of its groups. A group's bit plane of b bits has 64 b bytes. The four weights that step s multiplies are
one register of 64 bytes; registers lie 8 / b to a line of 64 bytes, the first in the lowest bits. So a line is loaded
once and every register is a shift and a mask of it.
"""

import numpy as np

from paceline.models.numba_executor.blocks.formats import GROUP, HALF, LINE, PANEL, STEPS, BlockFormat
from paceline.models.numba_executor.blocks.unpack import Codes

_LANE = 4


def pack(codes: Codes, form: BlockFormat) -> np.ndarray:
    """A matrix [n, k] as flat uint8: panels of 32 rows one after the other, zeros after the last row."""
    depth = codes.codes.shape[1]
    units = depth // form.unit
    planes = _planes(_halves(codes.codes), form)
    out = np.zeros((len(planes), units, form.unit_bytes), np.uint8)
    at = 0
    for numbers in (codes.scales, codes.shifts, codes.scale_steps, codes.shift_steps):
        if numbers is not None:
            side_by_side = _by_span(numbers).reshape(len(out), units, -1)
            out[:, :, at : at + side_by_side.shape[2]] = side_by_side
            at += side_by_side.shape[2]
    out[:, :, form.head_bytes :] = planes.reshape(len(out), units, -1)
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


def _planes(halves: np.ndarray, form: BlockFormat) -> np.ndarray:
    """Codes [halves, 16, k] as bit planes [halves, k / 32, bytes of a group]."""
    count, _, depth = halves.shape
    shape = (count, HALF, depth // GROUP, STEPS, _LANE)
    registers = halves.reshape(shape).transpose(0, 2, 3, 1, 4).reshape(count, depth // GROUP, STEPS, LINE)
    out, done = [], 0
    for bits in form.planes:
        fields = 8 // bits
        part = (registers >> done & (2**bits - 1)).reshape(count, depth // GROUP, -1, fields, LINE)
        shifts = (np.arange(fields, dtype=np.uint8) * bits)[:, None]
        out.append(np.bitwise_or.reduce(part << shifts, axis=3).reshape(count, depth // GROUP, -1))
        done += bits
    return np.concatenate(out, axis=2)
