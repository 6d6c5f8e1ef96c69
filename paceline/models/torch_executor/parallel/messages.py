"""Messages from rank 0 to the others: a command and a few integer arrays, sent as two tensors.

Nothing is unpickled, so a message cannot run code. Results are sent as tensors of known shape (`links.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from paceline.models.base import Rows

_MOST_ARRAYS = 12
HEADER_LENGTH = 2 + 2 * _MOST_ARRAYS
"""Command, number of arrays, and (rows, columns) of each array; -1 columns for a vector."""
_ROWS_FIELDS = [field.name for field in fields(Rows)]


class Command(IntEnum):
    """Commands, which all ranks execute together."""

    FORWARD = 0
    NEW_CACHE = 1
    DROP_CACHES = 2
    MOVE = 3
    READ = 4
    MEASURE = 5
    CLOSE = 6
    JOIN = 7


@dataclass(frozen=True, eq=False, slots=True)
class Message:
    """A command and its arrays, each int32 with one or two dimensions."""

    command: Command
    arrays: tuple[np.ndarray, ...] = ()

    def header(self) -> Tensor:
        """The header, [HEADER_LENGTH] int64."""
        shapes = [n for array in self.arrays for n in (array.shape if array.ndim == 2 else (len(array), -1))]
        header = np.zeros(HEADER_LENGTH, np.int64)
        header[: 2 + len(shapes)] = [self.command, len(self.arrays), *shapes]
        return torch.from_numpy(header)

    def payload(self) -> Tensor:
        """The arrays one after the other, int32."""
        flat = [np.asarray(array, np.int32).ravel() for array in self.arrays]
        return torch.from_numpy(np.concatenate(flat) if flat else np.zeros(0, np.int32))


def payload_length(header: Tensor) -> int:
    """Number of integers in the payload after `header`."""
    return sum(rows * abs(columns) for rows, columns in _shapes(header))


def decode(header: Tensor, payload: Tensor) -> Message:
    """The message that was sent as these two tensors."""
    arrays, at, flat = [], 0, payload.numpy()
    for rows, columns in _shapes(header):
        end = at + rows * abs(columns)
        arrays.append(flat[at:end] if columns < 0 else flat[at:end].reshape(rows, columns))
        at = end
    return Message(Command(int(header[0])), tuple(arrays))


def integers(*values: int) -> np.ndarray:
    """A vector for a message."""
    return np.asarray(values, np.int32)


def arrays_of(rows: Rows) -> tuple[np.ndarray, ...]:
    """The arrays of `rows`, in the order that `rows_of` takes them."""
    values = [getattr(rows, name) for name in _ROWS_FIELDS]
    return tuple(value for value in values if value is not None)


def rows_of(arrays: Sequence[np.ndarray]) -> Rows:
    """The rows whose arrays these are; the last field may be missing, as it may be in `Rows`."""
    return Rows(**dict(zip(_ROWS_FIELDS, arrays, strict=False)))


def _shapes(header: Tensor) -> list[tuple[int, int]]:
    values = header.tolist()
    return list(zip(values[2 : 2 + 2 * values[1] : 2], values[3 : 3 + 2 * values[1] : 2], strict=True))
