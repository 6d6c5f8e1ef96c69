"""Head files: detects their layout, reads them into a `HeadRecord`, and writes records.

Not for finding heads or matching them with a target (`registry.py`, `fit.py`).
"""

import json
import os
import tempfile
from pathlib import Path

import numpy as np

from paceline.errors import (
    CorruptWeights,
    InvalidParameter,
    ModelNotFound,
    PacelineError,
    UnsupportedModel,
    error_text,
)
from paceline.models.heads.card import card_text
from paceline.models.heads.layouts import (
    blockwise,
    dflash,
    eagle,
    eagle3,
    falcon,
    hydra,
    lstm_speculator,
    medusa,
    medusa_vllm,
    mlp_speculator,
    mtp,
    speculators,
)
from paceline.models.heads.layouts.base import HeadFiles, Layout, Reading, TargetTables
from paceline.models.heads.own_block import KEY
from paceline.models.heads.record import HeadRecord
from paceline.models.heads.shapes import head_shapes
from paceline.models.heads.tensor_file import Storage, read_pickle, read_safetensors, write_safetensors
from paceline.models.json_file import read_json

LAYOUTS: tuple[Layout, ...] = tuple(
    module.LAYOUT
    for module in (
        speculators, medusa_vllm, lstm_speculator, mlp_speculator, blockwise, falcon, hydra, mtp, eagle3, dflash, eagle,
        medusa,
    )
)  # fmt: skip
"""All layouts, in the order in which they are tried for reading and for writing."""

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "CARD.md"
_TENSORS = (".safetensors", ".pt", ".pth", ".bin")
"""Endings of files of tensors."""
_REMEDY = "get the head again"
_PICKLES = ("pytorch_model.bin", "medusa_lm_head.pt", "hydra_lm_head.pt", "model.pt")


def read_files(place: Path) -> HeadFiles:
    """The config and tensors at `place`: a folder, or one file of tensors with its config beside it.

    Raises:
        ModelNotFound: there is no head at `place`.
        CorruptWeights: a file is damaged.
        UnsupportedModel: a pickle holds more than tensors, or the file is one of llama.cpp.
    """
    folder, weights = (place, _weights_in(place)) if place.is_dir() else (place.parent, [place])
    if not place.exists() or not weights:
        raise ModelNotFound(f"{place}: no draft head here; a head is a folder with {CONFIG} and {WEIGHTS}")
    if place.suffix == ".gguf" and place.is_file():
        raise UnsupportedModel(f"{place}: heads are written for llama.cpp, not read back; use what it was made from")
    if place.is_file() and place.suffix not in _TENSORS:
        raise UnsupportedModel(f"{place}: is no file of tensors ({', '.join(_TENSORS)}); name the head's folder")
    config = folder / CONFIG
    tensors: dict[str, np.ndarray] = {}
    for path in weights:
        tensors |= read_safetensors(path) if path.suffix == ".safetensors" else read_pickle(path)
    return HeadFiles(place, read_json(config, _REMEDY) if config.is_file() else {}, tensors)


def layout_of(files: HeadFiles) -> Layout:
    """The first layout that matches `files`. Raises UnsupportedModel when none does."""
    for layout in LAYOUTS:
        if layout.matches(files):
            return layout
    if any(name.startswith("model.layers.") for name in files.tensors) and "model.embed_tokens.weight" in files.tensors:
        remedy = "draft with it, as --draft-model beside --draft draft_model"
        raise UnsupportedModel(f"{files.path}: is a model and not a draft head; {remedy}")
    names = ", ".join(layout.name for layout in LAYOUTS)
    raise UnsupportedModel(
        f"{files.path}: of no known layout (tensors {', '.join(list(files.tensors)[:4])}, ...); known are {names}"
    )


