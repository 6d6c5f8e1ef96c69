"""The table of a safetensors file: which tensors it holds, where, and in which number format.

Read here from a memory map, because the numpy reader of the safetensors package does not support bfloat16. Not for
what the tensors mean (`safetensors_folder.py`).
"""

import math
import mmap
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import CorruptWeights
from paceline.models.fields import is_text, shown
from paceline.models.files.bfloat16 import from_bfloat16
from paceline.models.json_file import parse_object

BYTES_PER_VALUE = {"F32": 4, "F16": 2, "BF16": 2, "I32": 4, "I64": 8, "U8": 1, "I8": 1, "F8_E4M3": 1}
"""Of the number formats that are read."""
_FLOATS: dict[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16}
_LENGTH_BYTES = 8
_LONGEST_TYPE = 16
_LARGEST_HEADER = 100_000_000
"""The format's own limit."""
_ALL_EXPERTS = re.compile(r"(.+\.experts)\.(gate_up_proj|down_proj)(?:_(bias|blocks|scales))?"
                          r"|(.+\.block_sparse_moe)\.(input_linear|output_linear)\.weight")  # fmt: skip
"""Names of tensors that hold all experts of a layer; the second form is Granite's."""
_MOST_EXPERTS = 4096


@dataclass(frozen=True, eq=False, slots=True)
class StoredTensor:
    """Location of one tensor: in the mapped file `data`, from byte `start` on."""

    data: mmap.mmap
    start: int
    num_bytes: int
    storage: str
    shape: tuple[int, ...]

    def stored(self, kind: type[np.generic] = np.uint8) -> np.ndarray:
        """The bytes as values of `kind`, flat."""
        return np.frombuffer(self.data, kind, self.num_bytes // np.dtype(kind).itemsize, self.start)

    def floats(self) -> np.ndarray | None:
        """The values as float32, in their shape; None where they are in another format than F32, F16 and BF16."""
        if self.storage == "BF16":  # the upper half of a float32
            return from_bfloat16(self.stored(np.uint16)).reshape(self.shape)
        kind = _FLOATS.get(self.storage)
        return None if kind is None else self.stored(kind).astype(np.float32).reshape(self.shape)

    def part(self, number: int) -> "StoredTensor":
        """The part `number` of the first axis."""
        num_bytes = self.num_bytes // self.shape[0]
        return replace(self, start=self.start + number * num_bytes, num_bytes=num_bytes, shape=self.shape[1:])


def read_headers(files: Sequence[Path], weight_map: Mapping[str, Path]) -> dict[str, StoredTensor]:
    """The tensors of all `files`; of a tensor in two of them, the one that `weight_map` (name to file) names.

    Raises:
        CorruptWeights: a file is truncated or damaged, or a tensor stands in two without a word in `weight_map`.
    """
    found: dict[str, StoredTensor] = {}
    for path in files:
        for name, entry in _read_header(path).items():
            if name in found and name not in weight_map:
                raise CorruptWeights(f"{path}: {shown(name)} stands in another file too; download the model again")
            if name not in found or weight_map[name] == path:
                found[name] = entry
    return found


def _read_header(path: Path) -> dict[str, StoredTensor]:
    """The tensors in the header of a safetensors file, which is its length in 8 bytes, then JSON."""
    size = path.stat().st_size
    if size < _LENGTH_BYTES:
        raise CorruptWeights(f"{path}: truncated to {size} bytes; download it again")
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    if start > min(size, _LARGEST_HEADER):
        raise CorruptWeights(f"{path}: truncated, or no safetensors file: its table does not fit; download it again")
    table = parse_object(data[_LENGTH_BYTES:start], path)
    entries = {name: _entry(path, name, value, data, start) for name, value in table.items() if name != "__metadata__"}
    _check_apart(path, entries)
    return entries


def _entry(path: Path, name: str, value: Any, data: mmap.mmap, start: int) -> StoredTensor:
    try:
        shape, (begin, end), storage = tuple(value["shape"]), value["data_offsets"], value["dtype"]
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptWeights(f"{path}: its table is damaged at {shown(name)} ({error}); download it again") from None
    bounded = all(type(n) is int and 0 <= n <= len(data) for n in (*shape, begin, end))
    if not is_text(storage) or len(storage) > _LONGEST_TYPE or not bounded or begin > end:
        raise CorruptWeights(
            f"{path}: truncated, or its table is damaged: {shown(name)} has shape {shown(shape)} from byte "
            f"{shown(begin)} to {shown(end)} of {len(data) - start}; download it again"
        )
    if start + end > len(data):
        raise CorruptWeights(
            f"{path}: truncated: {name} ends at byte {start + end}, the file has {len(data)}; download it again"
        )
    per_value = BYTES_PER_VALUE.get(storage)
    if per_value is not None and end - begin != per_value * math.prod(shape):
        raise CorruptWeights(
            f"{path}: {name} has {end - begin} bytes, not as its shape {shape} says; download it again"
        )
    return StoredTensor(data, start + begin, end - begin, storage, shape)


def _check_apart(path: Path, entries: dict[str, StoredTensor]) -> None:
    """Refuse overlapping tensors. Raises CorruptWeights."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].start):
        if entry.start < end and entry.num_bytes:
            raise CorruptWeights(f"{path}: {name} overlaps another tensor; download it again")
        end = max(end, entry.start + entry.num_bytes)


def experts_apart(entries: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """`entries` in which tensors of all experts of a layer, as in gpt-oss, are one tensor per expert.

    ``mlp.experts.down_proj_bias`` [experts, out] becomes ``mlp.experts.0.down_proj.bias`` [out], and so on.
    """
    found: dict[str, StoredTensor] = {}
    for name, entry in entries.items():
        together = _ALL_EXPERTS.fullmatch(name)
        if together is None or not entry.shape or not 1 <= entry.shape[0] <= _MOST_EXPERTS:
            found[name] = entry
            continue
        stem, part, kind = together[1] or together[4], together[2] or together[5], together[3] or "weight"
        found |= {f"{stem}.{i}.{part}.{kind}": entry.part(i) for i in range(entry.shape[0])}
    return found
