"""`ModelWork`: what a pass of a language model reads and computes, from the sizes in its config."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.limits import unrepeated
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.latent import latent_shapes
from paceline.theory.capacity import kv_bytes_per_token


@dataclass(frozen=True, slots=True)
class ModelWork:
    """Parameters of a decoder, apart by how often a pass reads them.

    Attributes:
        dense: parameters that every row takes, all layers and the head. expert: those of one expert, all layers.
        num_experts, experts_per_row: of each layer with experts; 0 where there are none.
        embedding: parameters that are looked up and not multiplied; 0 where the head is the same table.
        num_layers, hidden, kv_heads, head_dim, query_heads: sizes. feed_forward: width of a layer's feed-forward, or of
            one expert's.
        weight_bytes, kv_bytes: of one parameter, and of one number in keys and values.
    """

    dense: float
    expert: float
    num_experts: int
    experts_per_row: int
    embedding: float
    num_layers: int
    hidden: int
    kv_heads: int
    head_dim: int
    query_heads: int
    feed_forward: int
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0

    @classmethod
    def of(cls, config: ModelConfig, weight_bytes: float = 2.0, kv_bytes: float = 2.0) -> "ModelWork":
        """From a config, with so many bytes for a parameter and for a number of keys and values."""
        for name, value in (("weight_bytes", weight_bytes), ("kv_bytes", kv_bytes)):
            if not 0 < value <= 8:
                raise InvalidParameter(name, f"{value}", "give bytes of one number, e.g. 2 for 16 bits")
        if config.layer_sizes:
            problem = f"{config.model_type} has layers of different sizes, which this estimate does not know"
            raise UnsupportedModel(f"model_type: {problem}; profile another model")
        if config.recurrence:
            raise UnsupportedModel(
                f"{config.model_type}: the cost of recurrent layers is not modelled; use another model"
            )
        hidden, layers = config.hidden_size, config.num_hidden_layers
        heads = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        per_unit = (3 if config.mlp.startswith("gated") else 2) * hidden
        experts, without = config.experts, layers
        attention = 2 * hidden * (heads[0] + heads[1])
        if config.latent:
            shapes = latent_shapes(config.latent, hidden, config.num_attention_heads)
            attention = sum(prod(shape) for _, shape in shapes if len(shape) > 1)
        dense, expert = layers * attention, 0
        if experts is not None:
            without = min(experts.first_k_dense_replace, layers)
            expert = (layers - without) * per_unit * config.intermediate_size
            dense += (layers - without) * hidden * (experts.num_experts + 3 * experts.shared_intermediate_size)
        dense += without * per_unit * config.dense_size
        table = config.vocab_size * hidden
        return cls(
            dense=dense + table,
            expert=expert,
            num_experts=experts.num_experts if experts else 0,
            experts_per_row=experts.num_experts_per_tok if experts else 0,
            embedding=0 if config.tie_word_embeddings else table,
            num_layers=layers,
            hidden=hidden,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            query_heads=config.num_attention_heads,
            feed_forward=config.intermediate_size,
            weight_bytes=weight_bytes,
            kv_bytes=kv_bytes,
        )

    @property
    def total_bytes(self) -> float:
        """Of all weights."""
        return self.weight_bytes * (self.dense + self.embedding + self.num_experts * self.expert)

    @property
    def bytes_per_token(self) -> float:
        """Of a token's keys and values, all layers."""
        return kv_bytes_per_token(self.num_layers, self.kv_heads, self.head_dim, 1) * self.kv_bytes

    def read_bytes(self, rows: float) -> float:
        """Weights that a pass of so many rows reads; each expert once if any row takes it, rows choosing evenly."""
        touched = 0.0
        if self.num_experts:
            touched = self.num_experts * (1 - (1 - self.experts_per_row / self.num_experts) ** rows)
        return self.weight_bytes * (self.dense + touched * self.expert)

    def operations(self, rows: float, context: float) -> float:
        """Multiplications and additions of a pass of so many rows, each with so many tokens before it."""
        attention = 4 * self.num_layers * self.query_heads * self.head_dim * context
        return rows * (2 * (self.dense + self.experts_per_row * self.expert) + attention)


def read_config(path: Path) -> ModelConfig:
    """The config of a ``config.json`` or of the folder that holds one.

    Raises:
        InvalidParameter: it cannot be read. UnsupportedModel: its architecture is not known, or a size is missing.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        values: Any = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=unrepeated)
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidParameter("config", f"{file} cannot be read ({error})", "give a model's config.json") from None
    if not isinstance(values, Mapping):
        raise InvalidParameter("config", f"{file} holds no mapping", "give a model's config.json")
    return ModelConfig.from_hf(values)