def read_head(place: str | Path, reading: Reading | None = None) -> HeadRecord:
    """The head at `place`. Reading is strict: unknown and missing tensors are errors.

    Raises:
        ModelNotFound, CorruptWeights, UnsupportedModel, InvalidParameter: see `read_files` and `Layout.read`.
    """
    files = read_files(Path(place).expanduser())
    try:
        return layout_of(files).read(files, reading or Reading())
    except PacelineError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # layouts check the values that they use; this catches all other failures that a damaged file can cause
        problem = f"its config and tensors do not fit together ({error_text(error)})"
        raise CorruptWeights(f"{files.path}: {problem}; {_REMEDY}") from error


def save_head(record: HeadRecord, folder: str | Path, *, storage: Storage = "float32", layout: str | None = None,
              tables: TargetTables | None = None) -> Path:  # fmt: skip
    """Write `record` to `folder` as ``config.json``, ``model.safetensors`` and ``CARD.md``, and return the folder.

    Args:
        storage: other programs read float32 and bfloat16; only Paceline reads int8 (one scale per output row), which is
            for releases.
        layout: name of the layout; None for the default layout of the family.
        tables: the target's tables, copied where the head shares them, for programs that need copies.

    Raises:
        InvalidParameter: the layout cannot express the head, or the record has missing or wrong tensors.
    """
    chosen = layout_for(record, layout)
    assert chosen.write is not None
    check_record(record)
    values, tensors = chosen.write(record, tables)
    target = Path(folder).expanduser()
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="partial-", dir=target) as name:
        work = Path(name)
        write_safetensors(work / chosen.file_name, tensors, storage)
        (work / CONFIG).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        (work / CARD).write_text(card_text(record), encoding="utf-8")
        for path in work.iterdir():
            os.replace(path, target / path.name)
    return target


def store_in_card(folder: str | Path, name: str, value: object) -> None:
    """Set the entry `name` in the card of a saved head (its folder or file), and leave everything else unchanged.

    Raises:
        InvalidParameter: the head was written by another program and has no card.
    """
    place = Path(folder).expanduser()
    place = place.parent if place.is_file() else place
    values = read_json(place / CONFIG, _REMEDY)
    if KEY not in values:
        raise InvalidParameter("head", f"{place} has no card", "convert it first: paceline heads convert --to paceline")
    values[KEY].setdefault("card", {})[name] = value
    (place / CONFIG).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    (place / CARD).write_text(card_text(read_head(place)), encoding="utf-8")


def layout_for(record: HeadRecord, name: str | None = None) -> Layout:
    """The layout called `name`, or by default the first, that supports the family of `record`.

    Raises:
        InvalidParameter: there is no such layout.
    """
    able = [layout for layout in LAYOUTS if layout.write and record.config.family in layout.families]
    for layout in able:
        if name in (None, layout.name):
            return layout
    names = ", ".join(layout.name for layout in able) or "none"
    raise InvalidParameter("layout", f"{name!r} cannot hold a {record.config.family} head", f"choose one of: {names}")


def check_record(record: HeadRecord) -> None:
    """Check that a record holds exactly the tensors that its config requires.

    Raises:
        InvalidParameter: naming the first tensor that is missing, superfluous or of another shape.
    """
    shapes = head_shapes(record.config)
    for name in (*shapes, *record.tensors):
        found = record.tensors[name].shape if name in record.tensors else None
        if found != shapes.get(name):
            raise InvalidParameter(
                name, f"has shape {found}, the head's description asks for {shapes.get(name)}",
                "make tensors and description agree (shapes.head_shapes)",
            )  # fmt: skip
    size = record.config.target.vocab_size if record.draft_ids is None else record.draft_ids.size
    if size != record.config.draft_vocab_size:
        raise InvalidParameter(
            "draft_ids", f"names {size} tokens, draft_vocab_size is {record.config.draft_vocab_size}", "make them agree"
        )


def _weights_in(folder: Path) -> list[Path]:
    single = folder / WEIGHTS
    if single.is_file():
        return [single]
    shards = sorted(folder.glob("*.safetensors"))
    if shards:
        return shards
    pickles = [folder / name for name in _PICKLES if (folder / name).is_file()]
    if len(pickles) > 1:
        raise CorruptWeights(f"{folder}: holds {' and '.join(path.name for path in pickles)}; keep one of them")
    return pickles
