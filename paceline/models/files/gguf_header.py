"""The header of a GGUF file: key-value pairs and the table of tensors, read from a memory map.

The reader of the gguf package creates an array per vocabulary entry, which takes seconds for a large vocabulary; this
one does not. Not for tensor contents: `gguf_file.py` reads those and leaves dequantisation to the gguf package.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import CorruptWeights, UnsupportedModel
from paceline.models.fields import shown

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MOST_DIMENSIONS = 4
_LONGEST_ARRAY = 1 << 24
"""Most entries of an array; the largest vocabularies have a sixtieth of it."""
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

BLOCKS = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2),
    "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210), "IQ2_XXS": (16, 256, 66), "IQ2_XS": (17, 256, 74), "IQ3_XXS": (18, 256, 98),
    "IQ1_S": (19, 256, 50), "IQ4_NL": (20, 32, 18), "IQ3_S": (21, 256, 110), "IQ2_S": (22, 256, 82),
    "IQ4_XS": (23, 256, 136), "IQ1_M": (29, 256, 56), "TQ1_0": (34, 256, 54), "TQ2_0": (35, 256, 66),
    "MXFP4": (39, 32, 17), "NVFP4": (40, 64, 36),
}  # fmt: skip
"""Storage types that the gguf package can dequantise: name to (type number, values per block, bytes per block)."""

_NAME_BY_NUMBER = {number: name for name, (number, _, _) in BLOCKS.items()}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Location of a tensor. `shape` has the outermost dimension first; `offset` is in bytes from the file's start."""

    name: str
    shape: tuple[int, ...]
    storage: str
    offset: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Everything before the tensor data."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorEntry]


