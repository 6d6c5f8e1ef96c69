"""`DeviceStates`: rows of hidden states that stay on a torch device; slicing them costs the device nothing."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.models.states import States


class DeviceStates:
    """Some rows and columns of a table; see `OnDevice`.

    A step cuts its states several times per request, and an operation on a tensor takes the host microseconds. So
    slices are numbers until `tensor` is called.

    Args:
        table: [n, width], never overwritten.
        rows, columns: the part of it; by default all.
    """

    __slots__ = ("_columns", "_rows", "_table")

    def __init__(self, table: Tensor, rows: range | None = None, columns: range | None = None) -> None:
        self._table = table
        self._rows = range(table.shape[0]) if rows is None else rows
        self._columns = range(table.shape[1]) if columns is None else columns

    @property
    def table(self) -> Tensor:
        """See `OnDevice`."""
        return self._table

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: slice | list[int]) -> "DeviceStates":
        if isinstance(rows, slice):
            return DeviceStates(self._table, self._rows[rows], self._columns)
        runs = [DeviceStates(self._table, self._rows[first:end], self._columns) for first, end in _runs(rows)]
        if len(runs) == 1:
            return runs[0]
        return DeviceStates(
            torch.cat([run.tensor() for run in runs])
        )  # a list as index would be copied, and waited for

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.tensor().float().cpu().numpy().astype(dtype or np.float32, copy=False)

    def tensor(self) -> Tensor:
        """[n, width], a view."""
        return self._table[self._rows.start : self._rows.stop, self._columns.start : self._columns.stop]

    def copy(self) -> "DeviceStates":
        """See `OnDevice`."""
        return self

    def by_column(self, width: int) -> "list[DeviceStates]":
        """The states of each tap, of `width` columns."""
        ends = range(width, len(self._columns) + 1, width)
        return [DeviceStates(self._table, self._rows, self._columns[end - width : end]) for end in ends]

    def joined(self, parts: Sequence[States], axis: int) -> "DeviceStates":
        """See `OnDevice`; columns that are side by side in one table are joined without an operation."""
        if axis == 0 and len(parts) == 1 and isinstance(parts[0], DeviceStates):
            return parts[0]
        if axis == 1 and (whole := _side_by_side(parts)) is not None:
            return whole
        return DeviceStates(torch.cat([tensor_of(part, self._table.device) for part in parts], dim=axis))

    def next_to(self, other: "DeviceStates") -> bool:
        """Whether these are the same rows of the same table, one column after the last of `other`."""
        mine, theirs = (self._table, self._rows), (other._table, other._rows)
        return mine[0] is theirs[0] and mine[1] == theirs[1] and self._columns.start == other._columns.stop

    def up_to(self, last: "DeviceStates") -> "DeviceStates":
        """These columns and all up to the last of `last`, of the same rows."""
        return DeviceStates(self._table, self._rows, range(self._columns.start, last._columns.stop))


def tensor_of(states: States, device: torch.device) -> Tensor:
    """`states` as a tensor on `device`, in the format they have."""
    if isinstance(states, DeviceStates):
        return states.tensor()
    return torch.from_numpy(np.ascontiguousarray(states, np.float32)).to(device)


def _runs(rows: Sequence[int]) -> list[tuple[int, int]]:
    """(first, end) of each run of consecutive numbers in `rows`."""
    edges = [0, *[place for place in range(1, len(rows)) if rows[place] != rows[place - 1] + 1], len(rows)]
    return [(rows[start], rows[end - 1] + 1) for start, end in pairwise(edges)]


def _side_by_side(parts: Sequence[States]) -> DeviceStates | None:
    own = [part for part in parts if isinstance(part, DeviceStates)]
    if len(own) < len(parts) or not all(after.next_to(before) for before, after in pairwise(own)):
        return None
    return own[0].up_to(own[-1])
