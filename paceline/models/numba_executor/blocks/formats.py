"""Kinds of blocks, and the layout of their numbers in a packed panel.

A weight is scale * (code - zero) + shift; `span` neighbours in a row share the scale and the shift. In *flat* formats
both are float16 numbers, or a scale is a power of two stored as its exponent in a byte (E8M0 of the OCP microscaling
formats). In *stepped* formats a float16 number per 256 weights is multiplied by an integer per span. A panel has 32
rows of the matrix, in two halves one after the other; 32 weights of each row are a group, stored as bit planes
(`pack.py`).
"""

from dataclasses import dataclass
from typing import NamedTuple

PANEL = 32
"""Rows of the matrix in a panel: outputs that are computed together."""
HALF = 16
"""Rows in half a panel: the lanes of a vector. With a register for integer sums and one for float sums per row of
activations, eight rows and more fit into the registers; with a whole panel they would not."""
GROUP = 32
"""Weights of a row in a group: as many as outputs of a panel, so that the thread that computes a panel can round its
outputs."""
STEPS = 8
"""Steps in a group, each of four weights: the bytes of a 32-bit lane."""
LINE = 64
"""Bytes of a vector register: four weights of sixteen rows, one byte each."""
SUPER = 256
"""Weights that share a float16 number in stepped formats."""


class Field(NamedTuple):
    """Location of some bits of a step's codes: the line of the group, the first bit in a byte, the number of bits;
    and their first bit in the code."""

    line: int
    start: int
    bits: int
    place: int


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One kind of block.

    Attributes:
        planes: bits of a code in each bit plane, lowest bits first; a plane of 6 bits has four codes in three bytes.
        span: weights that share a scale, 16 or 32.
        zero: the code of a weight of 0 where there is no shift; a power of two, or 0.
        stepped: whether a scale is an integer times a float16 number per 256 weights.
        signed: whether those integers are signed.
        shifts: whether there is a shift besides the scale.
        zero_points: whether a shift is -scale * zero point, and stored as the zero point.
        exponents: whether a scale is 2^(e - 128) for a byte e.
        table: entries that replace the sixteen codes (`zero` is then subtracted from these); empty for none.
    """

    name: str
    planes: tuple[int, ...]
    span: int = GROUP
    zero: int = 0
    stepped: bool = False
    signed: bool = False
    shifts: bool = False
    zero_points: bool = False
    exponents: bool = False
    table: tuple[int, ...] = ()

    @property
    def unit(self) -> int:
        """Weights of a row that are stored together: a group, or `SUPER`."""
        return SUPER if self.stepped else GROUP

    @property
    def code_bytes(self) -> int:
        """Bytes of a group's codes in half a panel."""
        return sum(self.planes) * HALF * GROUP // 8

    def fields(self, step: int) -> tuple[Field, ...]:
        """Locations of the bits of a step's codes."""
        out, line, place = [], 0, 0
        for bits in self.planes:
            if bits == _SIX:
                out += _six_bits(line, step)
            else:
                out.append(Field(line + step * bits // 8, step * bits % 8, bits, place))
            line, place = line + bits * STEPS // 8, place + bits
        return tuple(out)

    @property
    def float_bytes(self) -> int:
        """Bytes of scales and shifts, float16 numbers or exponents, at the beginning of a unit in half a panel."""
        return HALF if self.exponents else 2 * HALF * (1 + self.shifts)

    @property
    def step_bytes(self) -> int:
        """Bytes of a unit's integers, which are next, for scales or for shifts; 0 in flat formats."""
        return HALF * (SUPER // self.span) if self.stepped else 0

    @property
    def head_bytes(self) -> int:
        """Bytes before the codes of a unit; in stepped formats a multiple of `LINE`."""
        size = self.float_bytes + self.step_bytes * (1 + self.shifts)
        return -(-size // LINE) * LINE if self.stepped else size

    @property
    def unit_bytes(self) -> int:
        """Bytes of a unit in half a panel."""
        return self.head_bytes + self.code_bytes * (self.unit // GROUP)

    @property
    def largest_code(self) -> int:
        """The largest byte that is multiplied."""
        return max(self.table) if self.table else 2 ** sum(self.planes) - 1


_SIX = 6


def _six_bits(line: int, step: int) -> list[Field]:
    """Of four steps, three are the upper six bits of a line each, the fourth the lower two of all three."""
    first, number = line + step // 4 * 3, step % 4
    if number < 3:
        return [Field(first + number, 2, _SIX, 0)]
    return [Field(first + i, 0, 2, 2 * i) for i in range(3)]


_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_IQ4 = tuple(128 + value for value in _IQ4_VALUES)
_FP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the numbers of four bits with a sign, two bits of exponent and one of mantissa (E2M1)."""
_FP4 = tuple(16 + value for value in _FP4_VALUES)

INT4 = "INT4"
"""Paceline's name for blocks of 32 codes with a scale and a zero point, as in GPTQ and AWQ; GGUF has none."""

FORMATS = {
    f.name: f
    for f in (
        BlockFormat("Q4_0", (4,), zero=8),
        BlockFormat("Q4_1", (4,), shifts=True),
        BlockFormat(INT4, (4,), shifts=True, zero_points=True),
        BlockFormat("Q5_0", (4, 1), zero=16),
        BlockFormat("Q5_1", (4, 1), shifts=True),
        BlockFormat("Q8_0", (8,), zero=128),
        BlockFormat("IQ4_NL", (4,), zero=128, table=_IQ4),
        BlockFormat("Q2_K", (2,), span=16, stepped=True, shifts=True),
        BlockFormat("Q3_K", (2, 1), span=16, zero=4, stepped=True, signed=True),
        BlockFormat("Q4_K", (4,), stepped=True, shifts=True),
        BlockFormat("Q5_K", (4, 1), stepped=True, shifts=True),
        BlockFormat("Q6_K", (6,), span=16, zero=32, stepped=True, signed=True),
        BlockFormat("IQ4_XS", (4,), zero=128, stepped=True, signed=True, table=_IQ4),
        BlockFormat("MXFP4", (4,), zero=16, exponents=True, table=_FP4),
    )
}
"""By GGUF's names, and `INT4`."""

NAMES = tuple(FORMATS)
"""Files of converted weights store an index in this tuple."""
