"""`GGUFCheckpoint`: a model in one GGUF file, memory-mapped and dequantised tensor by tensor.

Undoes what the format does differently: names, GPT-2's transposed linear layers, and the row order of Llama's queries
and keys. Not for the vocabulary (`gguf_vocabulary.py`) and not for running anything.
"""

import hashlib
import mmap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import CorruptWeights, ModelNotFound, UnsupportedModel
from paceline.models.checkpoint import StoredBlocks
from paceline.models.config import ModelConfig
from paceline.models.gguf_header import BLOCKS, GGUFHeader, TensorEntry, read_header
from paceline.models.tensor_names import check_complete, check_depth, gguf_name, tensor_shapes

_ROPE_FACTORS = "rope_freqs.weight"


class GGUFCheckpoint:
    """Weights and metadata of the GGUF file at `path`.

    Raises:
        ModelNotFound: there is no such file.
        CorruptWeights: truncated, damaged, or without a tensor its architecture needs.
        UnsupportedModel: an architecture, setting or storage type that cannot be run.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._data = _map_file(self._path)
        self._header: GGUFHeader = read_header(self._data, self._path)
        if self.metadata.get("split.count", 1) > 1:
            raise UnsupportedModel(
                f"{self._path}: one of several parts; merge them into one file with gguf-split --merge"
            )
        shapes = {name: entry.shape for name, entry in self._header.tensors.items()}
        self._config = ModelConfig.from_gguf(self.metadata, shapes, self._rope_factors())
        check_depth(self._config, len(shapes), self._path)
        self._gguf_names = {name: gguf_name(self._config, name) for name in tensor_shapes(self._config)}
        found = {name: self._shape(theirs) for name, theirs in self._gguf_names.items() if theirs in shapes}
        check_complete(self._config, found, self._path)

    def __reduce__(self):
        """To another process a checkpoint travels as its path."""
        return GGUFCheckpoint, (self._path,)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def config(self) -> ModelConfig:
        """See `Checkpoint.config`."""
        return self._config

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The file's key-value pairs; the vocabulary is among them."""
        return self._header.metadata

    @property
    def fingerprint(self) -> str:
        """Size, times and place of the file: a replaced file has another one, and nothing is read to find out."""
        stat = self._path.stat()
        key = f"{self._path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
        return hashlib.sha256(key.encode()).hexdigest()[:32]

    @property
    def storage(self) -> str:
        """The storage type with the most bytes."""
        num_bytes: Counter[str] = Counter()
        for entry in self._header.tensors.values():
            num_bytes[entry.storage] += entry.num_bytes
        return num_bytes.most_common(1)[0][0]

    @property
    def storages(self) -> frozenset[str]:
        """See `KeepsBlocks`."""
        return frozenset(entry.storage for entry in self._header.tensors.values())

    def names(self) -> Sequence[str]:
        """transformers' names of the model's tensors, in order of use."""
        return tuple(self._gguf_names)

    def tensor(self, name: str) -> np.ndarray:
        """The tensor called `name` as float32, in transformers' shape and row order.

        Raises:
            CorruptWeights: there is no such tensor.
        """
        values = self._read(self._entry(name))
        if self._is_transposed(self._gguf_names[name]):
            return np.ascontiguousarray(values.T)
        return self._unpermuted(name, values)

    def blocks(self, name: str) -> StoredBlocks | None:
        """See `KeepsBlocks`: rows of blocks straight from the memory map; None for a transposed or flat tensor."""
        entry = self._entry(name)
        if self._is_transposed(self._gguf_names[name]) or len(entry.shape) != 2:
            return None
        block_bytes = BLOCKS[entry.storage][2]
        raw = np.frombuffer(self._data, np.uint8, entry.num_bytes, entry.offset)
        return StoredBlocks(entry.storage, self._unpermuted(name, raw.reshape(entry.shape[0], -1)), block_bytes)

    def _entry(self, name: str) -> TensorEntry:
        if name not in self._gguf_names:
            raise CorruptWeights(f"{self._path}: has no tensor {name}; the model has {len(self._gguf_names)} others")
        return self._header.tensors[self._gguf_names[name]]

    def _read(self, entry: TensorEntry) -> np.ndarray:
        _, block, block_bytes = BLOCKS[entry.storage]
        raw = np.frombuffer(self._data, np.uint8, entry.num_bytes, entry.offset)
        if entry.storage == "F32":
            return raw.view(np.float32).reshape(entry.shape).copy()
        if entry.storage == "F16":
            return raw.view(np.float16).reshape(entry.shape).astype(np.float32)
        # Imported here: it costs a tenth of a second, and a model that was converted before never comes this way.
        from gguf import GGMLQuantizationType, quants

        rows = raw.reshape(-1, entry.shape[-1] // block * block_bytes)
        return quants.dequantize(rows, GGMLQuantizationType[entry.storage]).reshape(entry.shape)

    def _rope_factors(self) -> tuple[float, ...] | None:
        entry = self._header.tensors.get(_ROPE_FACTORS)
        return None if entry is None else tuple(self._read(entry).tolist())

    def _shape(self, theirs: str) -> tuple[int, ...]:
        shape = self._header.tensors[theirs].shape
        return shape[::-1] if self._is_transposed(theirs) else shape

    def _is_transposed(self, theirs: str) -> bool:
        """GPT-2's layers inside a block: GGUF has [out, in], transformers keeps [in, out]."""
        return self._config.model_type == "gpt2" and theirs.startswith("blk.") and theirs.endswith(".weight")

    def _unpermuted(self, name: str, values: np.ndarray) -> np.ndarray:
        """Rows of Llama queries and keys back from interleaved pairs (2i, 2i + 1) to halves (i, i + head_dim / 2)."""
        is_key = ".k_proj." in name
        if self._config.model_type != "llama" or not (is_key or ".q_proj." in name):
            return values
        heads = self._config.num_key_value_heads if is_key else self._config.num_attention_heads
        pairs = values.reshape(heads, self._config.head_dim // 2, 2, -1)
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _map_file(path: Path) -> mmap.mmap:
    if not path.is_file():
        raise ModelNotFound(f"{path}: no such file; check the path of the GGUF file")
    if path.stat().st_size == 0:
        raise CorruptWeights(f"{path}: the file is empty; download it again")
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
