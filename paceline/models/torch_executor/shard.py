"""`Shard`: the part of a model that one process holds, and the slices of its tensors.

A shard is itself a model with fewer heads and layers, so that the layers need no second definition. A rank of a
tensor-parallel group has a share of the heads, of the feed-forward and of the vocabulary (Shoeybi et al. 2019,
Megatron-LM, section 3); a pipeline stage has consecutive layers. Not for processes and messages (`parallel/`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.experts import Experts
from paceline.models.architecture.recurrence import Recurrence

_OUTPUT_SPLIT = {
    "query": "heads", "key": "key_heads", "value": "key_heads", "gate": "inner", "up": "inner",
    "embedding": "vocabulary", "head": "vocabulary",
}  # fmt: skip
"""Linear layers split by output (column parallel), and the units that are split."""
_INPUT_SPLIT = {"out": "heads", "down": "inner"}
"""Linear layers split by input (row parallel), whose outputs are summed over the ranks."""
_EXPERT_BIAS = re.compile(r"layers\.\d+\.feed_forward\.experts\.\d+\.down\.bias")
"""Biases that are added before the sum over the ranks, because shares of experts are; the first rank has them."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of a model that one process holds.

    Attributes:
        config: config of the whole model.
        layers: numbers of its layers.
        tensor_rank, tensor_size: index of its share of each layer, and the number of shares.
    """

    config: ModelConfig
    layers: range
    tensor_rank: int = 0
    tensor_size: int = 1

    @classmethod
    def whole(cls, config: ModelConfig) -> "Shard":
        """The shard that is the whole model."""
        return cls(config, range(config.num_hidden_layers))

    @property
    def is_first(self) -> bool:
        """Whether the shard has the first layer, and so the embedding."""
        return self.layers.start == 0

    @property
    def is_last(self) -> bool:
        """Whether the shard has the last layer, and so the output head."""
        return self.layers.stop == self.config.num_hidden_layers

    @property
    def heads(self) -> slice:
        """Query heads of this rank."""
        return self._share(self.config.num_attention_heads)

    @property
    def key_heads(self) -> slice:
        """Key and value heads of this rank; where there are fewer of them than ranks, neighbours hold the same one."""
        return self._share(self.config.num_key_value_heads)

    @property
    def inner(self) -> slice:
        """Units of the feed-forward of this rank."""
        return self._share(self.config.intermediate_size)

    @property
    def dense_inner(self) -> slice:
        """Units of the feed-forward of this rank in layers without experts."""
        return self._share(self.config.dense_size)

    @property
    def shared_inner(self) -> slice:
        """Units of the expert that all tokens use of this rank."""
        return self._share(self.config.experts.shared_intermediate_size if self.config.experts else 0)

    @property
    def vocabulary(self) -> slice:
        """Token ids of which this rank holds the embedding and computes the logits; shares may differ by one."""
        return self._share(self.config.vocab_size)

    def narrowed(self) -> ModelConfig:
        """The config of the shard as a model of its own."""
        layers = self.layers
        sizes: dict[str, Any] = {
            "windows": self.config.windows[layers.start : layers.stop],
            "layers_without_rope": self._own(self.config.layers_without_rope),
            "layers_without_mlp": self._own(self.config.layers_without_mlp),
            "sublayers": (),
            "recurrence": self._recurrence(),
            "num_hidden_layers": len(self.layers),
            "num_attention_heads": _length(self.heads),
            "num_key_value_heads": _length(self.key_heads),
            "intermediate_size": _length(self.inner),
            "vocab_size": _length(self.vocabulary),
        }
        if self.config.experts:
            sizes["experts"] = self._narrowed_experts(self.config.experts)
        return replace(self.config, **sizes)

    def _own(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Those of the layers with these numbers that are the shard's, numbered within it."""
        return tuple(i - self.layers.start for i in numbers if i in self.layers)

    def _recurrence(self) -> Recurrence | None:
        """The recurrent layers among the shard's, numbered within it."""
        whole = self.config.recurrence
        own = self._own(whole.layers) if whole else ()
        return replace(whole, layers=own) if whole and own else None

    def _narrowed_experts(self, experts: Experts) -> Experts:
        shared, dense = experts.shared_intermediate_size, experts.dense_intermediate_size
        return replace(
            experts, shared_intermediate_size=_length(self.shared_inner) if shared else 0,
            dense_intermediate_size=_length(self.dense_inner) if dense else 0,
            first_k_dense_replace=max(0, experts.first_k_dense_replace - self.layers.start),
        )  # fmt: skip

    def part(self, name: str, values: np.ndarray) -> np.ndarray:
        """This rank's slice of the whole tensor `values` of the parameter `name`, linear layers as [out, in]."""
        own = values[self.cut(name)]
        return np.zeros_like(own) if self.tensor_rank and _EXPERT_BIAS.fullmatch(name) else own

    def cut(self, name: str) -> tuple[slice, ...]:
        """The rows, or the rows and columns, of the parameter `name` that this rank holds; () for all of it."""
        if self.tensor_size == 1:
            return ()
        stem, kind = name.rsplit(".", 1)
        layer = stem.rsplit(".", 1)[-1]
        if layer == "sinks":
            return (self.heads,)
        units = (_OUTPUT_SPLIT | _INPUT_SPLIT).get(layer, "")
        if units == "inner" and self.config.experts and ".experts." not in name:
            units = "shared_inner" if ".shared." in name else "dense_inner"
        if layer in _OUTPUT_SPLIT:
            return (self._units(units),)
        if layer in _INPUT_SPLIT and kind == "weight":
            return slice(None), self._units(units)
        return ()

    def _units(self, what: str) -> slice:
        share: slice = getattr(self, what)
        width = self.config.head_dim if what in ("heads", "key_heads") else 1
        return slice(share.start * width, share.stop * width)

    def _share(self, total: int) -> slice:
        start = total * self.tensor_rank // self.tensor_size
        return slice(start, max(start + 1, total * (self.tensor_rank + 1) // self.tensor_size))


def check_tensor_parallel_size(config: ModelConfig, size: int) -> None:
    """Refuse a degree that would give ranks of different shapes.

    Raises:
        InvalidParameter: naming what cannot be split, and the degrees that can be had.
    """
    problem = _obstacle(config, size)
    if problem is not None:
        possible = [n for n in range(1, config.num_attention_heads + 1) if _obstacle(config, n) is None]
        remedy = f"this model can be split into {', '.join(map(str, possible))}"
        raise InvalidParameter("tensor_parallel_size", problem, remedy)


def _obstacle(config: ModelConfig, size: int) -> str | None:
    keys = config.num_key_value_heads
    if size < 1:
        return f"{size} is not 1 or more"
    if config.recurrence and size > 1:
        return "recurrent layers cannot be shared by ranks yet"
    if config.latent and size > 1:
        return "latent attention cannot be shared by ranks yet"
    if config.qk_norm and config.qk_norm_over == "all" and size > 1:
        return "a norm over all queries cannot be shared by ranks yet"
    if config.layer_sizes and size > 1:
        return "layers of different sizes cannot be shared by ranks yet"
    if config.num_attention_heads % size:
        return f"{config.num_attention_heads} attention heads cannot be shared evenly by {size}"
    if keys % size and size % keys:
        return f"{keys} key heads can be neither shared nor repeated evenly by {size}"
    if config.experts and config.experts.shared_intermediate_size % size:
        return f"a shared expert of {config.experts.shared_intermediate_size} units cannot be shared evenly by {size}"
    for width in (config.intermediate_size, config.dense_size):
        if width % size:
            return f"a feed-forward of {width} units cannot be shared evenly by {size}"
    return None


def _length(share: slice) -> int:
    return share.stop - share.start
