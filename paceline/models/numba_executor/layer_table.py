"""The sizes of each layer as the kernels read them, and where its weights, keys and values begin.

A pass looks a layer's row up once. Recurrent layers have no attention: zeros. Not for sizes that all layers share
(`forward.Shape`) or for weights (`weights.py`).
"""

# pyright: reportCallIssue=false, reportArgumentType=false
# (Numba's functions have another signature in compiled code than in Python)

from typing import NamedTuple

import numpy as np

from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.positions import rotary_dim
from paceline.models.compiled.kernel import kernel
from paceline.models.numba_executor.gemm import padded_rows
from paceline.models.numba_executor.latent import LatentShape

(HEAD_DIM, KV_HEADS, PROJECTED, VALUES, ROTARY, INNER, CACHE, QKV, FIRST_QKV, FIRST_OUTPUT, FIRST_GATE_UP,
 FIRST_DOWN, DOWN_COLUMN, MIXTURE) = range(14)  # fmt: skip
"""Columns: sizes of a head and number of key-value heads; how many of these the layer projects, and whether values are
projected too; dimensions of a head that turn; width of the feed-forward, 0 where there is none; dimensions of keys of
earlier layers in a page of the cache; columns of the matrix of queries, keys and values. Then where the layer's
matrices begin: the first column of that matrix and of gate and up, the first element of the output's and of down, and
the first column of down. Last, the layer's number among those with experts, or -1."""


class Heads(NamedTuple):
    """The attention of one layer, under the names that `Shape` has."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv: int
    page_dims: int
    attention_scale: np.float32
    attention_cap: np.float32
    gated_attention: bool
    latent: LatentShape


@kernel
def heads_of(sizes, shape):
    """The `Heads` of a layer, from its row of the table."""
    return Heads(
        shape.heads, sizes[KV_HEADS], sizes[HEAD_DIM], shape.qkv, shape.page_dims, shape.attention_scale,
        shape.attention_cap, shape.gated_attention, shape.latent,
    )  # fmt: skip


def layer_table(config: ModelConfig) -> np.ndarray:
    """[layers, columns] int64."""
    layers, heads, hidden = range(config.num_hidden_layers), config.num_attention_heads, config.hidden_size
    table, each = np.zeros((len(layers), MIXTURE + 1), np.int64), 2 if config.is_gated else 1
    for layer in config.attention_layers:
        one, row = config.sizes(layer), table[layer]
        row[[HEAD_DIM, KV_HEADS]] = one.head_dim, one.num_key_value_heads
        row[[PROJECTED, VALUES]] = one.num_key_value_heads * one.has_keys, one.has_values
        row[ROTARY] = one.head_dim if config.layer_sizes else rotary_dim(config)
        own = heads * (1 + config.attention_gate) + one.num_key_value_heads * (one.has_keys + one.has_values)
        row[QKV] = padded_rows((heads if config.latent else own) * one.head_dim)
    table[:, INNER] = [config.sizes(layer).intermediate_size for layer in layers]
    if config.position_embedding == "learned":
        table[:, ROTARY] = 0
    table[:, CACHE] = _before(table[:, PROJECTED] * table[:, HEAD_DIM])[[config.sizes(i).cache_layer for i in layers]]
    table[:, FIRST_QKV] = _before(table[:, QKV])
    values = (table[:, HEAD_DIM] > 0) * config.value_dim if config.latent else table[:, HEAD_DIM]
    table[:, FIRST_OUTPUT] = _before(values * heads * hidden)
    table[:, FIRST_GATE_UP] = _before(table[:, INNER] * each)
    table[:, FIRST_DOWN] = _before(table[:, INNER] * hidden)
    table[:, DOWN_COLUMN] = _before((table[:, INNER] > 0) * hidden)
    table[:, MIXTURE] = -1
    table[list(config.expert_layers), MIXTURE] = range(len(config.expert_layers))
    return table


def page_dims(table: np.ndarray) -> int:
    """Dimensions of the keys of a token, of all layers."""
    return int((table[:, PROJECTED] * table[:, HEAD_DIM]).sum())


def row_size(config: ModelConfig, table: np.ndarray) -> int:
    """Numbers of a row of queries, keys, values and gates, in whole panels.

    There is room for values that are not projected, but none for keys and values that are latent.
    """
    if config.latent:
        return int(table[:, QKV].max())
    queries = config.num_attention_heads * (1 + config.attention_gate)
    return padded_rows(int(((queries + 2 * table[:, PROJECTED]) * table[:, HEAD_DIM]).max()))


def _before(sizes: np.ndarray) -> np.ndarray:
    """For each layer the sum over the layers before it."""
    return np.cumsum(sizes) - sizes
