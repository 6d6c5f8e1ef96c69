"""`Staging`: moves the rows of a pass to static tensors on the device with one copy.

Passes of up to `LARGEST` rows are padded to one of `BUCKETS`, so that few shapes occur and each can be a CUDA graph.
Larger passes (prompts) get new tensors. Not for the meaning of the packed numbers (`paged_rows.py`).
"""

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paceline.models.base import Rows, pages_for
from paceline.models.config import ModelConfig
from paceline.models.cuda_executor.paged_rows import FIELDS, PagedRows, pack, pack_flat, pack_lines, packed_size

BUCKETS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320)
"""Numbers of rows that passes are padded to."""
LARGEST = BUCKETS[-1]
_MOST_SEGMENTS = 64
_MOST_ASIDE = 64
"""Room for pages of a request, and branch slots of a row, in addition to those of its positions."""


def bucket_of(num_rows: int) -> int | None:
    """The number of rows that `num_rows` are padded to; None when there are too many."""
    return None if num_rows > LARGEST else BUCKETS[bisect_left(BUCKETS, num_rows)]


def asked_bucket(num_asked: int, bucket: int) -> int:
    """Number of rows whose logits are computed for `num_asked` logit rows of a bucket: none, a few or all."""
    few = min(BUCKETS[6], bucket)
    return 0 if not num_asked else few if num_asked <= few else bucket


class Staging:
    """The static tensors of one model's passes.

    Args:
        config: limits the pages of a request.
        device: device of the tensors; on a GPU copies are asynchronous, from pinned memory.
    """

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        pages = pages_for(config.max_position_embeddings) + _MOST_ASIDE
        self._capacity = LARGEST * (len(FIELDS) + _MOST_ASIDE) + _MOST_SEGMENTS * pages
        self._device, self._is_cuda = device, device.type == "cuda"
        self._host = torch.empty(self._capacity, dtype=torch.int32, pin_memory=self._is_cuda)
        self._buffer = self._host.numpy()
        self._static = torch.zeros(self._capacity, dtype=torch.int32, device=device)
        self._copied = torch.cuda.Event() if self._is_cuda else None
        self._views: dict[tuple[int, int], PagedRows] = {}

    @property
    def packed(self) -> Tensor:
        """The static tensor, packed as by `pack`."""
        return self._static

    def fits(self, rows: Rows) -> bool:
        """Whether `rows` can be placed in the static tensors."""
        bucket = bucket_of(len(rows.token_ids))
        return bucket is not None and packed_size(rows, bucket) <= self._capacity

    def place(self, rows: Rows, spare_slot: int, tile_size: int, splits: int) -> PagedRows:
        """`rows` that fit, in the static tensors of their bucket; arguments as of `pack`."""
        bucket = bucket_of(len(rows.token_ids))
        assert bucket is not None
        size = packed_size(rows, bucket)
        pack(rows, bucket, spare_slot, tile_size, self._writable()[:size])
        self._send(size)
        if (bucket, splits) not in self._views:
            self._views[bucket, splits] = PagedRows.of(self._static, bucket, splits)
        return self._views[bucket, splits]

    def fits_levels(self, levels: Sequence[Rows]) -> bool:
        """Whether `levels` fit the static tensors for `place_levels`."""
        bucket = bucket_of(len(levels[0].token_ids))
        return bucket is not None and _levels_size(levels, bucket) <= self._capacity

    def place_levels(self, levels: Sequence[Rows], spare_slot: int, splits: int) -> list[PagedRows]:
        """The batches of `levels_below`, which fit, in static tensors of their bucket, each row a tile of its own."""
        bucket = bucket_of(len(levels[0].token_ids))
        assert bucket is not None
        size = _levels_size(levels, bucket)
        _pack_levels(levels, bucket, spare_slot, self._writable()[:size])
        self._send(size)
        return PagedRows.levels(self._static, bucket, splits, len(levels))

    def place_levels_apart(self, levels: Sequence[Rows], spare_slot: int, splits: int) -> list[PagedRows]:
        """As `place_levels` for batches of any size, in new tensors."""
        size = len(levels[0].token_ids)
        packed = np.empty(_levels_size(levels, size), np.int32)
        _pack_levels(levels, size, spare_slot, packed)
        return PagedRows.levels(torch.from_numpy(packed).to(self._device), size, splits, len(levels))

    def place_apart(self, rows: Rows, spare_slot: int, tile_size: int, splits: int) -> PagedRows:
        """As `place` for any number of rows, without padding, in new tensors."""
        size = len(rows.token_ids)
        packed = np.empty(packed_size(rows, size), np.int32)
        pack(rows, size, spare_slot, tile_size, packed)
        return PagedRows.of(torch.from_numpy(packed).to(self._device), size, splits)

    def _writable(self) -> np.ndarray:
        """The host buffer, after waiting for its latest copy to complete."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._buffer

    def _send(self, size: int) -> None:
        self._static[:size].copy_(self._host[:size], non_blocking=True)
        if self._copied is not None:
            self._copied.record()


def _levels_size(levels: Sequence[Rows], num_rows: int) -> int:
    return len(levels) * len(FIELDS) * num_rows + levels[0].page_tables.size


def _pack_levels(levels: Sequence[Rows], num_rows: int, spare_slot: int, out: np.ndarray) -> None:
    """Write the lines of each level, padded to `num_rows` rows, and their common page tables."""
    lines = out[: len(levels) * len(FIELDS) * num_rows].reshape(len(levels), len(FIELDS), num_rows)
    for rows, own in zip(levels, lines, strict=True):
        pack_lines(rows, spare_slot, 1, own)
    pack_flat(levels[0], out[lines.size :])
