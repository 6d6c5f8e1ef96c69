"""Messages from rank 0 to the others: a command and a few integer arrays, sent as one tensor, or two if they are long.

Nothing is unpickled, so a message cannot run code. Results are sent as tensors of known shape (`links.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from paceline.models.base import Rows

FIRST = 4096
"""Numbers in the first tensor of every message. What a step of decoding needs fits, so a step takes one message."""
_ROWS_FIELDS = [field.name for field in fields(Rows)]


class Command(IntEnum):
    """Commands, which all ranks execute together; each executor has those that it needs."""

    FORWARD = 0
    NEW_CACHE = 1
    DROP_CACHES = 2
    MOVE = 3
    READ = 4
    MEASURE = 5
    CLOSE = 6
    JOIN = 7
    CHAIN = 8
    WEIGH_PAGES = 9
    WRITE = 10


@dataclass(frozen=True, eq=False, slots=True)
class Message:
    """A command and its arrays, each int32 with one or two dimensions."""

    command: Command
    arrays: tuple[np.ndarray, ...] = ()

    def tensors(self) -> tuple[Tensor, Tensor]:
        """The message in int32: its first `FIRST` numbers, zeros after the last, and the rest.

        It begins with the command, the number of arrays, and (rows, columns) of each array, -1 columns for a vector.
        """
        shapes = [n for array in self.arrays for n in (array.shape if array.ndim == 2 else (len(array), -1))]
        parts = [integers(self.command, len(self.arrays), *shapes), *(np.ravel(array) for array in self.arrays)]
        flat, first = np.concatenate(parts).astype(np.int32, copy=False), np.zeros(FIRST, np.int32)
        first[: len(flat)] = flat[:FIRST]
        return torch.from_numpy(first), torch.from_numpy(flat[FIRST:])


def length_of_rest(first: Tensor) -> int:
    """Numbers in the second tensor of the message that begins with `first`."""
    shapes = _shapes(first.numpy())
    return max(0, 2 + 2 * len(shapes) + sum(rows * abs(columns) for rows, columns in shapes) - FIRST)


def decode(first: Tensor, rest: Tensor) -> Message:
    """The message that was sent as these two tensors."""
    flat = np.concatenate([first.numpy(), rest.numpy()]) if len(rest) else first.numpy()
    arrays, shapes = [], _shapes(flat)
    at = 2 + 2 * len(shapes)
    for rows, columns in shapes:
        end = at + rows * abs(columns)
        arrays.append(flat[at:end] if columns < 0 else flat[at:end].reshape(rows, columns))
        at = end
    return Message(Command(int(flat[0])), tuple(arrays))


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


def _shapes(flat: np.ndarray) -> list[tuple[int, int]]:
    """(rows, columns) of each array of a message."""
    return [(int(rows), int(columns)) for rows, columns in flat[2 : 2 + 2 * flat[1]].reshape(-1, 2)]
