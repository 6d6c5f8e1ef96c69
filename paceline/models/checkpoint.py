"""`Checkpoint`: a model's weights and tokenizer wherever they come from, read lazily.

Readers (`gguf_file.py`, `safetensors_folder.py`) implement it; executors consume it. Tensor names are the same for all
families (``model.layers.0.self_attn.q_proj.weight``; see `families.py`), linear layers are [out, in], weights of norms
are what is multiplied with, rotary halves are transformers' (rotate-half, not interleaved): a reader undoes what its
format or its family does differently.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from paceline.errors import CorruptWeights
from paceline.models.config import ModelConfig


class Checkpoint(Protocol):
    """Weights of one model."""

    @property
    def config(self) -> ModelConfig:
        """The architecture and its sizes, as the file gives them."""
        ...

    @property
    def fingerprint(self) -> str:
        """A key that changes whenever the weights do; names the entry in the cache of converted weights."""
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
    """A matrix as its file has it.

    Attributes:
        storage: the kind of block, by GGUF's name.
        rows: [n, bytes of a row] uint8, in our order of rows.
        block_bytes: bytes of a block.
    """

    storage: str
    rows: np.ndarray
    block_bytes: int


def finite(values: np.ndarray, name: str, file: object) -> np.ndarray:
    """`values`, the tensor called `name` in `file`.

    Raises:
        CorruptWeights: one of them is not a finite number: every answer would be made of it.
    """
    if not np.isfinite(values).all():
        raise CorruptWeights(f"{file}: {name} holds numbers that are not finite; download the model again")
    return values


@runtime_checkable
class KeepsBlocks(Protocol):
    """What a `Checkpoint` has besides when its matrices are stored in blocks that kernels can multiply."""

    @property
    def storages(self) -> frozenset[str]:
        """Every way in which tensors are stored, see `Checkpoint.storage`."""
        ...

    def blocks(self, name: str) -> StoredBlocks | None:
        """The tensor called `name` as it is stored; None where its rows cannot be had so. Raises as `tensor` does."""
        ...


@runtime_checkable
class LetsGo(Protocol):
    """What a `Checkpoint` has besides when its file is mapped into memory."""

    def let_go(self) -> None:
        """Let the system take back what was read so far; it is read again when it is asked for."""
        ...
