"""Arithmetic intensity: operations per byte read, of prefill chunks, of decodes, and of both in one pass.

A machine does `ridge` operations in the time in which it reads a byte. A pass below that is memory-bound, and further
rows in it are nearly free; a pass above it is compute-bound. SARATHI (Agrawal et al. 2023, section 3) explains with it
why decodes beside a prefill chunk cost little. The transformer is that of `long_context.py`, with numbers of 2 bytes.
Every weight is read once a pass, and the keys and values of a request once, whatever the number of its rows. Attention
is causal. Activations count as kept on chip. Not for measured passes (`piggyback.py`).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from paceline.theory.checks import check_count
from paceline.theory.curves import Chart, Series
from paceline.theory.long_context import Machine, Shape
from paceline.theory.tables import Table

LLAMA_13B = Shape(5120, 40)
"""The shape of SARATHI's smaller model; 12.6 billion weights without embeddings."""

A6000 = Machine(768e9, 154.8e12)
"""SARATHI's smaller GPU by its data sheet: GDDR6, and 16-bit tensor operations without sparsity."""

_MOST_ROWS = 1 << 20


class Part(NamedTuple):
    """The rows of one request in a pass: a prefill chunk, or a decode of one row.

    Attributes:
        rows: tokens computed.
        context: tokens in the cache before them.
    """

    rows: int
    context: int = 0


class Work(NamedTuple):
    """What a pass does.

    Attributes:
        operations: multiplications and additions, counted separately.
        bytes_read: of weights, keys and values.
    """

    operations: float
    bytes_read: float

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.operations / self.bytes_read

    def seconds(self, machine: Machine) -> float:
        """The longer of reading and computing: a lower bound."""
        return max(self.bytes_read / machine.bytes_per_second, self.operations / machine.operations_per_second)


def ridge(machine: Machine) -> float:
    """Operations per byte at which a pass takes as long to compute as to read (Williams et al. 2009, roofline)."""
    return machine.operations_per_second / machine.bytes_per_second


def work(shape: Shape, parts: Sequence[Part]) -> Work:
    """Operations and bytes of a pass over `parts`.

    A row does two operations with each weight, of two bytes, and four times the hidden size with each key of a layer.
    So n rows do n operations per byte of weights, and a decode does `queries_per_key` per byte of keys and values.

    Raises:
        InvalidParameter: a number of rows or a context that is negative or not whole, or no row.
    """
    operations, read = 0.0, shape.weight_bytes
    for rows, context in parts:
        check_count("rows", rows)
        check_count("context", context)
        pairs = sum(shape.keys(context + row) for row in range(1, rows + 1))
        operations += rows * shape.weight_bytes + pairs * shape.num_layers * 4 * shape.hidden_size
        read += (shape.keys(context) + rows) * shape.cache_bytes_per_token if rows else 0
    check_count("rows", sum(rows for rows, _ in parts), least=1)
    return Work(operations, read)


def saturating_chunk(shape: Shape, machine: Machine, context: int = 0, decodes: Sequence[Part] = ()) -> int | None:
    """The fewest prompt tokens, after `context` others and beside `decodes`, that make a pass compute-bound.

    0 where the decodes do so without a chunk; None where a million tokens are too few. Raises InvalidParameter as
    `work`.
    """
    if decodes and is_compute_bound(shape, machine, decodes):
        return 0
    return _fewest(lambda rows: is_compute_bound(shape, machine, [Part(rows, context), *decodes]))


def saturating_decodes(shape: Shape, machine: Machine, context: int) -> int | None:
    """The fewest decodes of this context that make a pass compute-bound; None where no number does.

    They read their own keys and values, with few operations per byte, so beyond some context more requests do not help.

    Raises:
        InvalidParameter: a context that is negative or not whole.
    """
    one, weights = work(shape, [Part(1, context)]), shape.weight_bytes
    surplus = one.operations - ridge(machine) * (one.bytes_read - weights)
    if surplus <= 0:
        return None
    return max(1, -int(-ridge(machine) * weights // surplus))


def is_compute_bound(shape: Shape, machine: Machine, parts: Sequence[Part]) -> bool:
    """Whether a pass over `parts` has at least the machine's `ridge` of operations per byte."""
    return work(shape, parts).intensity >= ridge(machine)


def intensity_table(shape: Shape, num_rows: Sequence[int], chunk: int, context: int) -> Table:
    """Operations per byte by n of `num_rows`: a chunk of n, n decodes after `context`, and n decodes beside `chunk`."""
    columns = ("n", "chunk of n", f"n decodes after {context}", f"n decodes beside a chunk of {chunk}")
    rows = [
        (n, *(work(shape, parts).intensity for parts in ([Part(n)], decodes, [Part(chunk), *decodes])))
        for n in num_rows
        for decodes in [[Part(1, context)] * n]
    ]
    return Table("Operations per byte of a pass", columns, tuple(rows))


def intensity_chart(table: Table, machine: Machine) -> Chart:
    """The columns of an `intensity_table` as curves over n, with the machine's ridge."""
    counts = [row[0] for row in table.rows]
    series = [
        Series(name, counts, [row[place] for row in table.rows])
        for place, name in enumerate(table.columns[1:], start=1)
    ]
    series.append(Series("ridge of the machine", counts, [ridge(machine)] * len(counts)))
    return Chart(table.title, "n", "operations per byte", tuple(series), doubling=True)


def _fewest(holds: Callable[[int], bool]) -> int | None:
    """The smallest n of 1 .. `_MOST_ROWS` for which `holds`, which stays true from there on; None without one."""
    high = 1
    while not holds(high):
        if high >= _MOST_ROWS:
            return None
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
