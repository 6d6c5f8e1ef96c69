"""`Fetch` and `Send`: asynchronous copies from the device to the host and back.

A copy to or from pageable memory waits for all work that was launched. Copies to pinned memory are followed by an
event, so that waiting for them does not wait for work that was launched later.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import ref

import numpy as np
import torch
from torch import Tensor

_BUFFERS = 2
_FEWEST_BYTES, _MOST_BYTES = 1 << 16, 1 << 26
"""Of a fetch's buffer. Larger fetches, of many rows of logits, are waited for."""
_SENT_BYTES = 1 << 20
_ALIGNED = 16


@dataclass(eq=False, slots=True, weakref_slot=True)
class Fetched:
    """Copies in progress, which may be waited for once."""

    _copies: Sequence[Tensor]
    _done: "torch.cuda.Event | None"
    has_arrived: bool = False

    @property
    def is_there(self) -> bool:
        """Whether the copies are complete; False where they were made at once, as what was before that is unknown."""
        return self._done is not None and self._done.query()

    def wait(self) -> list[np.ndarray]:
        """Wait for the copies and return them; later fetches do not overwrite them."""
        if self._done is None:
            return [copy.numpy() for copy in self._copies]
        self._done.synchronize()
        found = [copy.numpy().copy() for copy in self._copies]
        self.has_arrived = True
        return found


class _Buffer:
    """Pinned memory of `size` bytes for one fetch at a time."""

    def __init__(self, size: int) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self.arrived = torch.cuda.Event()
        self.user: Callable[[], Fetched | None] = lambda: None

    @property
    def is_free(self) -> bool:
        """Whether nobody will read it any more. A copy that is still on its way ends before a later one begins."""
        user = self.user()
        return user is None or user.has_arrived


class Fetch:
    """Copies from `device`. Any number may be on their way; one that nobody waits for may be dropped."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: list[_Buffer] = []

    def __call__(self, *tables: Tensor) -> Fetched:
        """Start to copy `tables`, with the contents that they have after all work launched so far."""
        sizes = [-(-table.nbytes // _ALIGNED) * _ALIGNED for table in tables]
        if self._device.type != "cuda" or sum(sizes) > _MOST_BYTES:
            return Fetched([table.to("cpu", copy=True) for table in tables], None)
        buffer = self._free_buffer(sum(sizes))
        copies, start = [], 0
        for table, size in zip(tables, sizes, strict=True):
            place = buffer.memory[start : start + table.nbytes].view(table.dtype).view(table.shape)
            copies.append(place.copy_(table, non_blocking=True))
            start += size
        buffer.arrived.record(torch.cuda.current_stream(self._device))  # the default would be the current device's
        fetched = Fetched(copies, buffer.arrived)
        buffer.user = ref(fetched)
        return fetched

    def _free_buffer(self, size: int) -> _Buffer:
        """A buffer of at least `size` bytes; sizes are powers of two, so that few are made."""
        for buffer in self._buffers:
            if buffer.is_free and len(buffer.memory) >= size:
                return buffer
        self._buffers.append(_Buffer(max(_FEWEST_BYTES, 1 << (size - 1).bit_length())))
        return self._buffers[-1]


class Send:
    """Copies of small arrays to `device`, which do not wait for the work there; large ones do."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._turn, self._used = device, 0, 0
        self._buffers: list[Tensor] = []

    def begin(self) -> None:
        """Begin a group of copies, after waiting for those of the group before the last."""
        if self._device.type != "cuda":
            return
        if not self._buffers:
            self._buffers = [torch.empty(_SENT_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(_BUFFERS)]
            self._events = [torch.cuda.Event() for _ in range(_BUFFERS)]
        elif self._used:
            self._events[self._turn].record(torch.cuda.current_stream(self._device))
        self._turn, self._used = (self._turn + 1) % _BUFFERS, 0
        self._events[self._turn].synchronize()

    def __call__(self, values: np.ndarray) -> Tensor:
        """The values on the device."""
        given = torch.from_numpy(values)
        end = self._used + given.nbytes
        if self._device.type != "cuda" or end > _SENT_BYTES or not given.nbytes:
            return given.to(self._device)
        pinned = self._buffers[self._turn][self._used : end].view(given.dtype).view(given.shape)
        self._used = -(-end // _ALIGNED) * _ALIGNED
        return pinned.copy_(given).to(self._device, non_blocking=True)