class _Cursor:
    """Reads little-endian values one after another. Raises CorruptWeights at the end of the file."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at = data, path, 0

    def truncated(self) -> CorruptWeights:
        return CorruptWeights(f"{self.path}: the header ends after {len(self.data)} bytes; download the file again")

    def scalar(self, code: str) -> Any:
        try:
            (value,) = struct.unpack_from("<" + code, self.data, self.at)
        except struct.error:
            raise self.truncated() from None
        self.at += struct.calcsize("<" + code)
        return value

    def scalars(self, code: str, count: int) -> list[Any]:
        num_bytes = count * struct.calcsize("<" + code)
        if count > _LONGEST_ARRAY or num_bytes > len(self.data) - self.at:
            raise self.truncated()
        values = struct.unpack_from(f"<{count}{code}", self.data, self.at)
        self.at += num_bytes
        return list(values)

    def strings(self, count: int) -> list[str]:
        """`count` strings. A hot loop, as vocabularies have hundreds of thousands of entries."""
        data, at, end = self.data, self.at, len(self.data)
        length_at = struct.Struct("<Q").unpack_from
        if count > min(_LONGEST_ARRAY, (end - at) // 8):
            raise self.truncated()
        out = []
        try:
            for _ in range(count):
                start = at + 8
                at = start + length_at(data, at)[0]
                if at > end:
                    raise self.truncated()
                out.append(data[start:at].decode())
        except struct.error:
            raise self.truncated() from None
        except UnicodeDecodeError as error:
            raise CorruptWeights(f"{self.path}: text in the header is not UTF-8 ({error}); convert it again") from None
        self.at = at
        return out

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.strings(1)[0]
        if kind == _ARRAY:
            kind, count = self.scalar("I"), self.scalar("Q")
            return self.strings(count) if kind == _STRING else self.scalars(self.code(kind), count)
        return self.scalar(self.code(kind))

    def code(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise CorruptWeights(f"{self.path}: value type {kind} in the header does not exist; download it again")
        return _SCALARS[kind]


def read_header(data: mmap.mmap, path: Path) -> GGUFHeader:
    """Parse the header of the mapped file `data`; `path` is for messages.

    Raises:
        CorruptWeights: the file is not GGUF, is damaged, or is shorter than its table of tensors requires.
        UnsupportedModel: the GGUF version or byte order is not supported, or a storage type cannot be dequantised.
    """
    cursor = _Cursor(data, path)
    if data[:4] != MAGIC:
        raise CorruptWeights(f"{path}: starts with {data[:4]!r}, not {MAGIC!r}, so it is no GGUF file; check the path")
    cursor.at = len(MAGIC)
    version = cursor.scalar("I")
    if version not in _VERSIONS:
        raise UnsupportedModel(
            f"{path}: GGUF version {version} (or big-endian); convert it to version 3, little-endian"
        )
    num_tensors, num_pairs = cursor.scalar("Q"), cursor.scalar("Q")
    metadata = {}
    for _ in range(num_pairs):
        key = cursor.strings(1)[0]
        if key in metadata:
            raise CorruptWeights(f"{path}: {shown(key)} stands twice in the header; download the file again")
        metadata[key] = cursor.value(cursor.scalar("I"))
    return GGUFHeader(metadata, _tensor_table(cursor, num_tensors, metadata))


def _tensor_table(cursor: _Cursor, num_tensors: int, metadata: dict[str, Any]) -> dict[str, TensorEntry]:
    raw = []
    for _ in range(num_tensors):
        name = cursor.strings(1)[0]
        num_dims = cursor.scalar("I")
        if num_dims > _MOST_DIMENSIONS:
            raise CorruptWeights(f"{cursor.path}: tensor {name!r} has {num_dims} dimensions; download the file again")
        dims = cursor.scalars("Q", num_dims)
        raw.append((name, tuple(reversed(dims)), cursor.scalar("I"), cursor.scalar("Q")))
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if isinstance(alignment, bool) or not isinstance(alignment, int) or not 8 <= alignment <= 1 << 20 or alignment % 8:
        raise CorruptWeights(f"{cursor.path}: general.alignment is {shown(alignment)}; download the file again")
    start = -(-cursor.at // alignment) * alignment
    entries = [_entry(cursor, name, shape, kind, start + offset) for name, shape, kind, offset in raw]
    _check_apart(cursor.path, entries, start, alignment)
    return {entry.name: entry for entry in entries}


def _check_apart(path: Path, entries: list[TensorEntry], start: int, alignment: int) -> None:
    """Refuse tensors with the same name, off their alignment, or overlapping. Raises CorruptWeights."""
    if len({entry.name for entry in entries}) < len(entries):
        raise CorruptWeights(f"{path}: two tensors have the same name; download it again")
    end, last = start, ""
    for entry in sorted(entries, key=lambda entry: entry.offset):
        if (entry.offset - start) % alignment:
            raise CorruptWeights(
                f"{path}: tensor {entry.name!r} is not aligned to {alignment} bytes; download it again"
            )
        if entry.offset < end:
            raise CorruptWeights(f"{path}: tensors {last!r} and {entry.name!r} overlap; download it again")
        end, last = entry.offset + entry.num_bytes, entry.name


def _entry(cursor: _Cursor, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorEntry:
    if kind not in _NAME_BY_NUMBER:
        raise UnsupportedModel(
            f"{cursor.path}: tensor {name!r} has storage type {kind}, which cannot be dequantised; "
            f"take a file in one of {', '.join(BLOCKS)}"
        )
    storage = _NAME_BY_NUMBER[kind]
    _, block, block_bytes = BLOCKS[storage]
    num_values = 1
    for size in shape:
        num_values *= size
    num_bytes = num_values // block * block_bytes
    if not shape or shape[-1] % block or num_values == 0:
        raise CorruptWeights(
            f"{cursor.path}: tensor {name!r} has shape {shape}, not blocks of {block}; download it again"
        )
    if offset + num_bytes > len(cursor.data):
        raise CorruptWeights(
            f"{cursor.path}: truncated: tensor {name!r} ends at byte {offset + num_bytes}, the file has "
            f"{len(cursor.data)}; download it again"
        )
    return TensorEntry(name, shape, storage, offset, num_bytes)
