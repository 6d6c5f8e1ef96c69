"""What the kernels of a pass read and write: sizes, weights, the rows of a batch, and buffers.

Named tuples of flat arrays, which numba compiles for. Not for how they are filled (`weights.py`, `executor.py`) or what
is computed (`forward.py`).
"""

from typing import NamedTuple

import numpy as np

from paceline.models.numba_executor.attend import AttentionScratch
from paceline.models.numba_executor.experts import ExpertScratch, ExpertWeights
from paceline.models.numba_executor.latent import LatentShape, LatentWeights
from paceline.models.numba_executor.layer_inputs import InputScratch, VariedWeights
from paceline.models.numba_executor.linear import SILU
from paceline.models.numba_executor.operand import Operand
from paceline.models.numba_executor.recurrent import RecurrentShape, RecurrentWeights, States

_ONE = np.float32(1)


class Shape(NamedTuple):
    """Sizes of the model; `qkv`, `vocab` are padded to whole panels, `scored` is the vocabulary without the padding.

    Where layers differ (`layer_table.py`), `inner`, `kv_heads`, `head_dim`, `qkv` and `rotary` are the largest.
    `mixtures` layers have `experts` feed-forwards of width `inner`, of which each row uses `top_k`, and one of width
    `shared_inner` (0 for none) that every row uses; `norm_top_k` rescales the shares of those chosen to a sum of 1. The
    first `dense_layers` have one feed-forward of width `dense_inner`.

    Attributes:
        sigmoid: scores of experts are sigmoids instead of a softmax. groups, groups_kept: see `Experts.n_group`.
        routed_scale: factor on shares.
        attention_scale, attention_cap: of scores; a cap of 0 is none, here and for logits.
        query_growth, query_growth_every: see `ModelConfig`.
        activation, gated: of the feed-forward, with or without a gate.
        layer_norm: norms subtract the mean and have biases. pre_norms, post_norms: before and after attention and
            feed-forward. apart: what these give is not added at once. parallel: both read the same.
        residual_scale: hidden states are kept divided by it, so that what layers give is added as it is: a norm of
            x / s with epsilon / s^2 is that of x. Taps have them whole.
        wide_norm: norms of queries and keys are over all heads together. norms_last: they come after the rotation.
        latent: sizes of latent attention, whose queries alone are in `qkv`. query_depth: inputs of the product `qkv`.
        gated_attention: a row of `qkv` has one more number per query number, its gate, at the end.
        rotary: dimensions of a head that turn. tables: rotary tables.
        cached: layers with keys and values. recurrent: sizes of the others.
        page_dims: dimensions of a token's keys, of all layers. layer_input: width of a layer's own input, 0 for none.
    """

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    qkv: int
    vocab: int
    scored: int
    experts: int
    top_k: int
    shared_inner: int
    norm_top_k: bool
    attention_scale: np.float32
    attention_cap: np.float32 = np.float32(0)
    query_growth: np.float32 = np.float32(0)
    query_growth_every: int = 1
    activation: int = SILU
    gated: bool = True
    layer_norm: bool = False
    pre_norms: bool = True
    post_norms: bool = False
    apart: bool = False
    parallel: bool = False
    wide_norm: bool = False
    norms_last: bool = False
    gated_attention: bool = False
    rotary: int = 0
    tables: int = 1
    embedding_scale: np.float32 = _ONE
    residual_scale: np.float32 = _ONE
    logit_scale: np.float32 = _ONE
    logit_cap: np.float32 = np.float32(0)
    page_dims: int = 0
    layer_input: int = 0
    sigmoid: bool = False
    groups: int = 1
    groups_kept: int = 1
    routed_scale: np.float32 = _ONE
    mixtures: int = 0
    dense_layers: int = 0
    dense_inner: int = 0
    query_depth: int = 0
    latent: LatentShape = LatentShape()
    cached: int = 0
    recurrent: RecurrentShape = RecurrentShape()


