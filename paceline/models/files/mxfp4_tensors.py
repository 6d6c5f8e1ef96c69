"""4-bit floats in safetensors folders (MXFP4 of the OCP microscaling formats), in which gpt-oss stores its experts.

A linear layer is two tensors of bytes: ``blocks`` [out, groups, 16], two codes to a byte, neighbours together, the
first one low; and ``scales`` [out, groups], the exponent of the power of two that 32 neighbours share. The kernels
multiply such blocks as GGUF has them. Not for reading files (`safetensors_folder.py`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.errors import CorruptWeights
from paceline.models.files.checkpoint import StoredBlocks

_GROUP, _BYTES = 32, 16
_LARGEST_EXPONENT = 252
"""With a larger one values overflow float32; a file of real weights has about 120."""
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_VALUES = np.array([*_MAGNITUDES, *(-m for m in _MAGNITUDES)], np.float32)
"""Of codes: a sign, two bits of exponent, one of mantissa."""


@dataclass(frozen=True, slots=True)
class Mxfp4Matrix:
    """A linear layer [n, k] whose unquantised form is stored as [k, n].

    Attributes:
        bytes: [n, k / 32, 16] uint8. exponents: [n, k / 32] uint8.
    """

    bytes: np.ndarray
    exponents: np.ndarray

    def values(self) -> np.ndarray:
        """The weights [k, n] as float32."""
        codes, scales = self._codes(), np.ldexp(np.float32(1), self.exponents.astype(np.int32) - 127)
        return (_VALUES[codes] * scales[..., None]).reshape(len(codes), -1).T

    def blocks(self, layer: str) -> StoredBlocks:
        """Rows [n, bytes] of GGUF's blocks: the exponent, then bytes with codes i and i + 16."""
        codes = self._codes()
        nibbles = codes[..., :_BYTES] | codes[..., _BYTES:] << 4
        rows = np.concatenate([self.exponents[..., None], nibbles], axis=-1)
        return StoredBlocks("MXFP4", rows.reshape(len(rows), -1), 1 + _BYTES)

    def _codes(self) -> np.ndarray:
        """[n, k / 32, 32] in the order of the inputs; a byte has two of them, the lower half first."""
        return np.stack([self.bytes & 15, self.bytes >> 4], axis=-1).reshape(*self.exponents.shape, _GROUP)


@dataclass(frozen=True, slots=True)
class Mxfp4Scheme:
    """As `int4_tensors.Int4Scheme`, for layers of 4-bit floats."""

    stem: str = "blocks"
    storage: str = "MXFP4"

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Shape [k, n] of a layer whose codes have the shape `stored`."""
        return (stored[1] * _GROUP, stored[0]) if len(stored) == 3 else stored

    def matrix(self, layer: str, read: Callable[[str], np.ndarray], names: Mapping[str, Any]) -> Mxfp4Matrix:
        """The layer called `layer` of the folder whose stored tensors are `names`.

        Raises:
            CorruptWeights: parts are missing, do not fit together, or hold values that are not finite.
        """
        found = [read(f"{layer}.{part}") for part in ("blocks", "scales") if f"{layer}.{part}" in names]
        fits = len(found) == 2 and all(part.dtype == np.uint8 for part in found)
        if not fits or found[0].shape != (*found[1].shape, _BYTES) or found[1].ndim != 2:
            shapes = ", ".join(f"{part.dtype} {part.shape}" for part in found)
            raise CorruptWeights(f"{layer}: its 4-bit parts do not fit together ({shapes}); download it again")
        if found[1].size and found[1].max() > _LARGEST_EXPONENT:
            raise CorruptWeights(f"{layer}: holds scales that are not finite; download the model again")
        return Mxfp4Matrix(*found)

    def keeps_runs(self, read: Callable[[str], np.ndarray], names: Mapping[str, Any]) -> bool:
        """Whether all layers have blocks."""
        return True
