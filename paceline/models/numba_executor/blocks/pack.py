"""Codes, scales and shifts of 32 rows as the bytes of a panel, in the order in which a kernel reads them.

A group's bit plane of b bits has 128 b bytes. The four weights that step s multiplies in rows 0 to 15 are one register
of 64 bytes, those in rows 16 to 31 the next; registers 2 s + half lie 8 / b to a line of 64 bytes, the first in the
lowest bits. So a line is loaded once and every register is a shift and a mask of it.
"""

import numpy as np

from paceline.models.numba_executor.blocks.formats import GROUP, LINE, PANEL, STEPS, BlockFormat
from paceline.models.numba_executor.blocks.unpack import Codes

_LANE = 4


def pack(codes: Codes, form: BlockFormat) -> np.ndarray:
    """A matrix [n, k] as flat uint8: panels of 32 rows one after the other, zeros after the last row."""
    rows, depth = codes.codes.shape
    panels = -(-rows // PANEL)
    units = depth // form.unit
    out = np.empty((panels, units, form.unit_bytes), np.uint8)
    groups = out[:, :, form.head_bytes :].reshape(panels, units, form.unit // GROUP, form.group_bytes)
    at = 0
    for bits, plane in zip(form.planes, _planes(_panels(codes.codes), form.planes), strict=True):
        size = bits * PANEL * GROUP // 8
        groups[..., at : at + size] = plane.reshape(*groups.shape[:3], size)
        at += size
    for numbers, steps in ((codes.scales, codes.scale_steps), (codes.shifts, codes.shift_steps)):
        if numbers is not None:
            stored = _by_span(numbers if steps is None else steps, form)
            groups[..., at : at + form.scale_bytes] = stored.reshape(*groups.shape[:3], form.scale_bytes)
            at += form.scale_bytes
    if form.stepped:
        heads = [_by_span(n, form).reshape(panels, units, -1) for n in (codes.scales, codes.shifts) if n is not None]
        out[:, :, : form.head_bytes] = np.concatenate(heads, axis=2)
    return out.reshape(-1)


def panel_bytes(form: BlockFormat, depth: int) -> int:
    """Bytes of a panel over `depth` columns."""
    return depth // form.unit * form.unit_bytes


def _panels(rows: np.ndarray) -> np.ndarray:
    """[n, m] as [panels, 32, m], zeros after the last row."""
    missing = -len(rows) % PANEL
    padded = np.concatenate([rows, np.zeros((missing, rows.shape[1]), rows.dtype)]) if missing else rows
    return padded.reshape(-1, PANEL, rows.shape[1])


def _by_span(numbers: np.ndarray, form: BlockFormat) -> np.ndarray:
    """[n, m] as bytes [panels, m, 32 * size]: the numbers of a panel's rows side by side."""
    return np.ascontiguousarray(_panels(numbers).transpose(0, 2, 1)).view(np.uint8)


def _planes(panels: np.ndarray, planes: tuple[int, ...]) -> list[np.ndarray]:
    """Codes [panels, 32, k] as bit planes, each [panels, k / 32, bytes of a group]."""
    count, _, depth = panels.shape
    shape = (count, 2, PANEL // 2, depth // GROUP, STEPS, _LANE)
    registers = panels.reshape(shape).transpose(0, 3, 4, 1, 2, 5).reshape(count, depth // GROUP, 2 * STEPS, LINE)
    out, done = [], 0
    for bits in planes:
        fields = 8 // bits
        part = (registers >> done & (2**bits - 1)).reshape(count, depth // GROUP, -1, fields, LINE)
        shifts = (np.arange(fields, dtype=np.uint8) * bits)[:, None]
        out.append(np.bitwise_or.reduce(part << shifts, axis=3).reshape(count, depth // GROUP, -1))
        done += bits
    return out