class Weights(NamedTuple):
    """Packed panels, their scales per output column, and vectors; one flat array per kind over all layers.

    `query_norm` and `key_norm` [layers, head_dim] or [layers, heads * head_dim] (zeros after shorter ones) are empty
    where there are no such norms; so are biases, the norms `attention_out_norm` and `mlp_out_norm`, learned
    `positions`, and `sinks` [layers, heads], scores of keys without values.
    `experts`, `latent` and `recurrent` are None where a model has none; the kernels of that part are then not compiled.
    What only layers with attention or only recurrent ones have is flat over these; `places` [layers] is a layer's index
    among its kind, and `is_recurrent` [layers] says which.
    `sizes` [layers, columns] are the layers' sizes and where their matrices begin (`layer_table.py`).
    `windows` and `rope_numbers` [layers]: keys that a row sees (0 for all), and the rotary table (-1 for none).
    `rope_cos` and `rope_sin` are [tables, positions, rotary / 2].

    Panels are an array of numbers, or `Blocks` as a GGUF file has them, whose arrays of scales are empty.
    `gate_up` interleaves panels: gate panel 0, up panel 0, gate panel 1, ... `qkv` stacks query, key and value rows.
    Experts are matrices of `gate_up` and `down` like layers: number layer * experts + expert.
    """

    embedding: np.ndarray
    embedding_scales: np.ndarray
    head: np.ndarray
    head_scales: np.ndarray
    qkv: np.ndarray
    qkv_scales: np.ndarray
    qkv_bias: np.ndarray
    output: np.ndarray
    output_scales: np.ndarray
    output_bias: np.ndarray
    gate_up: np.ndarray
    gate_up_scales: np.ndarray
    gate_up_bias: np.ndarray
    down: np.ndarray
    down_scales: np.ndarray
    down_bias: np.ndarray
    attention_norm: np.ndarray
    attention_norm_bias: np.ndarray
    attention_out_norm: np.ndarray
    mlp_norm: np.ndarray
    mlp_norm_bias: np.ndarray
    mlp_out_norm: np.ndarray
    query_norm: np.ndarray
    key_norm: np.ndarray
    final_norm: np.ndarray
    final_norm_bias: np.ndarray
    positions: np.ndarray
    sinks: np.ndarray
    experts: ExpertWeights | None
    latent: LatentWeights | None
    recurrent: RecurrentWeights | None
    is_recurrent: np.ndarray
    places: np.ndarray
    varied: VariedWeights
    sizes: np.ndarray
    windows: np.ndarray
    rope_numbers: np.ndarray
    rope_cos: np.ndarray
    rope_sin: np.ndarray


class Batch(NamedTuple):
    """The arrays of `models.base.Rows`, and what to do with them.

    `tap_places` [layers + 2] is the place of each tap in `taps`, or -1: what enters a layer, what leaves the last one,
    and what leaves the final norm. `layers` are those to run, ascending. Attention is added to `page_mass` [M, heads,
    pages] unless that is empty. The first layer reads `inputs` [M * hidden] in the place of embeddings, unless empty.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    slots: np.ndarray
    segments: np.ndarray
    page_tables: np.ndarray
    natural_lengths: np.ndarray
    branch_slots: np.ndarray
    logit_rows: np.ndarray
    num_keys: np.ndarray
    tap_places: np.ndarray
    layers: np.ndarray
    page_mass: np.ndarray
    inputs: np.ndarray
    states: States


class Scratch(NamedTuple):
    """Buffers of one pass, flat but for `row`, `gate_up` and `wide`, which are [threads, ...]."""

    counters: np.ndarray
    hidden: np.ndarray
    delta: np.ndarray
    normed: Operand
    qkv: np.ndarray
    mixed: Operand
    inner: Operand
    logits: np.ndarray
    peaks: np.ndarray
    taps: np.ndarray
    row: np.ndarray
    gate_up: np.ndarray
    wide: np.ndarray
    attention: AttentionScratch
    experts: ExpertScratch
    latent: np.ndarray
    mix: np.ndarray
    gates: np.ndarray
    cells: np.ndarray
    layer_inputs: InputScratch
