"""`ModelWork`: what a pass of a language model reads and computes, from the sizes in its config."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd, prod
from pathlib import Path
from typing import Any, NamedTuple

from paceline.errors import InvalidParameter
from paceline.limits import unrepeated
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.tensor_names import tensor_shapes

_OF_EXPERT = ".mlp.experts."
_TABLES = ("model.embed_tokens.weight", "model.embed_tokens_per_layer.weight", "model.position_embeddings.weight")
"""Tables of which a row is read for a token, or for a position."""


class Attention(NamedTuple):
    """Layers with one window, 0 for none: numbers of a token's keys and values, and the width of their queries."""

    window: int
    numbers: int
    width: int

    def seen(self, context: float) -> float:
        """Tokens that a row sees after `context` others."""
        return min(context, self.window or context)


@dataclass(frozen=True, slots=True)
class ModelWork:
    """Parameters of a decoder, apart by how often a pass reads them, and what a request keeps.

    Attributes:
        dense: parameters that every row takes, all layers and the head. expert: those of one expert, all layers.
        num_experts, experts_per_row: of each layer with experts; 0 where there are none.
        embedding: parameters that are looked up and not multiplied.
        num_layers, hidden: sizes.
        shares: a tensor degree divides it: the heads and the feed-forward are shared evenly then.
        is_whole: whether the executors run it in one process only.
        kv_numbers: of a token's keys and values, all layers that keep some.
        attention: of the layers with each window what attention reads.
        state_bytes: of a request's state in recurrent layers.
        weight_bytes, kv_bytes: of one parameter, and of one number in keys and values.
    """

    dense: float
    expert: float
    num_experts: int
    experts_per_row: int
    embedding: float
    num_layers: int
    hidden: int
    shares: int
    is_whole: bool
    kv_numbers: int
    attention: tuple[Attention, ...]
    state_bytes: int
    weight_bytes: float = 2.0
    kv_bytes: float = 2.0

    @classmethod
    def of(cls, config: ModelConfig, weight_bytes: float = 2.0, kv_bytes: float = 2.0) -> "ModelWork":
        """From a config, with so many bytes for a parameter and for a number of keys and values."""
        for name, value in (("weight_bytes", weight_bytes), ("kv_bytes", kv_bytes)):
            if not 0 < value <= 8:
                raise InvalidParameter(name, f"{value}", "give bytes of one number, e.g. 2 for 16 bits")
        sizes = {name: prod(shape) for name, shape in tensor_shapes(config).items() if len(shape) > 1}
        experts = config.experts
        of_experts = sum(size for name, size in sizes.items() if _OF_EXPERT in name)
        looked_up = sum(sizes.get(name, 0) for name in _TABLES)
        head = config.vocab_size * config.hidden_size if config.tie_word_embeddings else 0
        keeping = [one for one in map(config.sizes, config.attention_layers) if one.has_keys]
        recurrence = config.recurrence
        return cls(
            dense=sum(sizes.values()) - of_experts - looked_up + head,
            expert=of_experts / experts.num_experts if experts else 0,
            num_experts=experts.num_experts if experts else 0,
            experts_per_row=experts.num_experts_per_tok if experts else 0,
            embedding=looked_up - head,
            num_layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            shares=gcd(config.num_key_value_heads, config.num_attention_heads, config.intermediate_size),
            is_whole=bool(config.layer_sizes or recurrence),
            kv_numbers=sum(2 * one.num_key_value_heads * one.head_dim for one in keeping),
            attention=tuple(_attention(config)),
            state_bytes=recurrence.num_bytes if recurrence else 0,
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
        return self.kv_numbers * self.kv_bytes

    def request_bytes(self, context: float) -> float:
        """What a pass reads of one request: the keys and values that a row sees, and its state, which it writes too."""
        numbers = sum(one.numbers * one.seen(context) for one in self.attention)
        return self.kv_bytes * numbers + 2 * self.state_bytes

    def read_bytes(self, rows: float) -> float:
        """Weights that a pass of so many rows reads; each expert once if any row takes it, rows choosing evenly."""
        touched = 0.0
        if self.num_experts:
            touched = self.num_experts * (1 - (1 - self.experts_per_row / self.num_experts) ** rows)
        return self.weight_bytes * (self.dense + touched * self.expert)

    def operations(self, rows: float, context: float) -> float:
        """Multiplications and additions of a pass of so many rows, each with so many tokens before it."""
        each = self.dense + self.experts_per_row * self.expert
        return rows * (2 * each + 4 * sum(one.width * one.seen(context) for one in self.attention))


def _attention(config: ModelConfig) -> Iterator[Attention]:
    windows = {layer: config.window(layer) for layer in config.attention_layers}
    for window in sorted(set(windows.values())):
        own = [config.sizes(layer) for layer, its in windows.items() if its == window]
        yield Attention(
            window,
            sum(2 * one.num_key_value_heads * one.head_dim for one in own),
            sum(config.num_attention_heads * one.head_dim for one in own),
        )


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
