"""Weights of 8 bits in safetensors folders: floats (E4M3), as Qwen, Mistral and compressed-tensors publish them, and
the integers of compressed-tensors.

A linear layer is a matrix of bytes beside its scale: one number, one for each row, or one for each block of rows and
columns. Weights are widened when they are read; what such files say of activations, which others round to 8 bits too,
is left out. Not for reading files (`safetensors_folder.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.errors import CorruptWeights

FLOAT, WHOLE = "F8_E4M3", "I8"
"""safetensors' names of the two formats."""
SCALES = ("weight_scale_inv", "weight_scale")
"""Names of a layer's scale; either is multiplied by."""
_BLOCK = (128, 128)
_EXPONENT_BIAS, _FRACTIONS = 7, 8


def _values() -> np.ndarray:
    """The number of each byte: a sign, four bits of exponent, three of fraction; no infinities, a NaN for each sign."""
    byte = np.arange(256)
    exponent, fraction = byte >> 3 & 15, byte & 7
    normal = np.ldexp(1 + fraction / _FRACTIONS, exponent - _EXPONENT_BIAS)
    small = np.ldexp(fraction / _FRACTIONS, 1 - _EXPONENT_BIAS)
    magnitude = np.where(exponent == 0, small, normal)
    magnitude[byte & 127 == 127] = np.nan
    return np.where(byte < 128, magnitude, -magnitude).astype(np.float32)


_VALUES = {FLOAT: _values(), WHOLE: np.arange(256, dtype=np.uint8).view(np.int8).astype(np.float32)}


@dataclass(frozen=True, slots=True)
class ByteScheme:
    """How a folder's layers of 8 bits are stored.

    Attributes:
        storage: safetensors' name of the format.
        block: rows and columns of a block with one scale.
    """

    storage: str = FLOAT
    block: tuple[int, int] = _BLOCK

    def widened(self, layer: str, codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """The weights [n, k] as float32.

        Args:
            layer: its name, for errors.
            codes: [n, k] uint8.
            scale: one number in any shape, [n] or [n, 1], or one for each block.

        Raises:
            CorruptWeights: the scale fits none of these.
        """
        (rows, columns), values = codes.shape, _VALUES[self.storage][codes]
        if scale.size == 1:
            return values * scale.reshape(())
        if scale.size == rows and scale.shape[0] == rows:
            return values * scale.reshape(rows, 1)
        if scale.shape != (-(-rows // self.block[0]), -(-columns // self.block[1])):
            raise CorruptWeights(
                f"{layer}: a scale of shape {scale.shape} does not fit 8-bit weights {codes.shape}; download it again"
            )
        wide = np.repeat(np.repeat(scale, self.block[0], axis=0)[:rows], self.block[1], axis=1)[:, :columns]
        return values * wide


def bytes_of(config: Mapping[str, Any]) -> ByteScheme | None:
    """The scheme in the ``quantization_config`` of a config.json; None for a model in other numbers."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, Mapping):
        return None
    if quantization.get("quant_method") == "fp8":
        return ByteScheme(FLOAT, _block(quantization.get("weight_block_size")))
    kinds = {"float-quantized": (FLOAT, "float"), "int-quantized": (WHOLE, "int")}
    if quantization.get("quant_method") != "compressed-tensors" or quantization.get("format") not in kinds:
        return None
    storage, kind = kinds[quantization["format"]]
    if quantization.get("transform_config") or quantization.get("sparsity_config"):
        return None
    groups = quantization.get("config_groups")
    weights = [_of_weights(group) for group in groups.values()] if isinstance(groups, Mapping) else []
    if not weights or not all((each.get("num_bits"), each.get("type", "int")) == (8, kind) for each in weights):
        return None
    if not all(each.get("symmetric", True) for each in weights):  # there would be zero points
        return None
    return ByteScheme(storage, _block(weights[0].get("block_structure")))


def _of_weights(group: Any) -> Mapping[str, Any]:
    """What a group of compressed-tensors says of its weights."""
    found = group.get("weights") if isinstance(group, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _block(stated: Any) -> tuple[int, int]:
    is_pair = isinstance(stated, Sequence) and len(stated) == 2 and all(isinstance(n, int) and n > 0 for n in stated)
    return (stated[0], stated[1]) if is_pair else _BLOCK
