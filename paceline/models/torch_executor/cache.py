"""Paged keys and values in torch tensors, and masks of the slots that each row attends to."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paceline.models.architecture.config import ModelConfig
from paceline.models.base import PAGE_SIZE, Rows
from paceline.models.state_book import KeepsStates, StateStore


def unwritten_zeros(shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Zeros whose memory is allocated lazily on a CPU, when it is first written; torch would fill all of it at once."""
    if device.type != "cpu":
        return torch.zeros(tuple(shape), device=device, dtype=dtype)
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, np.uint8)).view(dtype).view(tuple(shape))


def stored_heads(cached: torch.Tensor, heads: int, size: int) -> torch.Tensor:
    """[slots, heads, size], a view of what a cache keeps of a layer: [slots, 1, numbers of the widest layer]."""
    return cached[:, 0, : heads * size].unflatten(-1, (heads, size))


class TorchKVCache:
    """Keys and values [layers with attention, slots, kv_heads, head_dim] in the model's own number format.

    Where the heads of layers differ they are [layers with keys, slots, 1, numbers of the widest layer].
    `spare_slots` follow those of the pages; they take the writes of padding rows.
    """

    def __init__(
        self, config: ModelConfig, num_pages: int, device: torch.device, dtype: torch.dtype, spare_slots: int = 0
    ) -> None:
        self._num_pages = num_pages
        slots = num_pages * PAGE_SIZE + spare_slots
        shape = (len(config.attention_layers), slots, config.num_key_value_heads, config.head_dim)
        if config.layer_sizes:
            widest = max(one.num_key_value_heads * one.head_dim for one in config.layer_sizes)
            shape = (config.num_cache_layers, slots, 1, widest)
        self.keys, self.values = (unwritten_zeros(shape, device, dtype) for _ in range(2))

    @property
    def num_pages(self) -> int:
        """See `KVCache.num_pages`."""
        return self._num_pages

    @property
    def num_bytes(self) -> int:
        """See `KVCache.num_bytes`."""
        return sum(stored[:, : self._num_pages * PAGE_SIZE].nbytes for stored in (self.keys, self.values))

    @torch.inference_mode()
    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy slots `sources` to `destinations`; indexing on the right makes a copy, so all reads come first."""
        self._move(self._index(sources), self._index(destinations))

    def _move(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        for stored in (self.keys, self.values):
            stored[:, destination] = stored[:, source]

    def read(self, slots: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values [layers, len(slots), kv_heads, head_dim] float32."""
        index = self._index(slots)
        return self.keys[:, index].float().cpu().numpy(), self.values[:, index].float().cpu().numpy()

    @torch.inference_mode()
    def write(self, slots: Sequence[int] | np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        """See `TakesKeys.write`."""
        index = self._index(slots)
        for stored, given in ((self.keys, keys), (self.values, values)):
            stored[:, index] = torch.from_numpy(np.ascontiguousarray(given)).to(stored.device, stored.dtype)

    def _index(self, slots: Sequence[int] | np.ndarray) -> torch.Tensor:
        return torch.as_tensor(np.asarray(slots, dtype=np.int64), device=self.keys.device)


class StatefulCache(KeepsStates, TorchKVCache):
    """A cache of a model with recurrent layers, whose states are in the memory of the host; see `HoldsStates`."""

    def __init__(self, config: ModelConfig, num_pages: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(config, num_pages, device, dtype)
        assert config.recurrence is not None
        self.store = StateStore(config.recurrence)

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """See `TorchKVCache.move`; a state goes to its new slot."""
        super().move(sources, destinations)
        self.store.book.move(sources, destinations)


@dataclass(frozen=True, eq=False, slots=True)
class SegmentView:
    """The slots that the rows of one segment attend to.

    Attributes:
        rows: [m] the segment's rows.
        slots: [n] every cache slot that one of them attends to.
        masks: by window, which of the slots each row attends to, [m, n]; window 0 is no window.
    """

    rows: torch.Tensor
    slots: torch.Tensor
    masks: dict[int, torch.Tensor]


def segment_views(rows: Rows, device: torch.device, windows: Collection[int] = (0,)) -> list[SegmentView]:
    """One view per segment, with a mask for each of `windows`.

    Tree branches need no special case: a row attends to exactly its `Rows.key_slots`, or to the last ones in a window.
    """
    views = []
    for segment in np.unique(rows.segments):
        members = np.flatnonzero(rows.segments == segment)
        seen = [rows.key_slots(int(row)) for row in members]
        slots = np.unique(np.concatenate(seen)).astype(np.int64)
        masks = {window: torch.from_numpy(_mask(slots, seen, window)).to(device) for window in windows}
        views.append(SegmentView(torch.from_numpy(members).to(device), torch.from_numpy(slots).to(device), masks))
    return views


def _mask(slots: np.ndarray, seen: Sequence[np.ndarray], window: int) -> np.ndarray:
    """[rows, slots] whether a row sees a slot; `seen` are the slots of each row in order of position."""
    mask = np.zeros((len(seen), len(slots)), dtype=bool)
    for own, of_row in zip(mask, seen, strict=True):
        own[np.searchsorted(slots, of_row[-window:])] = True
    return mask
