"""How large a model is: parameters and stored bytes, from its configuration alone."""

from dataclasses import replace
from math import inf, prod

from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.tensor_names import tensor_shapes

_BYTES = {"gguf": 0.6, "int8": 1, "w8a8": 1, "bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes per stored weight by dtype; ``gguf`` is that of most files of 4-bit blocks."""


def num_parameters(config: ModelConfig) -> int:
    """Number of weights of a model; a tied output head is counted once."""
    return sum(prod(shape) for shape in tensor_shapes(config).values())


def stored_bytes(config: ModelConfig, dtype: str) -> int:
    """Bytes of the weights stored as `dtype`."""
    return int(num_parameters(config) * _bytes_per_weight(dtype))


def bytes_per_pass(config: ModelConfig, dtype: str, scored: int | None = None, num_layers: int | None = None) -> int:
    """Bytes of weights, stored as `dtype`, that a pass over one row reads; arguments as `weights_per_row`."""
    return int(weights_per_row(config, scored, num_layers) * _bytes_per_weight(dtype))


def weights_per_row(config: ModelConfig, scored: int | None = None, num_layers: int | None = None) -> int:
    """Number of weights that a pass over one row reads.

    Tables of embeddings are not counted: one row of them is read. Of the output head the first `scored` tokens count,
    and the first `num_layers` layers; both default to all. Of a layer's experts those count that a row is routed to.
    """
    if config.experts:
        config = replace(config, experts=config.experts.without_the_rest())
    if num_layers is not None:
        config = replace(config, num_hidden_layers=num_layers, windows=config.windows[:num_layers],
                         layer_sizes=config.layer_sizes[:num_layers])  # fmt: skip
    head = config.vocab_size if scored is None else min(scored, config.vocab_size)
    tables = 1 if config.tie_word_embeddings else 2
    weights = num_parameters(config) + (head - tables * config.vocab_size) * config.hidden_size
    return weights - config.vocab_size * config.num_hidden_layers * config.hidden_size_per_layer_input


def balanced_context(config: ModelConfig) -> float:
    """Tokens before a row with which its attention takes as many operations as its products with weights.

    Infinite where no layer attends to all tokens. A weight takes 2 operations, a token 4 for each number of the
    queries: for its score, and for its value.
    """
    full = [layer for layer in config.attention_layers if not config.window(layer)]
    per_token = 2 * config.num_attention_heads * sum(config.sizes(layer).head_dim for layer in full)
    return weights_per_row(config, scored=0) / per_token if per_token else inf


def _bytes_per_weight(dtype: str) -> float:
    return _BYTES.get(dtype, 2)
