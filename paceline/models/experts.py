"""Mixtures of experts: their numbers, and where families keep their weights.

Every layer of a supported mixture has one; models that mix dense and sparse layers are refused (`config.py`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.errors import UnsupportedModel

MIXTURE_MODEL_TYPES = ("qwen2_moe", "qwen3_moe", "mixtral")


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of every layer; an expert's width is the model's `intermediate_size`.

    Attributes:
        num_experts: feed-forwards per layer. num_experts_per_tok: how many of them a row takes.
        norm_topk_prob: rescale the shares of the chosen ones to sum to 1.
        shared_intermediate_size: width of the feed-forward that all rows take, 0 where there is none.
    """

    num_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    shared_intermediate_size: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise UnsupportedModel(
                f"num_experts_per_tok: {self.num_experts_per_tok} is not between 1 and num_experts={self.num_experts}; "
                "get the model's configuration from its source"
            )


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """transformers' names inside a layer, without ``.weight``; `expert` holds a ``{}`` for the number."""

    router: str
    expert: str
    gate: str
    up: str
    down: str
    shared: str = "mlp.shared_expert"
    shared_gate: str = "mlp.shared_expert_gate"


_QWEN = ExpertNames("mlp.gate", "mlp.experts.{}", "gate_proj", "up_proj", "down_proj")
_MIXTRAL = ExpertNames("block_sparse_moe.gate", "block_sparse_moe.experts.{}", "w1", "w3", "w2")


def expert_names(model_type: str) -> ExpertNames:
    """Where `model_type` keeps its mixture."""
    return _MIXTRAL if model_type == "mixtral" else _QWEN


def experts_from_hf(values: Mapping[str, Any]) -> tuple[Experts, int] | None:
    """(mixture, width of an expert) of a ``config.json``, None for a dense model.

    Raises:
        UnsupportedModel: some layers are dense, or a number is missing.
    """
    model_type = values.get("model_type")
    if model_type not in MIXTURE_MODEL_TYPES:
        return None
    if values.get("decoder_sparse_step", 1) != 1 or values.get("mlp_only_layers"):
        raise UnsupportedModel(
            "decoder_sparse_step, mlp_only_layers: some layers are dense, which is not implemented; use a model with "
            "experts in every layer"
        )
    width = "intermediate_size" if model_type == "mixtral" else "moe_intermediate_size"
    count = "num_experts" if "num_experts" in values else "num_local_experts"  # either name, by transformers' version
    for name in (count, width, "num_experts_per_tok"):
        if not isinstance(values.get(name), int):
            raise UnsupportedModel(f"{name}: missing from the model's configuration; get it from its source")
    shared = values.get("shared_expert_intermediate_size", 0) if model_type == "qwen2_moe" else 0
    normed = model_type == "mixtral" or bool(values.get("norm_topk_prob", False))
    return Experts(values[count], values["num_experts_per_tok"], normed, shared), values[width]


def expert_shapes(model_type: str, experts: Experts, hidden: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name (inside a layer) and shape of every tensor of a mixture."""
    names, shared = expert_names(model_type), experts.shared_intermediate_size
    yield f"{names.router}.weight", (experts.num_experts, hidden)
    widths = [(names.expert.format(i), inner) for i in range(experts.num_experts)]
    widths += [(names.shared, shared)] if shared else []
    for stem, width in widths:
        yield f"{stem}.{names.gate}.weight", (width, hidden)
        yield f"{stem}.{names.up}.weight", (width, hidden)
        yield f"{stem}.{names.down}.weight", (hidden, width)
    if shared:
        yield f"{names.shared_gate}.weight", (1, hidden)
