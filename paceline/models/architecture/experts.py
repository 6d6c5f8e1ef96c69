"""Configuration of mixture-of-experts layers, and the shapes of their tensors; file names are in `families.py`.

Every layer has experts, or every one but the first few; models that mix dense and sparse layers in another order are
refused here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from paceline.errors import UnsupportedModel
from paceline.models.architecture.family import MOST_LAYERS
from paceline.models.architecture.sublayers import sublayers_from_hf
from paceline.models.fields import Fields, refuse

Scores = Literal["softmax", "sigmoid"]
_DENSE_FIRST: Mapping[str, Scores] = {
    **dict.fromkeys(("glm4_moe", "glm4_moe_lite", "dots1", "deepseek_v3"), "sigmoid"),
    "lfm2_moe": "sigmoid", **dict.fromkeys(("ernie4_5_moe", "deepseek_v2"), "softmax"),
}  # fmt: skip
"""Families whose first layers are dense, with the scores of their routers, which have a selection bias except that of
DeepSeek-V2."""
_GRANITE = ("granitemoe", "granitemoehybrid")
_BIASED = "minimax_m2"
"""Chooses experts by sigmoids plus a bias, in every layer."""
_HYBRID = "nemotron_h"
"""Has its own fields, and experts in some layers, of which another field tells."""
_NORMED = (_BIASED, "mixtral", "gpt_oss", "qwen3_vl_moe_text", "qwen3_5_moe_text", *_GRANITE)
"""Families that rescale shares without being asked to."""
_SHARED_GATE = ("qwen2_moe", "qwen3_next", "qwen3_5_moe_text")
MIXTURE_MODEL_TYPES = (
    *_SHARED_GATE,
    "qwen3_moe",
    "qwen3_vl_moe_text",
    _BIASED,
    "mixtral",
    "olmoe",
    "gpt_oss",
    *_GRANITE,
    *_DENSE_FIRST,
    _HYBRID,
)
_MOST_EXPERTS = 4096
LEAST_TOTAL = 1e-20
"""Added to the sum by which shares are rescaled, as in transformers: it keeps scores of 0 from being divided by 0."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a layer; an expert's width is the model's `intermediate_size`.

    Attributes:
        num_experts: feed-forward networks per layer. num_experts_per_tok: how many of them a token is routed to.
        norm_topk_prob: whether the router's weights of the chosen experts are rescaled to sum to 1.
        shared_intermediate_size: width of the shared expert, which all tokens use; 0 for none.
        bias: whether the router and the linear layers of the experts have biases.
        scoring_func: what makes scores of the router's logits.
        e_score_correction_bias: whether the experts with the largest scores plus a bias are chosen; their shares are
            the scores alone (Wang et al. 2024, auxiliary-loss-free load balancing).
        n_group, topk_group: experts are chosen from the `topk_group` best of `n_group` groups of neighbours. A group is
            as good as its two best experts together, or as its best one where there is no bias.
        routed_scaling_factor: factor on the shares of the chosen experts, after they are rescaled.
        shared_expert_gate: whether the shared expert has a share too, the sigmoid of a gate.
        first_k_dense_replace: so many first layers have no experts, but a feed-forward of the width
            `dense_intermediate_size`.
        beside_dense: Gemma 4's form. The shared expert is a dense feed-forward; it and the experts have norms of their
            own before and after them, and so has the router. Shares are multiplied by a number of each expert's.
    """

    num_experts: int
    num_experts_per_tok: int
    norm_topk_prob: bool
    shared_intermediate_size: int = 0
    bias: bool = False
    scoring_func: Scores = "softmax"
    e_score_correction_bias: bool = False
    n_group: int = 1
    topk_group: int = 1
    routed_scaling_factor: float = 1.0
    shared_expert_gate: bool = True
    first_k_dense_replace: int = 0
    dense_intermediate_size: int = 0
    beside_dense: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.num_experts_per_tok <= self.num_experts:
            raise UnsupportedModel(
                f"num_experts_per_tok: {self.num_experts_per_tok} is not between 1 and num_experts={self.num_experts}; "
                "get the model's configuration from its source"
            )
        in_group, rest = divmod(self.num_experts, self.n_group)
        if rest or not 1 <= self.topk_group <= self.n_group or (self.n_group > 1 and in_group < 2):
            raise refuse("n_group, topk_group", f"{self.topk_group} of {self.n_group} groups of {self.num_experts}")
        if self.topk_group * in_group < self.num_experts_per_tok:
            raise refuse("topk_group", f"{self.topk_group} groups have fewer than {self.num_experts_per_tok} experts")

    def without_the_rest(self) -> "Experts":
        """As many experts as a token is routed to: those that a pass over one row reads."""
        return replace(self, num_experts=self.num_experts_per_tok, n_group=1, topk_group=1)


def experts_from_hf(model_type: str, fields: Fields) -> tuple[Experts, int] | None:
    """(experts, width of an expert) of a ``config.json``; None for a dense model.

    Raises:
        UnsupportedModel: some layers are dense, or a number is missing.
    """
    if model_type == "gemma4_text" and fields.flag("enable_moe_block", False):
        count, chosen = fields.whole("num_experts", most=_MOST_EXPERTS), fields.whole("top_k_experts")
        return _beside_dense(count, chosen, fields.whole("intermediate_size")), fields.whole("moe_intermediate_size")
    if model_type == _HYBRID:
        return _of_hybrid(fields) if sublayers_from_hf(fields).has_experts else None
    is_dense = model_type == "granitemoehybrid" and not fields.whole("num_local_experts", least=0)
    if model_type not in MIXTURE_MODEL_TYPES or is_dense:
        return None
    if model_type in _DENSE_FIRST:
        return _after_dense_layers(model_type, fields)
    if fields.whole("decoder_sparse_step", 1) != 1 or fields.list("mlp_only_layers", int):
        raise UnsupportedModel(
            "decoder_sparse_step, mlp_only_layers: some layers are dense, which is not implemented; use a model with "
            "experts in every layer"
        )
    has_one = model_type in (_BIASED, "mixtral", "olmoe", "gpt_oss", *_GRANITE)
    width = "intermediate_size" if has_one else "moe_intermediate_size"
    count = "num_local_experts" if "num_local_experts" in fields else "num_experts"  # transformers renamed it
    shared = fields.whole("shared_expert_intermediate_size", 0, least=0) if model_type in _SHARED_GATE else 0
    if model_type in _GRANITE:
        shared = fields.whole("shared_intermediate_size", 0, least=0)
    normed = model_type in _NORMED or fields.flag("norm_topk_prob", False)
    numbers = fields.whole(count, most=_MOST_EXPERTS), fields.whole("num_experts_per_tok")
    return _in_every_layer(model_type, *numbers, normed, shared), fields.whole(width)


def _of_hybrid(fields: Fields) -> tuple[Experts, int]:
    """As `experts_from_hf`, for Nemotron 3."""
    return Experts(
        fields.whole("n_routed_experts", most=_MOST_EXPERTS), fields.whole("num_experts_per_tok"),
        fields.flag("norm_topk_prob", True), fields.whole("moe_shared_expert_intermediate_size", 0, least=0),
        scoring_func="sigmoid", e_score_correction_bias=True, n_group=fields.whole("n_group", 1),
        topk_group=fields.whole("topk_group", 1), routed_scaling_factor=fields.number("routed_scaling_factor", 1.0),
        shared_expert_gate=False,
    ), fields.whole("moe_intermediate_size")  # fmt: skip


def _in_every_layer(model_type: str, count: int, chosen: int, normed: bool, shared: int) -> Experts:
    """The experts of a family without dense layers, of which all files say these numbers."""
    is_biased = model_type == _BIASED
    return Experts(
        count, chosen, normed, shared, model_type == "gpt_oss", scoring_func="sigmoid" if is_biased else "softmax",
        e_score_correction_bias=is_biased, shared_expert_gate=model_type not in _GRANITE,
    )  # fmt: skip


def _after_dense_layers(model_type: str, fields: Fields) -> tuple[Experts, int]:
    """As `experts_from_hf`, for families whose first layers are dense."""
    scores, biased = _DENSE_FIRST[model_type], model_type != "deepseek_v2" and fields.flag("use_expert_bias", True)
    fields.expect("scoring_func", scores, *(("noaux_tc",) if scores == "sigmoid" else ()))
    if model_type == "deepseek_v2":
        fields.expect("topk_method", "greedy", "group_limited_greedy")
        fields.expect("norm_topk_prob", False)
    else:
        fields.expect("topk_method", "noaux_tc")
    grouped = biased or fields.text("topk_method", "greedy") != "greedy"
    for name in ("moe_layer_freq", "moe_layer_interval"):
        fields.expect(name, 1)
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    fields.expect("moe_layer_end_index", layers - 1, -1)
    fields.expect("moe_norm_min", 1e-12)
    width = fields.whole("moe_intermediate_size")
    return Experts(
        fields.whole("n_routed_experts", most=_MOST_EXPERTS), fields.whole("num_experts_per_tok"),
        model_type == "ernie4_5_moe" or fields.flag("norm_topk_prob", False),
        width * fields.whole("n_shared_experts", 0, least=0, most=_MOST_EXPERTS),
        scoring_func=scores, e_score_correction_bias=biased,
        n_group=fields.whole("n_group", 1) if grouped else 1,
        topk_group=fields.whole("topk_group", 1) if grouped else 1,
        routed_scaling_factor=fields.number("routed_scaling_factor", 1.0), shared_expert_gate=False,
        first_k_dense_replace=_dense_layers(fields, "first_k_dense_replace", layers),
        dense_intermediate_size=fields.whole("intermediate_size"),
    ), width  # fmt: skip


def _dense_layers(fields: Fields, name: str, layers: int) -> int:
    """The number of dense first layers, of `layers` in all; ``mlp_layer_types`` goes before the field `name`."""
    first, kinds = fields.whole(name, 0, least=0, most=MOST_LAYERS), fields.list("mlp_layer_types", str, MOST_LAYERS)
    if kinds:
        first = kinds.index("sparse") if "sparse" in kinds else len(kinds)
        if kinds != ["dense"] * first + ["sparse"] * (layers - first):
            raise refuse("mlp_layer_types", f"{len(kinds)} for {layers} layers, dense ones first, then sparse ones")
    if first >= layers:
        raise refuse(name, f"{first} of {layers} layers leaves none with experts")
    return first


def experts_from_gguf(
    model_type: str, own: Fields, shapes: Mapping[str, tuple[int, ...]], layers: int
) -> tuple[Experts, int] | None:
    """As `experts_from_hf`, from GGUF keys without the architecture's prefix and from the `shapes` of the file's
    tensors. Raises UnsupportedModel."""
    if model_type == "gemma4_text" and own.whole("expert_count", 0, least=0, most=_MOST_EXPERTS):
        experts = _beside_dense(own.whole("expert_count"), own.whole("expert_used_count"),
                                own.whole("feed_forward_length"))  # fmt: skip
        return experts, own.whole("expert_feed_forward_length")
    is_dense = model_type in ("granitemoehybrid", _HYBRID) and not own.whole("expert_count", 0, least=0)
    if model_type not in MIXTURE_MODEL_TYPES or is_dense:
        own.expect("expert_count", 0)
        return None
    if model_type in _DENSE_FIRST:
        return _after_dense_layers_gguf(model_type, own, shapes, layers)
    if model_type == _HYBRID:
        return _of_hybrid_gguf(own)
    own.expect("leading_dense_block_count", 0)
    gatings = {"gpt_oss": (1, 3), _BIASED: (2,)}  # 1: softmax, 2: sigmoid, 3: softmax of the chosen
    own.expect("expert_gating_func", *gatings.get(model_type, (1,)))
    own.expect("expert_weights_scale", 1.0, 0.0)
    width = own.whole("expert_feed_forward_length", own.get("feed_forward_length", None))
    shared = own.whole("expert_shared_feed_forward_length", 0, least=0)
    normed = own.flag("expert_weights_norm", model_type not in ("qwen2_moe", "olmoe"))
    numbers = own.whole("expert_count", most=_MOST_EXPERTS), own.whole("expert_used_count")
    return _in_every_layer(model_type, *numbers, normed, shared), width


def _of_hybrid_gguf(own: Fields) -> tuple[Experts, int]:
    """As `_of_hybrid`. Files need not say that scores are sigmoids."""
    own.expect("expert_gating_func", 2)
    return Experts(
        own.whole("expert_count", most=_MOST_EXPERTS), own.whole("expert_used_count"),
        own.flag("expert_weights_norm", False), own.whole("expert_shared_feed_forward_length", 0, least=0),
        scoring_func="sigmoid", e_score_correction_bias=True, n_group=own.whole("expert_group_count", 1, least=0) or 1,
        topk_group=own.whole("expert_group_used_count", 1, least=0) or 1,
        routed_scaling_factor=own.number("expert_weights_scale", 1.0, above=-1e-9) or 1.0, shared_expert_gate=False,
    ), own.whole("expert_feed_forward_length")  # fmt: skip


def _beside_dense(count: int, chosen: int, dense: int) -> Experts:
    return Experts(count, chosen, True, dense, shared_expert_gate=False, beside_dense=True)


def _after_dense_layers_gguf(
    model_type: str, own: Fields, shapes: Mapping[str, tuple[int, ...]], layers: int
) -> tuple[Experts, int]:
    """As `_after_dense_layers`. The width of the shared expert is read from its tensors: converters disagree on its
    key."""
    own.expect("interleave_moe_layer_step", 1)
    first = _dense_layers(own, "leading_dense_block_count", layers)
    scores, biased = _DENSE_FIRST[model_type], f"blk.{first}.exp_probs_b.bias" in shapes
    if model_type == "deepseek_v2":  # the name of V3 too, which alone has a bias
        scores = "sigmoid" if own.whole("expert_gating_func", 1 + biased) == 2 else "softmax"
    own.expect("expert_gating_func", 1 if scores == "softmax" else 2)
    return Experts(
        own.whole("expert_count", most=_MOST_EXPERTS), own.whole("expert_used_count"),
        model_type in ("ernie4_5_moe", "lfm2_moe") or own.flag("expert_weights_norm", False),
        shapes.get(f"blk.{first}.ffn_up_shexp.weight", (0,))[0],
        scoring_func=scores, e_score_correction_bias=biased,
        n_group=own.whole("expert_group_count", 1, least=0) or 1,
        topk_group=own.whole("expert_group_used_count", 1, least=0) or 1,
        routed_scaling_factor=own.number("expert_weights_scale", 1.0, above=-1e-9) or 1.0, shared_expert_gate=False,
        first_k_dense_replace=first, dense_intermediate_size=own.whole("feed_forward_length"),
    ), own.whole("expert_feed_forward_length")  # fmt: skip


def expert_shapes(
    experts: Experts, hidden: int, inner: int, is_gated: bool = True
) -> Iterator[tuple[str, tuple[int, ...]]]:  # fmt: skip
    """Name (inside a layer) and shape of every tensor of a mixture-of-experts feed-forward.

    Args:
        is_gated: whether experts have a gate projection.
    """
    shared = experts.shared_intermediate_size
    yield "mlp.gate.weight", (experts.num_experts, hidden)
    if experts.bias:
        yield "mlp.gate.bias", (experts.num_experts,)
    if experts.e_score_correction_bias:
        yield "mlp.gate.e_score_correction.bias", (experts.num_experts,)
    widths = [(f"mlp.experts.{i}", inner) for i in range(experts.num_experts)]
    widths += [("mlp.shared_expert", shared)] if shared else []
    for stem, width in widths:
        raised = [(part, (width, hidden)) for part in (("gate_proj", "up_proj") if is_gated else ("up_proj",))]
        for part, shape in (*raised, ("down_proj", (hidden, width))):
            yield f"{stem}.{part}.weight", shape
            if experts.bias:
                yield f"{stem}.{part}.bias", shape[:1]
    if shared and experts.shared_expert_gate:
        yield "mlp.shared_expert_gate.weight", (1, hidden)
    if experts.beside_dense:
        for name in ("gate_norm", "experts_norm", "experts_out_norm", "shared_expert.out_norm"):
            yield f"mlp.{name}.weight", (hidden,)
        yield "mlp.gate_scales.weight", (experts.num_experts,)
