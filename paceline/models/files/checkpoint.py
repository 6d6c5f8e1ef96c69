"""`Checkpoint`: the weights and configuration of a model in any file format, read lazily.

Readers (`gguf_file.py`, `safetensors_folder.py`) implement it; executors consume it. Tensor names are the same for all
families (``model.layers.0.self_attn.q_proj.weight``; see `families.py`). Linear layers are [out, in], norm weights are
the factors themselves (no offset), and rotary dimensions are in halves as in transformers (not interleaved). A reader
converts what its format or its family does differently.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from paceline.errors import CorruptWeights
from paceline.models.architecture.config import ModelConfig

FLOATS = ("F32", "F16", "BF16")
"""Storage types of floats; all others are blocks or integers."""


class Checkpoint(Protocol):
    """Weights of one model."""

    @property
    def config(self) -> ModelConfig:
        """The architecture and its sizes, as the file gives them."""
        ...

    @property
    def fingerprint(self) -> str:
        """A key that changes whenever the weight files do; names the entry in the cache of converted weights."""
        ...

    @property
    def storage(self) -> str:
        """How most of the weights are stored: ``BF16``, ``F16``, ``F32``, or a format of blocks, e.g. ``Q4_0``."""
        ...

    def names(self) -> Sequence[str]:
        """Names of the tensors the model needs, in order of use."""
        ...

    def tensor(self, name: str) -> np.ndarray:
        """The tensor as float32. Raises CorruptWeights when its bytes cannot be read."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class StoredBlocks:
    """A matrix in the quantised blocks of its file.

    Attributes:
        storage: the kind of block, by GGUF's name.
        rows: [n, bytes of a row] uint8, in the order of the model's rows.
        block_bytes: bytes of a block.
    """

    storage: str
    rows: np.ndarray
    block_bytes: int

    @property
    def floats(self) -> bool:
        """Whether its values are stored in 16 or 32 bits, each by itself."""
        return self.storage in FLOATS


def finite(values: np.ndarray, name: str, file: object) -> np.ndarray:
    """`values`, the tensor called `name` in `file`, after checking that they are finite.

    Raises:
        CorruptWeights: a value is infinite or NaN.
    """
    if not np.isfinite(values).all():
        raise CorruptWeights(f"{file}: {name} holds numbers that are not finite; download the model again")
    return values


@runtime_checkable
class LiesInFiles(Protocol):
    """A `Checkpoint` that was read from files."""

    @property
    def path(self) -> Path:
        """What the user named: a file, or a folder; other files of the model lie in it or beside it."""
        ...

    @property
    def weight_files(self) -> Sequence[Path]:
        """The files that hold the weights."""
        ...


@runtime_checkable
class KeepsBlocks(Protocol):
    """A `Checkpoint` that may hold matrices in quantised blocks, which kernels can multiply directly."""

    @property
    def storages(self) -> frozenset[str]:
        """All storage types of its tensors, see `Checkpoint.storage`."""
        ...

    def blocks(self, name: str) -> StoredBlocks | None:
        """The tensor called `name` in blocks; None where it has no rows of blocks. Raises as `tensor` does."""
        ...


ENTRANCE = ("fc.weight", "embed_norm.weight", "hidden_norm.weight")
"""Tensors of a prediction layer beside those of a layer: projection, and norms of embedding and hidden state."""


@runtime_checkable
class Predicts(Protocol):
    """A `Checkpoint` that may hold a layer for multi-token prediction (DeepSeek-AI 2024, section 2.2)."""

    def prediction_layer(self) -> Checkpoint | None:
        """That layer as a model of one layer, with a final norm of its own; None where there is none.

        It also has the tensors `ENTRANCE`. Embedding and output head are the model's.
        """
        ...


@runtime_checkable
class LetsGo(Protocol):
    """A `Checkpoint` whose file is memory-mapped."""

    def let_go(self) -> None:
        """Release the memory of pages that were read so far; they are read from the file again when needed."""
        ...
