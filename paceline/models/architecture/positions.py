"""The rotary tables of a model and which layer uses which, for every executor.

Not for reading rotary settings from a configuration (`rope.py`).
"""

import numpy as np

from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.rope import inverse_frequencies

NO_TABLE = -1


def rotary_dim(config: ModelConfig) -> int:
    """Number of leading dimensions of a head that are rotated; the most where heads of layers differ."""
    return config.rotary_dim or config.head_dim


def rope_table_of(config: ModelConfig, layer: int) -> int:
    """Index of the layer's rotary table: 1 in a layer with a window and a base of its own, else 0; or `NO_TABLE`."""
    if config.position_embedding == "learned" or layer in config.layers_without_rope:
        return NO_TABLE
    return int(config.rope_local_theta is not None and config.window(layer) > 0)


def frequencies(config: ModelConfig) -> list[np.ndarray]:
    """Inverse frequencies [rotary_dim / 2] of each table, for the heads of its layers; none for learned positions."""
    if config.position_embedding == "learned":
        return []
    tables = [inverse_frequencies(config.rope_theta, _dim_of(config, 0), config.rope_inv_freq_scale)]
    if config.rope_local_theta is None:
        return tables
    return [*tables, inverse_frequencies(config.rope_local_theta, _dim_of(config, 1))]


def _dim_of(config: ModelConfig, table: int) -> int:
    """Rotated dimensions of the heads that use a table."""
    dims = [one.head_dim for i, one in enumerate(config.layer_sizes) if rope_table_of(config, i) == table]
    return dims[0] if dims else rotary_dim(config)


def growths(config: ModelConfig) -> list[float]:
    """The factor on sines and cosines of each table."""
    return [config.rope_factor, 1.0][: len(frequencies(config))]


def rotary_tables(config: ModelConfig, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines [tables, length, rotary_dim / 2] float32 of the positions 0 .. length - 1.

    Shorter tables, of layers with smaller heads, end in angles of 0.
    """
    half = rotary_dim(config) // 2
    tables = [np.pad(table, (0, half - len(table))) for table in frequencies(config)]
    angles = np.stack([np.arange(length)[:, None] * table for table in tables] or [np.zeros((0, 0))])
    factors = np.array(growths(config) or [1.0])[:, None, None]
    return (np.cos(angles) * factors).astype(np.float32), (np.sin(angles) * factors).astype(np.float32)
