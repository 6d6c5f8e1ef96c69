"""`Program`: a draft network as a list of operations that one compiled function interprets.

A draft network is small, so call overhead costs more than its arithmetic. Here a pass, or a whole greedy chain of
passes, is one call of `interpret.run` with a table of numbers. A new family is a new table and needs no new kernel. Not
for the arithmetic of an operation (`interpret.py`, `each_row.py`).

Operations read and write numbered buffers, whose rows are float32 or activations as products read them (`operand.py`).
Row i of an operation is row i of its buffers, and row first + i of the batch's arrays, where (first, count) is the
operation's span.
"""

from dataclasses import dataclass, field

import numpy as np

# What an operation does. The first group takes row by row, the second panels of weights or blocks of attention.
(
    EMBED, LOOKUP, NORM, NORM_PUT, PUT, GATHER, COPY, HEAD_NORM, PLACE, RESIDUAL_SILU, MIX_NORM_GELU, RELU, LSTM,
    ARGMAX, TIMES,
) = range(15)  # fmt: skip
PRODUCT, GATED, ATTEND = range(20, 23)

# Columns of an operation.
CODE, SPAN, SOURCE, SOURCE_COLUMN, TARGET, TARGET_COLUMN, WEIGHT, WIDTH, FLAG, BIAS, SCALE = range(11)
NUM_COLUMNS = 11

NONE = -1


@dataclass(frozen=True, slots=True)
class Buffer:
    """Rows of `width` elements; `rounded` for activations as products read them, else float32.

    `per_asked` buffers hold a row per asked row of a pass, the others one per row.
    """

    index: int
    width: int
    rounded: bool
    per_asked: bool


class Buffers:
    """The buffers of one network."""

    def __init__(self) -> None:
        self.all: list[Buffer] = []

    def floats(self, width: int, per_asked: bool = False) -> Buffer:
        """A new buffer of float32."""
        return self._new(width, False, per_asked)

    def codes(self, width: int, per_asked: bool = False) -> Buffer:
        """A new buffer of activations for products."""
        return self._new(width, True, per_asked)

    def _new(self, width: int, rounded: bool, per_asked: bool) -> Buffer:
        buffer = Buffer(len(self.all), width, rounded, per_asked)
        self.all.append(buffer)
        return buffer


@dataclass(slots=True)
class Program:
    """Operations in order; each begins when all threads have ended the one before it."""

    operations: list[list[int]] = field(default_factory=list)

    def add(self, code: int, span: int, source: Buffer | None = None, target: Buffer | None = None,
            **columns: int) -> None:  # fmt: skip
        """One operation over the rows of `span`; `columns` by their lower-case names."""
        row = [0] * NUM_COLUMNS
        row[CODE], row[SPAN], row[BIAS] = code, span, NONE
        row[SOURCE] = NONE if source is None else source.index
        row[TARGET] = NONE if target is None else target.index
        for name, value in columns.items():
            row[_PLACES[name]] = value
        self.operations.append(row)

    def table(self) -> np.ndarray:
        """[operations, NUM_COLUMNS] int64."""
        return np.array(self.operations, np.int64).reshape(-1, NUM_COLUMNS)


_PLACES = {
    "source_column": SOURCE_COLUMN, "target_column": TARGET_COLUMN, "weight": WEIGHT, "width": WIDTH, "flag": FLAG,
    "bias": BIAS, "scale": SCALE,
}  # fmt: skip
