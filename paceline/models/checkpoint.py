"""`Checkpoint`: a model's weights and tokenizer wherever they come from, read lazily.

Readers (`gguf_file.py`, `safetensors_folder.py`) implement it; executors consume it. Tensor names are transformers'
(``model.layers.0.self_attn.q_proj.weight``), shapes are transformers' ([out, in] for linear layers), rotary halves are
transformers' (rotate-half, not interleaved): a reader undoes what its format does differently.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

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
        """transformers' names of the tensors the model needs, in order of use."""
        ...

    def tensor(self, name: str) -> np.ndarray:
        """The tensor as float32. Raises CorruptWeights when its bytes cannot be read."""
        ...
