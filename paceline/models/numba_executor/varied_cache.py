"""`VariedCache`: paged keys and values of layers whose heads differ.

A page has what `kv_cache.py` describes for each key-value head, one after the other, so no layer is padded to the size
of another. Not for how a token is written or read in a pass, which is the same for all caches.
"""

from collections.abc import Sequence

import numpy as np

from paceline.models.base import PAGE_SIZE
from paceline.models.numba_executor.kv_cache import GROUP, SCALE_BYTES, row_bytes, widened


class VariedCache:
    """Keys and values [pages, elements].

    Args:
        layers: (key-value heads, head_dim) of each layer that computes keys.
        num_pages: pages of `PAGE_SIZE` slots.
        dtype: one of `kv_cache.CACHE_DTYPES`.
    """

    def __init__(self, layers: Sequence[tuple[int, int]], num_pages: int, dtype: str) -> None:
        self.num_pages, self._layers, self._rounds = num_pages, layers, dtype == "int8"
        dims = [dim for heads, dim in layers for _ in range(heads)]
        self._sizes = [row_bytes(dim) if self._rounds else dim for dim in dims]
        starts = PAGE_SIZE * (np.cumsum(self._sizes) - self._sizes)
        places = [_places(dim, self._rounds) for dim in dims]
        self._elements = tuple(
            np.concatenate([start + one[kind] for start, one in zip(starts, places, strict=True)], axis=1)
            for kind in range(2)
        )
        shape = num_pages, PAGE_SIZE * sum(self._sizes)
        self.keys, self.values = np.zeros(shape, dtype), np.zeros(shape, dtype)

    @property
    def num_bytes(self) -> int:
        """See `KVCache.num_bytes`."""
        return self.keys.nbytes + self.values.nbytes

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Copy slots, all reads before any write."""
        page, place = np.divmod(np.asarray(sources), PAGE_SIZE)
        to, at = np.divmod(np.asarray(destinations), PAGE_SIZE)
        for stored, elements in zip((self.keys, self.values), self._elements, strict=True):
            stored[to[:, None], elements[at]] = stored[page[:, None], elements[place]]

    def read(self, slots: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Keys and values [layers with keys, len(slots), 1, numbers of the widest layer], zeros after shorter ones."""
        page, place = np.divmod(np.asarray(slots), PAGE_SIZE)
        keys, values = (
            self._apart(stored[page[:, None], elements[place]])
            for stored, elements in zip((self.keys, self.values), self._elements, strict=True)
        )
        return keys, values

    def _apart(self, found: np.ndarray) -> np.ndarray:
        """As `read`, of [slots, elements of a token]."""
        out = np.zeros((len(self._layers), len(found), 1, max(heads * dim for heads, dim in self._layers)), np.float32)
        heads = iter(np.split(found, np.cumsum(self._sizes)[:-1], axis=1))
        for layer, (count, dim) in zip(out, self._layers, strict=True):
            for head in range(count):
                layer[:, 0, head * dim : (head + 1) * dim] = self._numbers(next(heads), dim)
        return out

    def _numbers(self, stored: np.ndarray, dim: int) -> np.ndarray:
        if not self._rounds:
            return stored
        stored = np.ascontiguousarray(stored)
        return widened(stored[:, :dim], np.ascontiguousarray(stored[:, dim:]).view(np.float16))


def _places(dim: int, rounds: bool) -> tuple[np.ndarray, np.ndarray]:
    """For the key and the value of each token of a page its elements [16, n], counted from where its head begins."""
    tokens = np.arange(PAGE_SIZE)[:, None]
    keys = np.arange(dim) * PAGE_SIZE + tokens
    if not rounds:
        return keys, np.arange(dim) + dim * tokens
    scales = dim * PAGE_SIZE + SCALE_BYTES * (np.arange(dim // GROUP) * PAGE_SIZE + tokens)
    scale_bytes = (scales[..., None] + np.arange(SCALE_BYTES)).reshape(PAGE_SIZE, -1)
    return np.concatenate([keys, scale_bytes], axis=1), np.arange(row_bytes(dim)) + row_bytes(dim) * tokens
