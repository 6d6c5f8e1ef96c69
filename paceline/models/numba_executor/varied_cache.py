"""`VariedCache`: paged keys and values of layers whose heads differ.

A page has the heads of one layer after those of another, so that no layer is padded to the size of another. Neighbours
that are alike are a `NumbaCache` on their part of the pages. Not for how a token is written or read in a pass, which is
the same for all caches.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from paceline.models.base import PAGE_SIZE
from paceline.models.numba_executor.kv_cache import new_kv_cache, row_bytes


class _Alike(NamedTuple):
    """Neighbouring layers with the same heads."""

    cached: int
    kv_heads: int
    head_dim: int


class VariedCache:
    """Keys and values [pages, elements].

    Args:
        heads: (key-value heads, head_dim) of each layer that computes keys.
        num_pages: pages of `PAGE_SIZE` slots.
        dtype: one of `kv_cache.CACHE_DTYPES`.
    """

    def __init__(self, heads: Sequence[tuple[int, int]], num_pages: int, dtype: str) -> None:
        self.num_pages = num_pages
        alike = [_Alike(len(list(same)), *one) for one, same in groupby(heads)]
        sizes = [
            PAGE_SIZE * each.cached * each.kv_heads * (row_bytes(each.head_dim) if dtype == "int8" else each.head_dim)
            for each in alike
        ]
        self.keys, self.values = (np.zeros((num_pages, sum(sizes)), dtype) for _ in range(2))
        ends = np.cumsum(sizes).tolist()
        self._parts = [
            new_kv_cache(each, num_pages, dtype, (self.keys[:, end - size : end], self.values[:, end - size : end]))
            for each, size, end in zip(alike, sizes, ends, strict=True)
        ]

    @property
    def num_bytes(self) -> int:
        """See `KVCache.num_bytes`."""
        return self.keys.nbytes + self.values.nbytes

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy slots, all reads before any write."""
        for part in self._parts:
            part.move(sources, destinations)

    def read(self, slots: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values [layers with keys, len(slots), 1, numbers of the widest layer], zeros after shorter ones."""
        found = [part.read(slots) for part in self._parts]
        return _beside([keys for keys, _ in found]), _beside([values for _, values in found])


def _beside(parts: Sequence[np.ndarray]) -> np.ndarray:
    """One array of parts [layers, slots, kv_heads, head_dim]."""
    rows = [part.reshape(*part.shape[:2], 1, -1) for part in parts]
    widest = max(part.shape[-1] for part in rows)
    return np.concatenate([np.pad(part, [(0, 0)] * 3 + [(0, widest - part.shape[-1])]) for part in rows])
