"""Matrices of blocks on disk: repacked once into panels, memory-mapped from then on.

A matrix becomes three files: the panels' bytes, where each panel begins, and the number of its format. Not for which
tensors make up a matrix (`numba_executor/weights.py`).
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.files.checkpoint import Checkpoint, KeepsBlocks, StoredBlocks
from paceline.models.numba_executor.blocks.formats import FORMATS, NAMES, PANEL, BlockFormat
from paceline.models.numba_executor.blocks.pack import pack, panel_bytes
from paceline.models.numba_executor.blocks.product import Blocks, with_kernels
from paceline.models.numba_executor.blocks.unpack import Codes, round_to_q8_0, unpack

ROUNDED = "Q8_0"
"""Format that matrices stored in 16 or 32 bits are converted to."""
_ROWS_AT_ONCE = 64 * PANEL


def stored_blocks(checkpoint: Checkpoint, name: str) -> StoredBlocks | None:
    """The blocks of a tensor, None where it is stored in floats.

    Raises:
        InvalidParameter: blocks of a kind that has no kernel.
    """
    found = checkpoint.blocks(name) if isinstance(checkpoint, KeepsBlocks) else None
    if found is None or found.floats:
        return None
    if found.storage not in FORMATS:
        problem = f"gguf has no kernel for {found.storage}, as which {name} is stored"
        raise InvalidParameter("dtype", problem, f"use bfloat16 or w8a8, or a file in {', '.join(NAMES)}")
    return found


def write_matrix(
    folder: Path, name: str, depths: Sequence[int], parts: Sequence[Sequence[str]], interleave: bool,
    checkpoint: Checkpoint, step: Callable[[], None],
) -> None:  # fmt: skip
    """Write the matrices called `parts`, each stacked from tensors [n, its depth], as `name` in `folder`.

    Args:
        interleave: take the tensors' panels in turn and not one tensor after the other.
        step: called after every part.
    """
    layouts = [_layout(checkpoint, names, interleave) for names in parts]
    by_part = [np.array([form for _, _, form in layout], np.uint8) for layout in layouts]
    bytes_at = {depth: np.array([panel_bytes(form, depth) for form in FORMATS.values()], np.int64) for depth in depths}
    numbers = np.concatenate(by_part)
    sizes = np.concatenate([bytes_at[depth][part] for depth, part in zip(depths, by_part, strict=True)])
    starts = np.cumsum(sizes) - sizes
    data = np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.uint8, shape=(int(sizes.sum()),))
    np.save(folder / f"{name}_starts.npy", starts)
    np.save(folder / f"{name}_formats.npy", numbers)
    first = 0
    for names, layout in zip(parts, layouts, strict=True):
        places = {(tensor, panel): starts[first + i] for i, (tensor, panel, _) in enumerate(layout)}
        for tensor, stored in enumerate(names):
            for panel, packed in _packed_panels(checkpoint, stored):
                start = places[tensor, panel]
                data[start : start + len(packed)] = packed
        first += len(layout)
        step()


def read_matrix(folder: Path, name: str, mapped: bool) -> Blocks:
    """What `write_matrix` wrote, memory-mapped or read."""
    data = np.load(folder / f"{name}.npy", mmap_mode="r" if mapped else None).view(np.ndarray)
    data.flags.writeable = False
    return with_kernels(data, np.load(folder / f"{name}_starts.npy"), np.load(folder / f"{name}_formats.npy"))


def no_matrix() -> Blocks:
    """A matrix without panels, of the same type as others."""
    data = np.zeros(0, np.uint8)
    data.flags.writeable = False
    return with_kernels(data, np.zeros(0, np.int64), np.zeros(0, np.uint8))


def _layout(checkpoint: Checkpoint, names: Sequence[str], interleave: bool) -> list[tuple[int, int, int]]:
    """(tensor, its panel, the number of its format) of the panels of a stacked matrix, in order."""
    tensors = []
    for index, name in enumerate(names):
        stored = stored_blocks(checkpoint, name)
        rows = len(stored.rows if stored else checkpoint.tensor(name))
        number = NAMES.index(stored.storage if stored else ROUNDED)
        tensors.append([(index, panel, number) for panel in range(-(-rows // PANEL))])
    if interleave:
        return [panel for panels in zip(*tensors, strict=True) for panel in panels]
    return [panel for panels in tensors for panel in panels]


def _packed_panels(checkpoint: Checkpoint, name: str) -> Iterator[tuple[int, np.ndarray]]:
    """(panel, bytes) of a tensor, a few panels in memory at a time."""
    stored = stored_blocks(checkpoint, name)
    rows: Any = stored.rows if stored else checkpoint.tensor(name)
    form = FORMATS[stored.storage if stored else ROUNDED]
    for first in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[first : first + _ROWS_AT_ONCE]
        codes = unpack(part, form, stored.block_bytes) if stored else round_to_q8_0(part)
        for number, panel in enumerate(_panels(codes, form)):
            yield first // PANEL + number, panel


def _panels(codes: Codes, form: BlockFormat) -> np.ndarray:
    """Packed [panels, bytes]."""
    return pack(codes, form).reshape(-1, panel_bytes(form, codes.codes.shape[1]))
