"""`GGUFCheckpoint`: a model in a GGUF file or its parts, memory-mapped and dequantised tensor by tensor.

`sources.py` describes what the format does differently (names, stacked tensors, the row order of Llama's queries and
keys). Not for the vocabulary (`gguf_vocabulary.py`) and not for running a model.
"""

import math
import mmap
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import CorruptWeights
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.tensor_names import check_depth
from paceline.models.files.checkpoint import StoredBlocks, finite
from paceline.models.files.fingerprint import fingerprint_of
from paceline.models.files.gguf_header import BLOCKS, TensorEntry
from paceline.models.files.gguf_parts import read_parts
from paceline.models.files.sources import (
    Source,
    check_complete,
    check_gguf_layers,
    gguf_prediction,
    gguf_sources,
    prediction_sources,
)

_ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight")
"""Tensors of divisors of the inverse frequencies: Llama 3's, and LongRoPE's within the original context."""


class GGUFCheckpoint:
    """Weights and metadata of the GGUF file at `path`, including the other parts where it is one of several.

    Raises:
        ModelNotFound: there is no such file.
        CorruptWeights: the file is truncated or damaged, or lacks a part or a tensor that its architecture needs.
        UnsupportedModel: an architecture, setting or storage type is not supported.
    """

    def __init__(self, path: str | Path) -> None:
        self._path, self._part = Path(path), ""
        self._parts = read_parts(self._path)
        self._entries = {name: entry for part in self._parts for name, entry in part.header.tensors.items()}
        self._part_of = {name: part for part in self._parts for name in part.header.tensors}
        shapes = {name: entry.shape for name, entry in self._entries.items()}
        self._config = ModelConfig.from_gguf(self.metadata, shapes, self._rope_factors())
        check_depth(self._config, len(shapes), self._path)
        sources = gguf_sources(self._config, shapes.__contains__)
        self._sources: dict[str, Source] = check_complete(sources, shapes, self._path)
        check_gguf_layers(self._config, self.metadata, shapes, self._path)

    def __reduce__(self):
        """A checkpoint is pickled as its path."""
        return GGUFCheckpoint, (self._path,)

    @property
    def path(self) -> Path:
        """The path that was given: the file, or one of its parts."""
        return self._path

    @property
    def weight_files(self) -> Sequence[Path]:
        """See `LiesInFiles`: the file, or all parts."""
        return tuple(part.path for part in self._parts)

    @property
    def config(self) -> ModelConfig:
        """See `Checkpoint.config`."""
        return self._config

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The file's key-value pairs, including the vocabulary."""
        return self._parts[0].header.metadata

    @property
    def fingerprint(self) -> str:
        """See `Checkpoint.fingerprint`."""
        return fingerprint_of([part.path for part in self._parts]) + self._part

    @property
    def storage(self) -> str:
        """The storage type with the most values."""
        num_values: Counter[str] = Counter()
        for entry in self._entries.values():
            num_values[entry.storage] += math.prod(entry.shape)
        return num_values.most_common(1)[0][0]

    @property
    def storages(self) -> frozenset[str]:
        """See `KeepsBlocks`."""
        return frozenset(entry.storage for entry in self._entries.values())

    def names(self) -> Sequence[str]:
        """See `Checkpoint.names`."""
        return tuple(self._sources)

    def tensor(self, name: str) -> np.ndarray:
        """The tensor called `name` as float32.

        Raises:
            CorruptWeights: there is no such tensor, or it holds numbers that are not finite.
        """
        source = self._source(name)
        return finite(source.values(self._read(self._entries[source.name])), source.name, self._path)

    def blocks(self, name: str) -> StoredBlocks | None:
        """See `KeepsBlocks`: rows of blocks read from the memory map; None for a vector, and where they are columns."""
        source = self._source(name)
        entry = self._entries[source.name]
        if len(source.shape) != 2 or len(entry.shape) < 2 or source.transposed:
            return None
        rows = self._raw(entry).reshape(math.prod(entry.shape[:-1]), -1)
        _check_scales(rows, entry, self._part_of[entry.name].path)
        return StoredBlocks(entry.storage, source.rows(rows), BLOCKS[entry.storage][2])

    def prediction_layer(self) -> "GGUFCheckpoint | None":
        """See `Predicts`. Raises CorruptWeights where a tensor of it is missing or of another shape."""
        shapes = {name: entry.shape for name, entry in self._entries.items()}
        prediction = gguf_prediction(self._config, shapes)
        if prediction is None:
            return None
        view = copy(self)
        view._config, view._part = self._config.of_prediction(), "-prediction"
        sources = gguf_sources(view._config, lambda name: prediction.own(name) in shapes)
        view._sources = check_complete(prediction_sources(view._config, sources, prediction), shapes, self._path)
        return view

    def let_go(self) -> None:
        """See `LetsGo`."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for part in self._parts:
                part.data.madvise(mmap.MADV_DONTNEED)

    def _source(self, name: str) -> Source:
        if name not in self._sources:
            raise CorruptWeights(f"{self._path}: has no tensor {name}; the model has {len(self._sources)} others")
        return self._sources[name]

    def _raw(self, entry: TensorEntry) -> np.ndarray:
        """The bytes of a tensor, flat."""
        return _bytes_of(self._part_of[entry.name].data, entry)

    def _read(self, entry: TensorEntry) -> np.ndarray:
        return read_values(self._part_of[entry.name].data, entry)

    def _rope_factors(self) -> tuple[float, ...] | None:
        entries = [self._entries[name] for name in _ROPE_FACTORS if name in self._entries]
        return tuple(self._read(entries[0]).reshape(-1).tolist()) if entries else None


def read_values(data: mmap.mmap, entry: TensorEntry) -> np.ndarray:
    """The values of a tensor in the mapped file `data`, float32 in its shape."""
    _, block, block_bytes = BLOCKS[entry.storage]
    raw = _bytes_of(data, entry)
    if entry.storage == "F32":
        return raw.view(np.float32).reshape(entry.shape).copy()
    if entry.storage == "F16":
        return raw.view(np.float16).reshape(entry.shape).astype(np.float32)
    # Imported here: it takes a tenth of a second and is not needed for a model that is in the cache.
    from gguf import GGMLQuantizationType, quants

    rows = raw.reshape(-1, entry.shape[-1] // block * block_bytes)
    return quants.dequantize(rows, GGMLQuantizationType[entry.storage]).reshape(entry.shape)


def _bytes_of(data: mmap.mmap, entry: TensorEntry) -> np.ndarray:
    return np.frombuffer(data, np.uint8, entry.num_bytes, entry.offset)


_SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
}  # fmt: skip
"""Byte offsets of the float16 scales in a block."""
_LARGEST_EXPONENTS = {"MXFP4": 252}
"""Largest exponent of blocks that begin with an exponent byte; with a larger one values overflow float32."""


def _check_scales(rows: np.ndarray, entry: TensorEntry, path: Path) -> None:
    """Refuse blocks [rows, bytes] with a scale that is not finite."""
    blocks = rows.reshape(-1, BLOCKS[entry.storage][2])
    wrong = bool((blocks[:, 0] > _LARGEST_EXPONENTS.get(entry.storage, 255)).any())
    for at in _SCALES.get(entry.storage, ()):
        high = np.ascontiguousarray(blocks[:, at + 1]) & 0x7C
        wrong = wrong or bool((high == 0x7C).any())  # all bits of the exponent
    if wrong:
        raise CorruptWeights(f"{path}: {entry.name} holds scales that are not finite; download the model again")
