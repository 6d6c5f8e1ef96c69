"""Reads and writes the tensors of a head: safetensors, PyTorch pickles (read only), and the int8 form of releases.

Heads are a few megabytes, so files are read whole. Safetensors are written here because the numpy writer of the
safetensors package does not support bfloat16. Not for a target's weights, which are memory-mapped
(`models/files/safetensors_folder.py`), and not for what the names mean (`layouts/`).
"""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError, deserialize

from paceline.errors import CorruptWeights, UnsupportedModel, error_text
from paceline.extras import check_torch
from paceline.models.files.bfloat16 import from_bfloat16, to_bfloat16

Storage = Literal["float32", "bfloat16", "int8"]
"""How a head's tensors are stored; int8 keeps one scale per output row and the rest in bfloat16."""

SCALE = "_scale"
"""Suffix of the name of the scales of a row-quantised tensor."""
_PLAIN = {"F32": np.float32, "F16": np.float16, "F64": np.float64, "I64": np.int64, "I32": np.int32, "I8": np.int8,
          "U8": np.uint8, "BOOL": np.bool_}  # fmt: skip
_CODES = {"float32": "F32", "int8": "I8", "int64": "I64", "bool": "BOOL"}
_WIDTHS = {"I64": 8, "F32": 4, "BF16": 2, "I8": 1, "BOOL": 1}
_ALIGNMENT = 8
_GLOBAL = re.compile(r"GLOBAL (\S+)")
"""Finds the function that a pickle would have called in torch's error message."""
_Stored = tuple[str, tuple[int, ...], bytes]


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Every tensor by name: floats as float32, integers and booleans as they are.

    Raises:
        CorruptWeights: the file is damaged.
        UnsupportedModel: a tensor has a number format that is not supported.
    """
    try:
        entries = deserialize(path.read_bytes())
    except SafetensorError as error:
        raise CorruptWeights(f"{path}: is damaged ({error}); get it again") from None
    except OSError as error:
        raise CorruptWeights(f"{path}: cannot be read ({error.strerror}); get it again") from None
    return {name: _values(path, name, entry) for name, entry in entries}


def read_pickle(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a ``.pt`` or ``.bin`` file, read without running code that the file may carry.

    Raises:
        InvalidParameter: torch is not installed.
        UnsupportedModel: the file holds anything but tensors.
        CorruptWeights: it cannot be read.
    """
    check_torch(f"{path}: a PyTorch file", "use safetensors")
    from pickle import UnpicklingError

    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        found = _GLOBAL.search(str(error))
        holds = f"holds {found[1]}, which could run code" if found else "holds more than tensors or is no PyTorch file"
        raise UnsupportedModel(f"{path}: {holds}; ask for safetensors") from None
    except Exception as error:  # damaged bytes raise errors of many types
        raise CorruptWeights(f"{path}: cannot be read ({error_text(error)[:120]}); get it again") from None
    if not isinstance(loaded, Mapping) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in loaded.items()
    ):
        raise UnsupportedModel(f"{path}: is no table of tensors by name; save the head's state_dict")
    odd = [name for name, value in loaded.items() if value.layout != torch.strided or value.is_complex()]
    if odd:
        raise UnsupportedModel(f"{path}: {odd[0]} is sparse or complex; save dense real tensors")
    return {
        name: (value.float() if value.is_floating_point() else value).contiguous().numpy()
        for name, value in loaded.items()
    }


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray], storage: Storage = "float32") -> None:
    """Write `tensors`; in int8 every float matrix gets a companion ``NAME_scale`` [rows] in float32."""
    table: dict[str, _Stored] = {}
    for name, values in tensors.items():
        if storage == "int8" and values.dtype == np.float32 and values.ndim == 2:
            table[name], table[name + SCALE] = map(_stored, quantise_rows(values))
        elif storage != "float32" and values.dtype == np.float32:
            table[name] = _as_bfloat16(values)
        else:
            table[name] = _stored(values)
    _write(path, table)


def _write(path: Path, table: Mapping[str, _Stored]) -> None:
    """Write the header's length in 8 bytes, the JSON header, and the tensors, wide types first to keep alignment."""
    table = dict(sorted(table.items(), key=lambda item: -_WIDTHS[item[1][0]]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (code, shape, data) in table.items():
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, data in table.values():
            file.write(data)


def quantise_rows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int8 [rows, columns] and float32 scales [rows]: the largest value of a row becomes 127."""
    scales = (np.abs(values).max(axis=1) / 127.0).astype(np.float32)
    divisors = np.where(scales > 0, scales, 1.0)
    return np.rint(values / divisors[:, None]).astype(np.int8), scales


def dequantised(tensors: Mapping[str, np.ndarray], source: object) -> dict[str, np.ndarray]:
    """Every int8 matrix times the scales beside it, float32; everything else as it is.

    Raises:
        CorruptWeights: an int8 matrix has no scales, or not one for each row.
    """
    result: dict[str, np.ndarray] = {}
    for name, values in tensors.items():
        if name.endswith(SCALE) and name.removesuffix(SCALE) in tensors:
            continue
        if values.dtype == np.int8:
            scales = tensors.get(name + SCALE)
            if scales is None or scales.shape != values.shape[:1]:
                raise CorruptWeights(f"{source}: {name} is int8 and has no scale per row beside it; get the head again")
            values = values.astype(np.float32) * scales.astype(np.float32)[:, None]
        result[name] = values
    return result


def _values(path: Path, name: str, entry: Mapping[str, Any]) -> np.ndarray:
    shape, kind, data = tuple(entry["shape"]), entry["dtype"], entry["data"]
    if kind == "BF16":
        return from_bfloat16(np.frombuffer(data, np.uint16, math.prod(shape))).reshape(shape)
    if kind not in _PLAIN:
        raise UnsupportedModel(f"{path}: {name} is stored as {kind}; take the head in bfloat16, float16 or float32")
    values = np.frombuffer(data, _PLAIN[kind], math.prod(shape)).reshape(shape)
    return values.astype(np.float32) if values.dtype.kind == "f" else values


def _stored(values: np.ndarray) -> _Stored:
    return _CODES[values.dtype.name], values.shape, np.ascontiguousarray(values).tobytes()


def _as_bfloat16(values: np.ndarray) -> _Stored:
    return "BF16", values.shape, to_bfloat16(values).tobytes()
