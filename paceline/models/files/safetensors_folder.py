"""`SafetensorsCheckpoint`: a model folder as transformers saves it, in one safetensors file or in shards.

Not for the format of the files (`safetensors_header.py`) or the tokenizer in the same folder (`tokenizer_folder.py`).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import CorruptWeights, ModelNotFound, UnsupportedModel
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.families import family_of
from paceline.models.architecture.family import MOST_LAYERS
from paceline.models.architecture.tensor_names import check_depth
from paceline.models.fields import Fields, is_text, shown
from paceline.models.files.byte_tensors import SCALES, bytes_of
from paceline.models.files.checkpoint import StoredBlocks, finite
from paceline.models.files.fingerprint import fingerprint_of
from paceline.models.files.int4_tensors import Int4Matrix, scheme_of
from paceline.models.files.mxfp4_tensors import Mxfp4Matrix
from paceline.models.files.safetensors_header import StoredTensor, experts_apart, read_headers
from paceline.models.files.sources import (
    Source,
    base_prefix,
    check_complete,
    check_transformers_layers,
    prediction_sources,
    transformers_prediction,
    transformers_sources,
    with_prefix,
)
from paceline.models.json_file import read_json

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_WHOLE = {"I32": np.int32, "I64": np.int64, "U8": np.uint8}
_WIDENED = "F32"
"""Storage that 4-bit layers report where their groups are not contiguous, so that they have no blocks."""
_LONGEST_NAME = 255
_OF_HEADS = frozenset({"paceline", "speculators_model_type"})
"""Keys of ``config.json`` that only draft heads have."""


class SafetensorsCheckpoint:
    """Weights of the model in `folder`.

    Raises:
        ModelNotFound: the folder or its ``config.json`` is missing.
        CorruptWeights: a file or a tensor is missing, truncated or damaged.
        UnsupportedModel: an architecture, a setting or a number format is not supported.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder, self._part = Path(folder), ""
        values = _config_values(self._folder)
        if _OF_HEADS & values.keys():
            remedy = "draft with it, as --draft-model beside --draft head"
            raise UnsupportedModel(f"{folder}: is a draft head and not a model; {remedy}")
        self._config, self._int4, self._bytes = ModelConfig.from_hf(values), scheme_of(values), bytes_of(values)
        weight_map = _weight_map(self._folder)
        self._files = _weight_files(self._folder, weight_map)
        entries = read_headers(self._files, weight_map)
        self._entries = experts_apart(with_prefix(entries, base_prefix(self._config)))
        check_depth(self._config, len(entries), self._folder)
        if self._config.tie_word_embeddings and self._has_own_head():
            self._config = replace(self._config, tie_word_embeddings=False)
        shapes = self._shapes()
        self._sources = check_complete(transformers_sources(self._config, shapes), shapes, self._folder)
        predicting = Fields(values).whole("num_nextn_predict_layers", 0, least=0, most=MOST_LAYERS)
        check_transformers_layers(self._config, self._entries, self._folder, predicting)

    def __reduce__(self):
        """A checkpoint is pickled as its path."""
        return SafetensorsCheckpoint, (self._folder,)

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder

    @property
    def weight_files(self) -> Sequence[Path]:
        """The files that hold the weights."""
        return tuple(self._files)

    @property
    def config(self) -> ModelConfig:
        """See `Checkpoint.config`."""
        return self._config

    @property
    def fingerprint(self) -> str:
        """See `Checkpoint.fingerprint`."""
        return fingerprint_of([self._folder / "config.json", *self._files]) + self._part

    @property
    def storage(self) -> str:
        """The storage type with the most values; for a 4-bit model that of its 4-bit layers."""
        if self._int4_shapes():
            return self._int4.storage if self._int4 and self._has_blocks else _WIDENED
        num_values: Counter[str] = Counter()
        for entry in self._used():
            num_values[entry.storage] += math.prod(entry.shape)
        return num_values.most_common(1)[0][0]

    @property
    def storages(self) -> frozenset[str]:
        """See `KeepsBlocks`."""
        floats = {entry.storage for entry in self._used()}
        return frozenset(floats | {self.storage} if self._int4_shapes() else floats)

    def blocks(self, name: str) -> StoredBlocks | None:
        """See `KeepsBlocks`: the blocks of a 4-bit layer; None for other tensors."""
        source = self._source(name)
        stored = self._int4_matrix(source.name).blocks(name) if self._is_int4(source.name) else None
        return replace(stored, rows=source.rows(stored.rows)) if stored else None

    def names(self) -> Sequence[str]:
        """See `Checkpoint.names`."""
        return tuple(self._sources)

    def tensor(self, name: str) -> np.ndarray:
        """The tensor called `name` as float32.

        Raises:
            CorruptWeights: there is no such tensor, or it holds numbers that are not finite.
            UnsupportedModel: it is stored in a format other than float32, float16 and bfloat16.
        """
        source = self._source(name)
        stored = self._int4_matrix(source.name).values() if self._is_int4(source.name) else self._floats(source.name)
        return finite(source.values(stored), source.name, self._folder)

    def prediction_layer(self) -> "SafetensorsCheckpoint | None":
        """See `Predicts`. Raises CorruptWeights where a tensor of it is missing or of another shape."""
        found = self._shapes()
        prediction = transformers_prediction(self._config, found)
        if prediction is None:
            return None
        view = copy(self)
        view._config, view._part = self._config.of_prediction(), "-prediction"
        ours = {old + name.removeprefix(new) for old, new in prediction.renamed.items()
                for name in found if name.startswith(new)}  # fmt: skip
        sources = transformers_sources(view._config, ours)
        shift = family_of(self._config.model_type).norm_shift
        view._sources = check_complete(
            prediction_sources(view._config, sources, prediction, shift), found, self._folder
        )  # fmt: skip
        return view

    def _used(self) -> list[StoredTensor]:
        """The stored tensors that the model reads as they are; files have masks and vision towers beside them."""
        names = {source.name for source in self._sources.values()}
        return [entry for name, entry in self._entries.items() if name in names]

    def _source(self, name: str) -> Source:
        if name not in self._sources:
            raise CorruptWeights(f"{self._folder}: has no tensor {name}; the model has {len(self._sources)} others")
        return self._sources[name]

    def _has_own_head(self) -> bool:
        """Whether a whole output head is stored that is not the embeddings; transformers uses it, whatever is said."""
        sources = transformers_sources(self._config, self._entries)
        shared = next(source for name, source in sources if name == "model.embed_tokens.weight")
        head, embeddings = self._entries.get("lm_head.weight"), self._entries.get(shared.name)
        if head is None or embeddings is None or head.shape != embeddings.shape:
            return False
        return not np.array_equal(head.stored(), embeddings.stored())

    def _floats(self, name: str) -> np.ndarray:
        entry = self._entry(name)
        if self._bytes is not None and entry.storage == self._bytes.storage and len(entry.shape) == 2:
            return self._bytes.widened(name, entry.stored().reshape(entry.shape), self._scale(name))
        values = entry.floats()
        if values is None:
            raise UnsupportedModel(
                f"{self._folder}: {name} is stored as {entry.storage}; take the model in bfloat16, float16 or float32"
            )
        return values

    def _scale(self, name: str) -> np.ndarray:
        """The scale of a layer of 8 bits, finite."""
        names = [name.removesuffix("weight") + scale for scale in SCALES]
        found = next((each for each in names if each in self._entries), names[0])
        return finite(self._floats(found), found, self._folder)

    def _stored(self, name: str) -> np.ndarray:
        """A stored tensor: integers in their own type, floats as float32."""
        entry = self._entry(name)
        if entry.storage not in _WHOLE:
            return self._floats(name)
        return entry.stored(_WHOLE[entry.storage]).reshape(entry.shape)

    def _entry(self, name: str) -> StoredTensor:
        entry = self._entries.get(name)
        if entry is None:
            raise CorruptWeights(f"{self._folder}: has no tensor {name}; download the model again")
        return entry

    @cached_property
    def _has_blocks(self) -> bool:
        """Whether all 4-bit layers have blocks (see `Int4Scheme.keeps_runs`)."""
        return self._int4 is not None and self._int4.keeps_runs(self._stored, self._entries)

    def _is_int4(self, name: str) -> bool:
        return self._int4 is not None and f"{name.removesuffix('weight')}{self._int4.stem}" in self._entries

    def _int4_matrix(self, name: str) -> Int4Matrix | Mxfp4Matrix:
        assert self._int4 is not None
        return self._int4.matrix(name.removesuffix(".weight"), self._stored, self._entries)

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Name to shape of every stored tensor, and of every weight in 4-bit codes."""
        return {name: entry.shape for name, entry in self._entries.items()} | self._int4_shapes()

    def _int4_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name to shape of every weight that is stored as 4-bit codes."""
        if self._int4 is None:
            return {}
        end = f".{self._int4.stem}"
        return {
            f"{name.removesuffix(end)}.weight": self._int4.shape(entry.shape)
            for name, entry in self._entries.items() if name.endswith(end)
        }  # fmt: skip


