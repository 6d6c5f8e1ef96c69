"""`States`: the target's hidden states, as rows of an array where they were computed: on the host or on a device.

Executors on the host return NumPy arrays. One on a device may return rows that stay there (`OnDevice`), so that a head
beside it reads them without a copy to the host and back; as an array they are fetched. Not for their meaning
(`drafters/heads/hidden_states.py`).
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np


class OnDevice(Protocol):
    """Rows [n, width] on a device that no later pass overwrites. `np.asarray` waits for the device and fetches them.

    Attributes:
        table: all rows of the pass that they are part of, which they keep in memory.
    """

    @property
    def table(self) -> Any:
        """See the class."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice | list[int]) -> "OnDevice":
        """Some of the rows, without waiting for the device."""
        ...

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...

    def copy(self) -> "OnDevice":
        """The rows themselves: nothing overwrites them."""
        ...

    def joined(self, parts: "Sequence[States]", axis: int) -> "OnDevice":
        """`concatenate` on this device, without waiting for it unless some of `parts` are arrays."""
        ...


States = np.ndarray | OnDevice


def concatenate(parts: Sequence[States], axis: int = 0) -> States:
    """The rows of all `parts` (axis 0), or their columns side by side (axis 1); on a device if one of them is."""
    there = next((part for part in parts if not isinstance(part, np.ndarray)), None)
    return np.concatenate(parts, axis) if there is None else there.joined(parts, axis)  # type: ignore[arg-type]
