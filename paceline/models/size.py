"""How large a model is: parameters and stored bytes, from its configuration alone."""

from math import prod

from paceline.models.config import ModelConfig
from paceline.models.tensor_names import tensor_shapes

_BYTES = {"gguf": 0.6, "int8": 1, "w8a8": 1, "bfloat16": 2, "float16": 2, "float32": 4}
"""Of a stored weight; of most files of 4-bit blocks."""


def num_parameters(config: ModelConfig) -> int:
    """Weights of a model, a tied output head counted once."""
    return sum(prod(shape) for shape in tensor_shapes(config).values())


def stored_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes of the weights stored as `dtype`."""
    return int(num_parameters(config) * _BYTES.get(dtype, 2))