def folder_config(folder: Path) -> ModelConfig:
    """The config in a model folder, which need not hold weights.

    Raises:
        ModelNotFound, UnsupportedModel, CorruptWeights: see `SafetensorsCheckpoint`.
    """
    return ModelConfig.from_hf(_config_values(folder))


def _config_values(folder: Path) -> dict[str, Any]:
    """The values of config.json, with all end-of-sequence ids, which generation_config.json lists."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelNotFound(f"{path}: missing; {folder} is no model folder, give one that transformers saved")
    values = read_json(path)
    generation = folder / "generation_config.json"
    eos = read_json(generation).get("eos_token_id") if generation.is_file() else None
    return values if eos is None else values | {"eos_token_id": eos}


def _weight_map(folder: Path) -> dict[str, Path]:
    """Tensor name to file, by the index; empty where one file holds all tensors."""
    index = folder / _INDEX
    if (folder / _SINGLE).is_file():
        return {}
    if not index.is_file():
        raise CorruptWeights(f"{folder}: has neither {_SINGLE} nor {_INDEX}; save or download it as safetensors")
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptWeights(f"{index}: has no weight_map; download the model again")
    for name in weight_map.values():
        if not _is_inside(name):
            raise CorruptWeights(f"{index}: {shown(name)} is no file of this folder; download the model again")
    return {tensor: folder / name for tensor, name in weight_map.items()}


def _weight_files(folder: Path, weight_map: Mapping[str, Path]) -> list[Path]:
    files = sorted(set(weight_map.values())) or [folder / _SINGLE]
    missing = [path.name for path in files if not path.is_file()]
    if missing:
        raise CorruptWeights(f"{folder}: {', '.join(missing)} of the index is missing; download the model again")
    return files


def _is_inside(name: object) -> bool:
    """Whether `name` is a path inside the folder of the index."""
    if not is_text(name) or not 0 < len(name) <= _LONGEST_NAME:
        return False
    return not Path(name).is_absolute() and ".." not in Path(name).parts and ":" not in name and "\\" not in name
