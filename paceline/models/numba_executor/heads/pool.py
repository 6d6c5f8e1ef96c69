"""`Pool`: collects the weights of a draft network, packed for the kernels.

Matrices go through the same packing and rounding as the target's (`weights.quantise`, `gemm.pack`); a head stored in 8
bits is dequantised and rounded again, to the same numbers. Nothing is kept on disk: a head packs in a fraction of a
second. Not for operations on the weights.
"""

from collections.abc import Sequence

import numpy as np

from paceline.models.numba_executor.gemm import PANEL, pack, padded_rows
from paceline.models.numba_executor.weights import STORED, quantise

TABLES = {"bfloat16": "bfloat16", "float16": "float16", "float32": "float32", "int8": "int8", "w8a8": "int8"}
"""Storage of look-up tables, by the dtype of the matrices."""


class Pool:
    """Collects matrices, vectors and tables; `arrays` returns them as fields of `interpret.Store`."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self._panels: list[np.ndarray] = []
        self._scales: list[np.ndarray] = []
        self._matrices: list[tuple[int, int, int, int]] = []
        self._vectors: list[np.ndarray] = []
        self._tables: list[np.ndarray] = []
        self._table_scales: list[np.ndarray] = []
        self._table_places: list[tuple[int, int, int]] = []

    def matrix(self, weights: np.ndarray) -> int:
        """Add a matrix [outputs, inputs], padded to whole panels; returns its number."""
        columns, depth = padded_rows(len(weights)), weights.shape[1]
        stored, scales = quantise(np.ascontiguousarray(weights, np.float32), self.dtype)
        self._matrices.append((_size(self._panels), _size(self._scales), columns, depth))
        self._panels.append(pack(stored))
        self._scales.append(np.pad(scales, (0, columns - len(scales))))
        return len(self._matrices) - 1

    def gated(self, gate: np.ndarray, up: np.ndarray) -> int:
        """Add gate and up as one matrix of interleaved panels; returns its number."""
        panels = [w.reshape(-1, PANEL, w.shape[1]) for w in (gate, up)]
        return self.matrix(np.stack(panels, axis=1).reshape(-1, gate.shape[1]))

    def rows_from(self, matrix: int, first: int) -> int:
        """The number of a view of `matrix` from row `first`, a multiple of `PANEL`, on; nothing is copied."""
        start, scale, columns, depth = self._matrices[matrix]
        self._matrices.append((start + first * depth, scale + first, columns - first, depth))
        return len(self._matrices) - 1

    def vector(self, values: np.ndarray) -> int:
        """Add a vector, padded to whole panels; returns its start."""
        start = _size(self._vectors)
        flat = np.asarray(values, np.float32).reshape(-1)
        self._vectors.append(np.pad(flat, (0, padded_rows(len(flat)) - len(flat))))
        return start

    def table(self, rows: np.ndarray) -> int:
        """Add a table [tokens, width]; returns its number."""
        stored, scales = quantise(np.ascontiguousarray(rows, np.float32), TABLES[self.dtype])
        self._table_places.append((_size(self._tables), _size(self._table_scales), rows.shape[1]))
        self._tables.append(stored.reshape(-1))
        self._table_scales.append(scales)
        return len(self._table_places) - 1

    def arrays(self) -> dict[str, np.ndarray]:
        """Fields of `interpret.Store`."""
        stored, tables = STORED[self.dtype], STORED[TABLES[self.dtype]]
        return {
            "panels": _joined(self._panels, stored),
            "scales": _joined(self._scales, np.float32),
            "matrices": np.array(self._matrices, np.int64).reshape(-1, 4),
            "vectors": _joined(self._vectors, np.float32),
            "tables": _joined(self._tables, tables),
            "table_scales": _joined(self._table_scales, np.float32),
            "table_places": np.array(self._table_places, np.int64).reshape(-1, 3),
        }


def _size(parts: Sequence[np.ndarray]) -> int:
    return sum(len(part) for part in parts)


def _joined(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    """One flat array, read-only like the target's mapped weights, as Numba types depend on it."""
    joined = np.concatenate([*parts, np.zeros(0, dtype)]).astype(dtype, copy=False)
    joined.flags.writeable = False
    return joined
