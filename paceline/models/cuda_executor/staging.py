"""`Staging`: moves the rows of a pass to static tensors on the device with one copy.

Passes of up to `LARGEST` rows are padded to one of `BUCKETS`, so that few shapes occur and each can be a CUDA graph.
Larger passes (prompts) get new tensors. Not for the meaning of the packed numbers (`paged_rows.py`).
"""

from bisect import bisect_left

import numpy as np
import torch
from torch import Tensor

from paceline.models.architecture.config import ModelConfig
from paceline.models.base import Rows, pages_for
from paceline.models.cuda_executor.paged_rows import FIELDS, PagedRows, pack, pack_levels, packed_size

BUCKETS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320)
"""Numbers of rows that passes are padded to."""
LARGEST = BUCKETS[-1]
_FEWEST = 8
"""Fewest rows that a chain's are padded to. So few cost as much as one, and their number, that of the tokens that were
accepted before, differs from draft to draft: each number would have graphs of its own."""
_MOST_SEGMENTS = 64
_MOST_ASIDE = 64
"""Room for pages of a request, and branch slots of a row, in addition to those of its positions."""


def bucket_of(num_rows: int) -> int | None:
    """The number of rows that `num_rows` are padded to; None when there are too many."""
    return None if num_rows > LARGEST else BUCKETS[bisect_left(BUCKETS, num_rows)]


def chain_bucket(rows: Rows) -> int | None:
    """As `bucket_of`, for rows that chains are drafted after, at least `_FEWEST`."""
    return bucket_of(max(len(rows.token_ids), _FEWEST))


def asked_bucket(num_asked: int, bucket: int) -> int:
    """Number of rows whose logits are computed for `num_asked` logit rows of a bucket: none, a few or all."""
    few = min(BUCKETS[6], bucket)
    return 0 if not num_asked else few if num_asked <= few else bucket


class Pinned:
    """A static int32 tensor on a device, written through memory of the host; on a GPU copies are asynchronous.

    Attributes:
        size: its numbers.
        static: the tensor.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        is_cuda = device.type == "cuda"
        self.size = size
        self._host = torch.empty(size, dtype=torch.int32, pin_memory=is_cuda)
        self._buffer = self._host.numpy()
        self.static = torch.zeros(size, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event() if is_cuda else None

    def writable(self) -> np.ndarray:
        """The host's memory, after waiting for its latest copy to complete."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._buffer

    def send(self, size: int) -> None:
        """Copy the first `size` numbers to the device."""
        self.static[:size].copy_(self._host[:size], non_blocking=True)
        if self._copied is not None:
            self._copied.record()


class Staging:
    """The static tensors of one model's passes.

    Args:
        config: limits the pages of a request.
        device: device of the tensors; on a GPU copies are asynchronous, from pinned memory.
    """

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        pages = pages_for(config.max_position_embeddings) + _MOST_ASIDE
        self._capacity = LARGEST * (len(FIELDS) + _MOST_ASIDE) + _MOST_SEGMENTS * pages
        self._device, self._pinned = device, Pinned(self._capacity, device)
        self._views: dict[tuple[int, int], PagedRows] = {}
        self._chains: dict[tuple[int, int, int, int], tuple[PagedRows, list[PagedRows]]] = {}

    @property
    def packed(self) -> Tensor:
        """The static tensor, packed as by `pack`."""
        return self._pinned.static

    def fits(self, rows: Rows) -> bool:
        """Whether `rows` can be placed in the static tensors."""
        bucket = bucket_of(len(rows.token_ids))
        return bucket is not None and packed_size(rows, bucket) <= self._capacity

    def place(self, rows: Rows, spare_slot: int, tile_size: int, splits: int) -> PagedRows:
        """`rows` that fit, in the static tensors of their bucket; arguments as of `pack`."""
        bucket = bucket_of(len(rows.token_ids))
        assert bucket is not None
        size = packed_size(rows, bucket)
        pack(rows, bucket, spare_slot, tile_size, self._pinned.writable()[:size])
        self._pinned.send(size)
        if (bucket, splits) not in self._views:
            self._views[bucket, splits] = PagedRows.of(self.packed, bucket, splits)
        return self._views[bucket, splits]

    def fits_chain(self, rows: Rows, num_levels: int) -> bool:
        """Whether `rows` and `num_levels` levels below their logit rows fit the static tensors for `place_chain`."""
        bucket = chain_bucket(rows)
        return bucket is not None and _chain_size(rows, bucket, num_levels, bucket) <= self._capacity

    def place_chain(
        self, rows: Rows, num_levels: int, spare_slot: int, tile_size: int, splits: int
    ) -> tuple[PagedRows, list[PagedRows]]:
        """`rows` and the batches of `levels_below` them, which fit, in static tensors, each padded to its bucket.

        Args:
            spare_slot, tile_size: as of `pack`; each row of a level is a tile of its own.
        """
        bucket, own = chain_bucket(rows), bucket_of(len(rows.logit_rows))
        assert bucket is not None and own is not None
        size = _chain_size(rows, bucket, num_levels, own)
        _pack_chain(rows, bucket, num_levels, own, spare_slot, tile_size, self._pinned.writable()[:size])
        self._pinned.send(size)
        key = bucket, splits, own, num_levels
        if key not in self._chains:
            self._chains[key] = _placed_chain(self.packed, bucket, splits, own, num_levels)
        return self._chains[key]

    def place_chain_apart(
        self, rows: Rows, num_levels: int, spare_slot: int, tile_size: int, splits: int
    ) -> tuple[PagedRows, list[PagedRows]]:
        """As `place_chain` for any number of rows, without padding, in new tensors."""
        size, own = len(rows.token_ids), len(rows.logit_rows)
        packed = np.empty(_chain_size(rows, size, num_levels, own), np.int32)
        _pack_chain(rows, size, num_levels, own, spare_slot, tile_size, packed)
        return _placed_chain(torch.from_numpy(packed).to(self._device), size, splits, own, num_levels)

    def place_apart(self, rows: Rows, spare_slot: int, tile_size: int, splits: int) -> PagedRows:
        """As `place` for any number of rows, without padding, in new tensors."""
        size = len(rows.token_ids)
        packed = np.empty(packed_size(rows, size), np.int32)
        pack(rows, size, spare_slot, tile_size, packed)
        return PagedRows.of(torch.from_numpy(packed).to(self._device), size, splits)


def _chain_size(rows: Rows, num_rows: int, num_levels: int, num_below: int) -> int:
    """Numbers of `rows` padded to `num_rows`, and of their levels, each padded to `num_below`."""
    return num_levels * len(FIELDS) * num_below + packed_size(rows, num_rows)


def _pack_chain(
    rows: Rows, num_rows: int, num_levels: int, num_below: int, spare_slot: int, tile_size: int, out: np.ndarray
) -> None:
    """Write the lines of each level, then `rows`, whose page tables all share."""
    lines = out[: num_levels * len(FIELDS) * num_below].reshape(num_levels, len(FIELDS), num_below)
    pack_levels(rows, spare_slot, lines)
    pack(rows, num_rows, spare_slot, tile_size, out[lines.size :])


def _placed_chain(
    packed: Tensor, num_rows: int, splits: int, num_below: int, num_levels: int
) -> tuple[PagedRows, list[PagedRows]]:
    """Views into what `_pack_chain` wrote."""
    rows = PagedRows.of(packed[num_levels * len(FIELDS) * num_below :], num_rows, splits)
    return rows, PagedRows.levels(packed, num_below, splits, num_levels, rows.flat)
