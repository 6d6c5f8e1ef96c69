"""What each kind of block holds and how its codes lie in a packed panel.

A weight is scale * (code - zero) + shift, for a scale and a shift that `span` neighbours in a row share. In *flat*
formats both are float16 numbers. In *stepped* formats a float16 number per 256 weights is multiplied with a whole
number per span. A panel has 32 rows of the matrix; 32 weights of each are a group, stored as bit planes (`pack.py`).
"""

from dataclasses import dataclass

PANEL = 32
"""Rows of the matrix in a panel: outputs that are computed together."""
GROUP = 32
"""Weights of a row in a group. As many activations share a scale, and as many outputs a panel: who computes a panel can
round it."""
STEPS = 8
"""Steps of four weights in a group, the bytes of one 32-bit lane."""
LINE = 64
"""Bytes of a vector register: four weights of sixteen rows, one byte each."""
SUPER = 256
"""Weights under one float16 number in stepped formats."""


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """One kind of block.

    Attributes:
        planes: bits of a code in each bit plane, lowest bits first.
        span: weights that share a scale, 16 or 32.
        zero: the code of a weight of 0 where there is no shift; a power of two, or 0.
        stepped: whether scales are whole numbers under a float16 number per 256 weights.
        signed: whether those whole numbers are signed.
        shifts: whether there is a shift besides the scale.
        zero_points: whether a shift is stored as the code of a weight of 0: it is minus the scale times that.
        table: what the sixteen codes stand for (then `zero` is that of the table's entries); empty for themselves.
    """

    name: str
    planes: tuple[int, ...]
    span: int = GROUP
    zero: int = 0
    stepped: bool = False
    signed: bool = False
    shifts: bool = False
    zero_points: bool = False
    table: tuple[int, ...] = ()

    @property
    def code_bytes(self) -> int:
        """Bytes of a group's codes in a panel."""
        return sum(self.planes) * PANEL * GROUP // 8

    @property
    def scale_bytes(self) -> int:
        """Bytes of a group's scales in a panel, or of its shifts: whole numbers are bytes."""
        return PANEL * GROUP // self.span * (1 if self.stepped else 2)

    @property
    def group_bytes(self) -> int:
        """Bytes of a group in a panel: codes, scales, shifts."""
        return self.code_bytes + self.scale_bytes * (1 + self.shifts)

    @property
    def unit(self) -> int:
        """Weights of a row that lie together: a group, or all under one float16 number."""
        return SUPER if self.stepped else GROUP

    @property
    def head_bytes(self) -> int:
        """Bytes of the float16 numbers at the start of a unit."""
        return 2 * PANEL * (1 + self.shifts) if self.stepped else 0

    @property
    def unit_bytes(self) -> int:
        """Bytes of a unit in a panel."""
        return self.head_bytes + self.group_bytes * (self.unit // GROUP)

    @property
    def largest_code(self) -> int:
        """What a byte that is multiplied can be at most."""
        return max(self.table) if self.table else 2 ** sum(self.planes) - 1


_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_IQ4 = tuple(128 + value for value in _IQ4_VALUES)

INT4 = "INT4"
"""The name here of blocks of 32 codes with a scale and a zero point, as GPTQ and AWQ have them; GGUF has no such."""

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
        BlockFormat("Q6_K", (4, 2), span=16, zero=32, stepped=True, signed=True),
        BlockFormat("IQ4_XS", (4,), zero=128, stepped=True, signed=True, table=_IQ4),
    )
}
"""By GGUF's names and `INT4`."""

NAMES = tuple(FORMATS)
"""Their order is their number in files of converted weights."""
