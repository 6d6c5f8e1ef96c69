"""GGUF models that gguf-split has split into parts: ``NAME-00001-of-00003.gguf`` and so on.

The first part has the model's key-value pairs; every part has its own table of tensors, its number (``split.no``, from
0 on) and how many there are (``split.count``). Not for what a table says (`gguf_header.py`).
"""

import mmap
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from paceline.errors import CorruptWeights, ModelNotFound
from paceline.models.fields import Fields, shown
from paceline.models.files.gguf_header import GGUFHeader, read_header

PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
"""Pattern of the names of parts."""


class GGUFPart(NamedTuple):
    """One file: its path, its memory map and its header."""

    path: Path
    data: mmap.mmap
    header: GGUFHeader


def read_parts(path: Path) -> list[GGUFPart]:
    """The file at `path`, or all parts of the model of which it is one, in order.

    Raises:
        ModelNotFound: there is no such file.
        CorruptWeights: a part is missing, damaged, or of another model, or two parts hold the same tensor.
        UnsupportedModel: see `read_header`.
    """
    one = _read(path)
    count = Fields(one.header.metadata).whole("split.count", 1, least=0)
    if count <= 1:
        return [one]
    parts = [one if other == path else _read(other) for other in _all_paths(path, count)]
    for number, part in enumerate(parts):
        fields = Fields(part.header.metadata)
        place = fields.whole("split.no", -1, least=-1), fields.whole("split.count", 1, least=0)
        if place != (number, count):
            raise CorruptWeights(
                f"{part.path}: by its header it is part {place[0] + 1} of {place[1]}; names and parts were mixed up, "
                "download them again"
            )
    _check_tensors(parts)
    return parts


def part_names(name: str) -> list[str]:
    """The names of all parts, in order, from the name of one; empty where `name` is not that of a part."""
    found = PART.fullmatch(name)
    count = int(found["count"]) if found else 0
    return [f"{found['stem']}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)] if found else []


def _all_paths(path: Path, count: int) -> list[Path]:
    """The paths of all parts. Raises CorruptWeights where one is missing or misnamed."""
    found = PART.fullmatch(path.name)
    if found is None or int(found["count"]) != count or not 1 <= int(found["number"]) <= count:
        raise CorruptWeights(
            f"{path}: one of {count} parts, which are found by their names; call it NAME-00001-of-{count:05d}.gguf and "
            "the others alike, or merge them into one file with gguf-split --merge"
        )
    paths = [path.with_name(name) for name in part_names(path.name)]
    missing = [other.name for other in paths if not other.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CorruptWeights(
            f"{path}: one of {count} parts, of which {missing[0]}{more} is missing; download all parts"
        )
    return paths


def _check_tensors(parts: Sequence[GGUFPart]) -> None:
    seen: set[str] = set()
    for part in parts:
        twice = seen.intersection(part.header.tensors)
        if twice:
            raise CorruptWeights(f"{part.path}: {shown(min(twice))} stands in two parts; download them again")
        seen.update(part.header.tensors)
    told = Fields(parts[0].header.metadata).whole("split.tensors.count", len(seen), least=0)
    if told != len(seen):
        raise CorruptWeights(
            f"{parts[0].path}: its parts should have {told} tensors, and have {len(seen)}; download them again"
        )


def _read(path: Path) -> GGUFPart:
    if not path.is_file():
        raise ModelNotFound(f"{path}: no such file; check the path of the GGUF file")
    if path.stat().st_size == 0:
        raise CorruptWeights(f"{path}: the file is empty; download it again")
    with path.open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return GGUFPart(path, data, read_header(data, path))
