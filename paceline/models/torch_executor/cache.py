"""Paged keys and values in torch tensors, and masks of the slots that each row attends to."""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from paceline.models.architecture.config import ModelConfig
from paceline.models.base import PAGE_SIZE, Rows
from paceline.models.state_book import KeepsStates, StateStore


def unwritten_zeros(shape: Sequence[int], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Zeros whose memory is allocated lazily on a CPU, when it is first written; torch would fill all of it at once."""
    if device.type != "cpu":
        return torch.zeros(tuple(shape), device=device, dtype=dtype)
    num_bytes = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, np.uint8)).view(dtype).view(tuple(shape))


class TorchKVCache:
    """Keys and values in the model's own number format.

    `spare_slots` follow those of the pages; they take the writes of padding rows.

    Attributes:
        keys, values: by layer that keeps some, [slots, kv_heads, head_dim]; one tensor where all sizes are equal.
    """

    keys: Sequence[torch.Tensor] | torch.Tensor
    values: Sequence[torch.Tensor] | torch.Tensor

    def __init__(
        self, config: ModelConfig, num_pages: int, device: torch.device, dtype: torch.dtype, spare_slots: int = 0
    ) -> None:
        self._num_pages, self.device = num_pages, device
        slots = num_pages * PAGE_SIZE + spare_slots
        sizes = [config.sizes(layer) for layer in config.attention_layers[: config.num_cache_layers]]
        shapes = [(one.num_key_value_heads, one.head_dim) for one in sizes]
        counts = Counter(shapes).items()
        pairs = [
            {shape: unwritten_zeros((count, slots, *shape), device, dtype) for shape, count in counts} for _ in range(2)
        ]
        self._stored = [stored for pair in pairs for stored in pair.values()]
        self.keys, self.values = (_by_layer(pair, shapes) for pair in pairs)

    @property
    def num_pages(self) -> int:
        """See `KVCache.num_pages`."""
        return self._num_pages

    @property
    def num_bytes(self) -> int:
        """See `KVCache.num_bytes`."""
        return sum(stored[:, : self._num_pages * PAGE_SIZE].nbytes for stored in self._stored)

    @torch.inference_mode()
    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy slots `sources` to `destinations`; indexing on the right makes a copy, so all reads come first."""
        self._move(self._index(sources), self._index(destinations))

    def _move(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        for stored in self._stored:
            stored[:, destination] = stored[:, source]

    def read(self, slots: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values [layers, len(slots), kv_heads, head_dim] float32; where sizes differ [layers, len(slots), 1,
        numbers of the widest layer], with zeros after those of others."""
        index = self._index(slots)
        return _read(self.keys, index), _read(self.values, index)

    @torch.inference_mode()
    def write(self, slots: Sequence[int] | np.ndarray, keys: np.ndarray, values: np.ndarray) -> None:
        """See `TakesKeys.write`; in the form of `read`."""
        index = self._index(slots)
        for layers, given in ((self.keys, keys), (self.values, values)):
            _write(layers, index, torch.from_numpy(np.ascontiguousarray(given)))

    def _index(self, slots: Sequence[int] | np.ndarray) -> torch.Tensor:
        return torch.as_tensor(np.asarray(slots, dtype=np.int64), device=self.device)


def _by_layer(
    stored: dict[tuple[int, int], torch.Tensor], shapes: Sequence[tuple[int, int]]
) -> Sequence[torch.Tensor] | torch.Tensor:
    """What layers of these shapes keep, of tensors [layers of a shape, slots, *shape]."""
    if len(stored) == 1:
        [every] = stored.values()
        return every
    layers = {shape: iter(own) for shape, own in stored.items()}
    return [next(layers[shape]) for shape in shapes]


def _read(layers: Sequence[torch.Tensor] | torch.Tensor, index: torch.Tensor) -> np.ndarray:
    """See `TorchKVCache.read`."""
    if isinstance(layers, torch.Tensor):
        return layers[:, index].float().cpu().numpy()
    widest = max(layer[0].numel() for layer in layers)
    rows = [layer[index].float().flatten(1) for layer in layers]
    return torch.stack([functional.pad(row, (0, widest - row.shape[1]))[:, None] for row in rows]).cpu().numpy()


def _write(layers: Sequence[torch.Tensor] | torch.Tensor, index: torch.Tensor, given: torch.Tensor) -> None:
    """Put what `_read` returns in place."""
    given = given.to(layers[0].device, layers[0].dtype)
    if isinstance(layers, torch.Tensor):
        layers[:, index] = given
        return
    for layer, own in zip(layers, given, strict=True):
        layer[index] = own.flatten(1)[:, : layer[0].numel()].reshape(-1, *layer.shape[1:])


class StatefulCache(KeepsStates, TorchKVCache):
    """A cache of a model with recurrent layers, whose states are in the memory of the host; see `HoldsStates`."""

    def __init__(self, config: ModelConfig, num_pages: int, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__(config, num_pages, device, dtype)
        assert config.recurrence is not None
        self.store = StateStore(config.recurrence)


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
