"""Configuration of mixture-of-experts layers, and the shapes of their tensors; file names are in `families.py`.

In a supported model every layer has experts; models that mix dense and sparse layers are refused here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.errors import UnsupportedModel
from paceline.models.fields import Fields

MIXTURE_MODEL_TYPES = ("qwen2_moe", "qwen3_moe", "mixtral", "olmoe", "gpt_oss")
_MOST_EXPERTS = 4096


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of every layer; an expert's width is the model's `intermediate_size`.

    Attributes:
        num_experts: feed-forward networks per layer. num_experts_per_tok: how many of them a token is routed to.
        norm_topk_prob: whether the router's weights of the chosen experts are rescaled to sum to 1.
        shared_intermediate_size: width of the shared expert, which all tokens use; 0 for none.
        bias: whether the router and the linear layers of the experts have biases.
        shared_expert_gate: whether the shared expert has a share too, the sigmoid of a gate.
        beside_dense: Gemma 4's form. The shared expert is a dense feed-forward; it and the experts have norms of their
            own before and after them, and so has the router. Shares are multiplied by a number of each expert's.
    """

    num_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    shared_intermediate_size: int = 0
    bias: bool = False
    shared_expert_gate: bool = True
    beside_dense: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise UnsupportedModel(
                f"num_experts_per_tok: {self.num_experts_per_tok} is not between 1 and num_experts={self.num_experts}; "
                "get the model's configuration from its source"
            )


def experts_from_hf(model_type: str, fields: Fields) -> tuple[Experts, int] | None:
    """(experts, width of an expert) of a ``config.json``; None for a dense model.

    Raises:
        UnsupportedModel: some layers are dense, or a number is missing.
    """
    if model_type == "gemma4_text" and fields.flag("enable_moe_block", False):
        count, chosen = fields.whole("num_experts", most=_MOST_EXPERTS), fields.whole("top_k_experts")
        return _beside_dense(count, chosen, fields.whole("intermediate_size")), fields.whole("moe_intermediate_size")
    if model_type not in MIXTURE_MODEL_TYPES:
        return None
    if fields.whole("decoder_sparse_step", 1) != 1 or fields.list("mlp_only_layers", int):
        raise UnsupportedModel(
            "decoder_sparse_step, mlp_only_layers: some layers are dense, which is not implemented; use a model with "
            "experts in every layer"
        )
    width = "intermediate_size" if model_type in ("mixtral", "olmoe", "gpt_oss") else "moe_intermediate_size"
    count = "num_local_experts" if "num_local_experts" in fields else "num_experts"  # transformers renamed it
    shared = fields.whole("shared_expert_intermediate_size", 0, least=0) if model_type == "qwen2_moe" else 0
    normed = model_type in ("mixtral", "gpt_oss") or fields.flag("norm_topk_prob", False)
    chosen, bias = fields.whole("num_experts_per_tok"), model_type == "gpt_oss"
    return Experts(fields.whole(count, most=_MOST_EXPERTS), chosen, normed, shared, bias), fields.whole(width)


def experts_from_gguf(model_type: str, own: Fields) -> tuple[Experts, int] | None:
    """As `experts_from_hf`, from GGUF keys without the architecture's prefix. Raises UnsupportedModel."""
    if model_type == "gemma4_text" and own.whole("expert_count", 0, least=0, most=_MOST_EXPERTS):
        experts = _beside_dense(own.whole("expert_count"), own.whole("expert_used_count"),
                                own.whole("feed_forward_length"))  # fmt: skip
        return experts, own.whole("expert_feed_forward_length")
    if model_type not in MIXTURE_MODEL_TYPES:
        own.expect("expert_count", 0)
        return None
    own.expect("expert_gating_func", *((1, 3) if model_type == "gpt_oss" else (1,)))  # 3: softmax of the chosen
    own.expect("expert_weights_scale", 1.0, 0.0)
    width = own.whole("expert_feed_forward_length", own.get("feed_forward_length", None))
    shared = own.whole("expert_shared_feed_forward_length", 0, least=0)
    normed = own.flag("expert_weights_norm", model_type not in ("qwen2_moe", "olmoe"))
    count = own.whole("expert_count", most=_MOST_EXPERTS)
    return Experts(count, own.whole("expert_used_count"), normed, shared, model_type == "gpt_oss"), width


def _beside_dense(count: int, chosen: int, dense: int) -> Experts:
    return Experts(count, chosen, True, dense, shared_expert_gate=False, beside_dense=True)


def expert_shapes(experts: Experts, hidden: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name (inside a layer) and shape of every tensor of a mixture-of-experts feed-forward."""
    shared = experts.shared_intermediate_size
    yield "mlp.gate.weight", (experts.num_experts, hidden)
    if experts.bias:
        yield "mlp.gate.bias", (experts.num_experts,)
    widths = [(f"mlp.experts.{i}", inner) for i in range(experts.num_experts)]
    widths += [("mlp.shared_expert", shared)] if shared else []
    for stem, width in widths:
        for part, shape in (
            ("gate_proj", (width, hidden)),
            ("up_proj", (width, hidden)),
            ("down_proj", (hidden, width)),
        ):
            yield f"{stem}.{part}.weight", shape
            if experts.bias:
                yield f"{stem}.{part}.bias", shape[:1]
    if shared and experts.shared_expert_gate:
        yield "mlp.shared_expert_gate.weight", (1, hidden)
    if experts.beside_dense:
        for name in ("gate_norm", "experts_norm", "experts_out_norm", "shared_expert.out_norm"):
            yield f"mlp.{name}.weight", (hidden,)
        yield "mlp.gate_scales.weight", (experts.num_experts,)
