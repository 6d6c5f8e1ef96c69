"""Which layer turns its queries and keys by which angles: the rotary tables of a model, for every executor.

Not for how a configuration spells them (`rope.py`).
"""

import numpy as np

from paceline.models.config import ModelConfig
from paceline.models.rope import inverse_frequencies

NO_TABLE = -1


def rotary_dim(config: ModelConfig) -> int:
    """How much of a head turns, from its front."""
    return config.rotary_dim or config.head_dim


def rope_table_of(config: ModelConfig, layer: int) -> int:
    """The number of the layer's table: 0, 1 in a layer with a window and a base of its own, `NO_TABLE` for none."""
    if config.position_embedding == "learned" or layer in config.layers_without_rope:
        return NO_TABLE
    return int(config.rope_local_theta is not None and config.window(layer) > 0)


def frequencies(config: ModelConfig) -> list[np.ndarray]:
    """Inverse frequencies [rotary_dim / 2] of each table; none where positions are learned."""
    if config.position_embedding == "learned":
        return []
    dim = rotary_dim(config)
    tables = [inverse_frequencies(config.rope_theta, dim, config.rope_inv_freq_scale)]
    return tables if config.rope_local_theta is None else [*tables, inverse_frequencies(config.rope_local_theta, dim)]


def growths(config: ModelConfig) -> list[float]:
    """What sines and cosines of each table are multiplied with."""
    return [config.rope_factor, 1.0][: len(frequencies(config))]


def rotary_tables(config: ModelConfig, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines [tables, length, rotary_dim / 2] float32 of the positions 0 .. length - 1."""
    angles = np.stack([np.arange(length)[:, None] * table for table in frequencies(config)] or [np.zeros((0, 0))])
    factors = np.array(growths(config) or [1.0])[:, None, None]
    return (np.cos(angles) * factors).astype(np.float32), (np.sin(angles) * factors).astype(np.float32)
