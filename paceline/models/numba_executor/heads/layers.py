"""Decoder layers of draft networks as operations: attention with its own keys and values, and gated feed-forward.

Heads differ in the input of the first layer and in a few norms; everything else is the same. Not for a network as a
whole (`autoregressive.py`, `block.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paceline.models.architecture.config import ModelConfig
from paceline.models.numba_executor.gemm import padded_rows
from paceline.models.numba_executor.heads.pool import Pool
from paceline.models.numba_executor.heads.program import (
    ATTEND,
    GATED,
    HEAD_NORM,
    NONE,
    NORM_PUT,
    PLACE,
    PRODUCT,
    Buffer,
    Buffers,
    Program,
)


@dataclass(frozen=True, slots=True)
class Layer:
    """Numbers of a layer's matrices and vectors in the pool; `NONE` for what it does not have.

    `keys_and_values` are the parts of `qkv` from the keys on.
    """

    number: int
    qkv: int
    qkv_bias: int
    keys_and_values: int
    keys_and_values_bias: int
    output: int
    gate_up: int
    down: int
    input_norm: int
    mlp_norm: int
    query_norm: int
    key_norm: int


def pack_layer(pool: Pool, tensors: Mapping[str, np.ndarray], number: int, config: ModelConfig,
               has_input_norm: bool = True) -> Layer:  # fmt: skip
    """Put the weights of ``layers.{number}.`` into `pool`."""

    def tensor(name: str) -> np.ndarray:
        return tensors[f"layers.{number}.{name}"]

    def vector(name: str, wanted: bool = True) -> int:
        return pool.vector(tensor(name)) if wanted else NONE

    qkv = pool.matrix(np.concatenate([tensor(f"self_attn.{x}_proj.weight") for x in "qkv"]))
    has_bias = f"layers.{number}.self_attn.q_proj.bias" in tensors
    query_width = config.num_attention_heads * config.head_dim
    biases = [tensor(f"self_attn.{x}_proj.bias") for x in "qkv"] if has_bias else []
    qkv_bias = pool.vector(np.concatenate(biases)) if has_bias else NONE
    return Layer(
        number=number,
        qkv=qkv,
        qkv_bias=qkv_bias,
        keys_and_values=pool.rows_from(qkv, query_width),
        keys_and_values_bias=qkv_bias + query_width if has_bias else NONE,
        output=pool.matrix(tensor("self_attn.o_proj.weight")),
        gate_up=pool.gated(tensor("mlp.gate_proj.weight"), tensor("mlp.up_proj.weight")),
        down=pool.matrix(tensor("mlp.down_proj.weight")),
        input_norm=vector("input_layernorm.weight", has_input_norm),
        mlp_norm=vector("post_attention_layernorm.weight"),
        query_norm=vector("self_attn.q_norm.weight", config.qk_norm),
        key_norm=vector("self_attn.k_norm.weight", config.qk_norm),
    )


class LayerBuffers:
    """Buffers of layers; `hidden` is the residual stream, `normed` the input of attention or feed-forward."""

    def __init__(self, buffers: Buffers, config: ModelConfig) -> None:
        heads, kv_heads, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.hidden = buffers.floats(config.hidden_size)
        self.normed = buffers.codes(config.hidden_size)
        self.qkv = buffers.floats(padded_rows((heads + 2 * kv_heads) * dim))
        self.mixed = buffers.codes(heads * dim)
        self.inner = buffers.codes(config.intermediate_size)


def add_plain_layer(program: Program, span: int, layer: Layer, lent: LayerBuffers, config: ModelConfig) -> None:
    """Add a layer that reads the residual stream."""
    width = config.hidden_size
    program.add(NORM_PUT, span, lent.hidden, lent.normed, weight=layer.input_norm, width=width)
    add_layer(program, span, layer, lent, config, lent.normed)


def add_layer(program: Program, span: int, layer: Layer, lent: LayerBuffers, config: ModelConfig,
              attended: Buffer) -> None:  # fmt: skip
    """Add attention with input `attended`, then the feed-forward; both add to `lent.hidden`."""
    program.add(PRODUCT, span, attended, lent.qkv, weight=layer.qkv, bias=layer.qkv_bias)
    add_keys(program, span, layer, lent.qkv, config, config.num_attention_heads)
    program.add(ATTEND, span, lent.qkv, lent.mixed, weight=layer.number)
    program.add(PRODUCT, span, lent.mixed, lent.hidden, weight=layer.output, flag=1)
    program.add(NORM_PUT, span, lent.hidden, lent.normed, weight=layer.mlp_norm, width=config.hidden_size)
    program.add(GATED, span, lent.normed, lent.inner, weight=layer.gate_up)
    program.add(PRODUCT, span, lent.inner, lent.hidden, weight=layer.down, flag=1)


def add_keys(program: Program, span: int, layer: Layer, qkv: Buffer, config: ModelConfig,
             query_heads: int) -> None:  # fmt: skip
    """Norm and rotate rows of [query_heads | key heads | value heads] in `qkv`, and write keys and values."""
    if config.qk_norm:
        column = query_heads * config.head_dim
        if query_heads:
            program.add(HEAD_NORM, span, qkv, weight=layer.query_norm, flag=query_heads)
        program.add(HEAD_NORM, span, qkv, source_column=column, weight=layer.key_norm, flag=config.num_key_value_heads)
    program.add(PLACE, span, qkv, weight=layer.number, flag=query_heads)
