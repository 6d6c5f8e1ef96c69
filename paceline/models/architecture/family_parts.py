"""The fields of `ModelConfig` in which each family differs from Llama, read from ``config.json`` or GGUF metadata.

Settings that change the numbers and are not implemented are refused here. Not for names and layouts (`families.py`) or
for what all families have in common (`config.py`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from paceline.models.architecture.family import MOST_LAYERS, SWIGLU_ALPHA, SWIGLU_LIMIT
from paceline.models.architecture.layer_sizes import sizes_from_gguf, sizes_from_hf
from paceline.models.architecture.recurrence import MOST_TAPS, Kind, Recurrence, short_convolution, with_matrices
from paceline.models.architecture.sublayers import Sublayers, sublayers_from_gguf, sublayers_from_hf
from paceline.models.fields import Fields, refuse, shown

_NO_LIMITS = [0.0, float("inf")], [0.0, {"__float__": "Infinity"}]
"""Limits of a state space's steps that are none; the second form is transformers 5's."""


def scaled_embeddings(fields: Fields) -> dict[str, Any]:
    """Gemma: embeddings are multiplied by the square root of their width; the gate uses GELU."""
    hidden = fields.get("hidden_size", fields.get("embedding_length", 1))
    return {"mlp": "gated_gelu_tanh", "embedding_scale": float(hidden) ** 0.5}


def gemma2(fields: Fields) -> dict[str, Any]:
    """Gemma 2: norms after attention and feed-forward too, a scale of its own, soft caps."""
    fields.expect("use_bidirectional_attention", False)
    return scaled_embeddings(fields) | {
        "post_norms": True,
        "attention_scale": fields.number("query_pre_attn_scalar", 256) ** -0.5,
        "attention_softcap": _cap(fields, "attn_logit_softcapping"),
        "logit_softcap": _cap(fields, "final_logit_softcapping"),
    }


def gemma3(fields: Fields) -> dict[str, Any]:
    """Gemma 3. Its files may have an attention soft cap, which transformers does not apply."""
    return gemma2(fields) | {"qk_norm": True, "attention_softcap": 0.0}


def gemma2_gguf(fields: Fields) -> dict[str, Any]:
    """Gemma 2. As in llama.cpp, the number of layers identifies the 27B model, whose scale is from hidden / heads."""
    return scaled_embeddings(fields) | {
        "post_norms": True,
        "attention_scale": _gemma_scale(fields, 46),
        "attention_softcap": fields.number("attn_logit_softcapping", 50.0),
        "logit_softcap": fields.number("final_logit_softcapping", 30.0),
    }


def gemma3_gguf(fields: Fields) -> dict[str, Any]:
    """Gemma 3, whose layers with a window have positions of their own."""
    return scaled_embeddings(fields) | {
        "post_norms": True,
        "qk_norm": True,
        "attention_scale": _gemma_scale(fields, 62),
        "logit_softcap": _cap(fields, "final_logit_softcapping"),
        "rope_local_theta": fields.number("rope.freq_base_swa", 10000.0, above=1.0),
    }


def gemma4(fields: Fields) -> dict[str, Any]:
    """Gemma 4: sizes by layer, norms of values too, unscaled scores, embeddings that each layer has of its own."""
    fields.expect("use_bidirectional_attention", False, "vision")
    fields.expect("attention_bias", False)
    width = fields.whole("hidden_size_per_layer_input", 256, least=0)
    if width:
        fields.expect("vocab_size_per_layer_input", fields.whole("vocab_size"))
    return _gemma4(fields, width) | sizes_from_hf(fields)


def gemma4_gguf(fields: Fields) -> dict[str, Any]:
    """As `gemma4`."""
    width = fields.whole("embedding_length_per_layer_input", 0, least=0)
    local = {"rope_local_theta": fields.number("rope.freq_base_swa", 10000.0, above=1.0)}
    return _gemma4(fields, width) | local | sizes_from_gguf(fields)


def _gemma4(fields: Fields, width: int) -> dict[str, Any]:
    return scaled_embeddings(fields) | {
        "post_norms": True, "qk_norm": True, "value_norm": True, "attention_scale": 1.0, "layer_scalars": True,
        "logit_softcap": _cap(fields, "final_logit_softcapping"), "hidden_size_per_layer_input": width,
    }  # fmt: skip


def _gemma_scale(fields: Fields, layers_of_largest: int) -> float:
    per_head = fields.whole("embedding_length") / fields.whole("attention.head_count")
    is_largest = fields.whole("block_count") == layers_of_largest
    return (per_head if is_largest else fields.whole("attention.key_length", int(per_head))) ** -0.5


def _cap(fields: Fields, name: str) -> float:
    return fields.number(name) if name in fields and not fields.is_null(name) else 0.0


def olmo2(fields: Fields) -> dict[str, Any]:
    """OLMo 2: norms after attention and feed-forward only, and over all queries and all keys."""
    return {"pre_norms": False, "post_norms": True} | wide_norms(fields)


def olmo3(fields: Fields) -> dict[str, Any]:
    """OLMo 3. Only its layers without a window have scaled positions."""
    return olmo2(fields) | {"rope_local_theta": fields.number("rope_theta", above=1.0)}


def olmo3_gguf(fields: Fields) -> dict[str, Any]:
    """As `olmo3`; a file may give the layers with a window a base of their own."""
    base = fields.number("rope.freq_base", above=1.0)
    return olmo2(fields) | {"rope_local_theta": fields.number("rope.freq_base_swa", base, above=1.0)}


def olmoe(fields: Fields) -> dict[str, Any]:
    """OLMoE: norms over all queries and all keys; clipped projections are refused."""
    for name in ("clip_qkv", "attention.clamp_kqv"):
        if name in fields:
            raise refuse(name, "is not implemented")
    return wide_norms(fields)


def wide_norms(fields: Fields) -> dict[str, Any]:
    """Norms over all queries and all keys."""
    return {"qk_norm": True, "qk_norm_over": "all"}


def minimax_m2(fields: Fields) -> dict[str, Any]:
    """MiniMax-M2: norms over all queries and all keys, experts chosen by sigmoids plus a bias."""
    for name, expected in (("use_qk_norm", True), ("qk_norm_type", "per_layer"), ("use_routing_bias", True),
                           ("scoring_func", "sigmoid"), ("shared_intermediate_size", 0)):  # fmt: skip
        fields.expect(name, expected)
    return wide_norms(fields)


def gpt_oss(fields: Fields) -> dict[str, Any]:
    """gpt-oss: a clamped gate and attention sinks."""
    fields.expect("swiglu_alpha", SWIGLU_ALPHA)
    fields.expect("swiglu_limit", SWIGLU_LIMIT)
    return {"mlp": "gated_clamped", "attention_sinks": True}


def exaone4(fields: Fields) -> dict[str, Any]:
    """EXAONE 4: norms after attention and feed-forward only, and of queries and keys per head."""
    return {"pre_norms": False, "post_norms": True, "qk_norm": True}


def both_norms(fields: Fields) -> dict[str, Any]:
    """Norms before and after attention and feed-forward."""
    return {"post_norms": True}


def glm(fields: Fields) -> dict[str, Any]:
    """GLM-4: biases on queries, keys and values only."""
    return {"attention_out_bias": False}


def glm4(fields: Fields) -> dict[str, Any]:
    """GLM-4-0414: norms after attention and feed-forward too."""
    return glm(fields) | both_norms(fields)


def glm4_moe(fields: Fields) -> dict[str, Any]:
    """GLM-4.5, of which the large model has norms of queries and keys."""
    return glm(fields) | {"qk_norm": fields.flag("use_qk_norm", False)}


def ernie4_5_moe(fields: Fields) -> dict[str, Any]:
    """ERNIE 4.5 with experts, which have no biases."""
    fields.expect("use_bias", False)
    return {}


def seed_oss(fields: Fields) -> dict[str, Any]:
    """Seed-OSS, which asks for the bias of the output projection by itself."""
    return {"attention_out_bias": fields.flag("attention_out_bias", False)}


def biased(fields: Fields, unsaid: bool = False) -> dict[str, Any]:
    """Biases on all linear layers or on none, as ``use_bias`` says; `unsaid` where it is missing."""
    return dict.fromkeys(("attention_bias", "attention_out_bias", "mlp_bias"), fields.flag("use_bias", unsaid))


def ungated(fields: Fields) -> dict[str, Any]:
    """Layer norms, and a feed-forward without a gate."""
    return {"norm": "layer", "mlp": "gelu_tanh"}


def starcoder2(fields: Fields) -> dict[str, Any]:
    """StarCoder2: layer norms, no gate, and biases unless ``use_bias`` is false."""
    return ungated(fields) | biased(fields, unsaid=True)


def cohere(fields: Fields) -> dict[str, Any]:
    """Command R: layer norms without biases, attention and feed-forward side by side."""
    fields.expect("use_qk_norm", False)
    scale = fields.number("logit_scale")
    return {"norm": "layer", "norm_bias": False, "parallel": True, "logit_scale": scale}


def gpt_neox(fields: Fields) -> dict[str, Any]:
    """GPT-NeoX: attention and feed-forward side by side, unless ``use_parallel_residual`` is false.

    The 20B model approximates GELU by tanh, which GGUF does not say.
    """
    mlp = "gelu" if fields.text("hidden_act", "gelu") == "gelu" else "gelu_tanh"
    return {"norm": "layer", "mlp": mlp, "mlp_bias": True, "parallel": fields.flag("use_parallel_residual", True)}


def stablelm(fields: Fields) -> dict[str, Any]:
    """StableLM, but for its 12B model, which has attention and feed-forward side by side."""
    for name in ("use_parallel_residual", "qk_layernorm"):
        fields.expect(name, False)
    return {"norm": "layer", "attention_bias": fields.flag("use_qkv_bias", False), "attention_out_bias": False}


def stablelm_gguf(fields: Fields) -> dict[str, Any]:
    """As `stablelm`. Most files say ``use_parallel_residual`` of any model; 12B is known by its norms of queries."""
    return {"norm": "layer"}


def lfm2(fields: Fields) -> dict[str, Any]:
    """LFM2: short convolutions where ``layer_types`` says so, or in all layers but ``full_attn_idxs``."""
    fields.expect("conv_bias", False)
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    kinds = fields.list("layer_types", str, MOST_LAYERS)
    if not kinds:
        attending = fields.list("full_attn_idxs", int) if "full_attn_idxs" in fields else range(layers)
        kinds = ["full_attention" if i in attending else "conv" for i in range(layers)]
    numbers = _recurrent(kinds, "conv", layers)
    parts: dict[str, Any] = {"qk_norm": True, "recurrence": short_convolution(
        numbers, fields.whole("conv_L_cache", 3, most=MOST_TAPS), fields.whole("hidden_size")
    )}  # fmt: skip
    if fields.flag("block_auto_adjust_ff_dim", True):
        inner = int(2 * fields.whole("intermediate_size") / 3)
        if not fields.is_null("block_ffn_dim_multiplier"):
            inner = int(fields.number("block_ffn_dim_multiplier", 1.0) * inner)
            multiple = fields.whole("block_multiple_of", 256)
            inner = multiple * -(-inner // multiple)
        parts["intermediate_size"] = inner
    return parts


def lfm2_gguf(fields: Fields) -> dict[str, Any]:
    """As `lfm2`; layers without key heads are convolutions."""
    numbers, hidden = _without_keys(fields), fields.whole("embedding_length")
    return {
        "qk_norm": True,
        "recurrence": short_convolution(numbers, fields.whole("shortconv.l_cache", most=MOST_TAPS), hidden),
    }  # fmt: skip


def qwen3_5(fields: Fields) -> dict[str, Any]:
    """Qwen3.5: gated delta nets where ``layer_types`` says so, or in all layers but every fourth; gated attention."""
    fields.expect("attention_bias", False)
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    kinds = fields.list("layer_types", str, MOST_LAYERS)
    if not kinds:
        every = fields.whole("full_attention_interval", 4)
        kinds = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    names = ("conv_kernel_dim", "num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
    numbers = _recurrent(kinds, "linear_attention", layers)
    delta = with_matrices("gated_delta_net", numbers, fields, tuple(f"linear_{name}" for name in names))
    return {"qk_norm": True, "attention_gate": True, "recurrence": delta}


def qwen3_5_gguf(fields: Fields) -> dict[str, Any]:
    """As `qwen3_5`. GGUF has value heads in another order (`Recurrence.tiled`)."""
    parts = qwen3_next_gguf(fields)
    return parts | {"recurrence": replace(parts["recurrence"], tiled=True)}


def qwen3_next_gguf(fields: Fields) -> dict[str, Any]:
    """As `qwen3_5`."""
    layers, every = fields.whole("block_count", most=MOST_LAYERS), fields.whole("full_attention_interval", 4)
    layers -= fields.whole("nextn_predict_layers", 0, least=0)
    numbers = tuple(i for i in range(layers) if (i + 1) % every)
    recurrence = _with_matrices_gguf("gated_delta_net", numbers, fields)
    return {"qk_norm": True, "attention_gate": True, "recurrence": recurrence}


def _with_matrices_gguf(
    kind: Kind, layers: tuple[int, ...], fields: Fields, conv_bias: bool = False
) -> Recurrence | None:  # fmt: skip
    """As `with_matrices`. GGUF has the width of all value heads together."""
    heads, width = fields.whole("ssm.time_step_rank"), fields.whole("ssm.inner_size")
    names = ("ssm.conv_kernel", "ssm.group_count", "ssm.time_step_rank", "ssm.state_size")
    sizes = Fields({name: fields.whole(name) for name in names} | {"value_dim": width // heads})
    return with_matrices(kind, layers, sizes, (*names, "value_dim"), conv_bias)


def _without_keys(fields: Fields) -> tuple[int, ...]:
    """Numbers of the layers without key heads in a GGUF file."""
    heads = fields.list("attention.head_count_kv", int, MOST_LAYERS)
    return tuple(i for i, count in enumerate(heads) if not count)


def _recurrent(kinds: Sequence[str], kind: str, layers: int) -> tuple[int, ...]:
    """Numbers of the layers of this `kind`; the others must have full attention."""
    if len(kinds) < layers or not set(kinds) <= {kind, "full_attention"}:
        raise refuse("layer_types", f"{len(kinds)} for {layers} layers, of full_attention and {kind} only")
    return tuple(i for i, one in enumerate(kinds[:layers]) if one == kind)


def granite(fields: Fields) -> dict[str, Any]:
    """Granite: factors on embeddings, residuals, attention and logits."""
    return {
        "embedding_scale": fields.number("embedding_multiplier", 1.0),
        "residual_scale": fields.number("residual_multiplier", 1.0),
        "attention_scale": fields.number("attention_multiplier", 1.0),
        "logit_scale": 1.0 / fields.number("logits_scaling", 1.0),
    }


def granite4(fields: Fields) -> dict[str, Any]:
    """Granite 4: state spaces where ``layer_types`` says so, no positions unless asked for, maybe experts."""
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    names = {"mamba": "linear_attention", "attention": "full_attention"}
    kinds = [names.get(str(kind), str(kind)) for kind in fields.list("layer_types", str, MOST_LAYERS)]
    fields.expect("position_embedding_type", None, "rope", "nope")
    turns = fields.get("position_embedding_type", None) == "rope"
    parts = granite(fields) | {
        "recurrence": _state_space(_recurrent(kinds, "linear_attention", layers), fields),
        "layers_without_rope": () if turns else tuple(range(layers)),
    }  # fmt: skip
    if not fields.whole("num_local_experts", least=0):
        parts["intermediate_size"] = fields.whole("shared_intermediate_size")
    return parts


def granite4_gguf(fields: Fields) -> dict[str, Any]:
    """As `granite4`; layers without key heads are state spaces."""
    states = _with_matrices_gguf("state_space", _without_keys(fields), fields, conv_bias=True)
    return granite_gguf(fields) | {"recurrence": states}


def squared_relu(fields: Fields) -> dict[str, Any]:
    """Arcee: squared ReLUs without a gate."""
    return {"mlp": "relu2"}


def nemotron(fields: Fields) -> dict[str, Any]:
    """Nemotron: layer norms, squared ReLUs without a gate."""
    return {"norm": "layer", "mlp": "relu2"}


def hunyuan(fields: Fields) -> dict[str, Any]:
    """Hunyuan: norms of queries and keys per head, after their rotation."""
    fields.expect("use_qk_norm", True)
    return {"qk_norm": True, "qk_norm_after_rope": True}


def nemotron_h(fields: Fields) -> dict[str, Any]:
    """Nemotron-H: layers of one or two sublayers, no positions, squared ReLUs.

    Steps of state spaces have no least size, as in NVIDIA's code and llama.cpp; transformers keeps them from
    ``time_step_min`` on, whatever ``time_step_limit`` says.
    """
    for name in ("use_bias", "mlp_bias", "attention_bias"):
        fields.expect(name, False)
    for name, expected in (("mamba_hidden_act", "silu"), ("moe_latent_size", None), ("n_shared_experts", 1)):
        fields.expect(name, expected)
    own = sublayers_from_hf(fields)
    return _of_sublayers(own) | {"recurrence": _state_space(own.recurrent, fields)}


def nemotron_h_gguf(fields: Fields) -> dict[str, Any]:
    """As `nemotron_h`."""
    fields.expect("moe_latent_size", 0)
    own = sublayers_from_gguf(fields, "expert_count" in fields)
    states = _with_matrices_gguf("state_space", own.recurrent, fields, conv_bias=True) if own.recurrent else None
    return _of_sublayers(own) | {"recurrence": states}


def _of_sublayers(own: Sublayers) -> dict[str, Any]:
    layers = len(own.numbers)
    return {
        "num_hidden_layers": layers, "sublayers": own.numbers, "layers_without_mlp": own.without_mlp,
        "layers_without_rope": tuple(range(layers)), "mlp": "relu2",
    }  # fmt: skip


def _state_space(layers: tuple[int, ...], fields: Fields) -> Recurrence | None:
    """State spaces (Mamba-2) without limits on their steps; None without such layers."""
    if not layers:
        return None
    fields.expect("mamba_proj_bias", False)
    limits = fields.get("time_step_limit", None)
    if limits is not None and list(limits) not in _NO_LIMITS:
        raise refuse("time_step_limit", f"{shown(limits)} is not implemented, only 0 to infinity")
    names, dim = (
        ("mamba_d_conv", "mamba_n_groups", "mamba_n_heads", "mamba_d_state"),
        fields.get("mamba_d_head", "auto"),
    )
    sizes: dict[str, Any] = {name: fields.whole(name) for name in names}
    if dim == "auto":
        dim = fields.whole("mamba_expand") * fields.whole("hidden_size") // sizes["mamba_n_heads"]
    own = Fields(sizes | {"mamba_d_head": dim})
    return with_matrices("state_space", layers, own, (*names, "mamba_d_head"), fields.flag("mamba_conv_bias", True))


def minicpm3(fields: Fields) -> dict[str, Any]:
    """MiniCPM3: factors on embeddings, residuals and logits, of which null means none."""
    hidden, layers = fields.whole("hidden_size"), fields.whole("num_hidden_layers", most=MOST_LAYERS)
    depth, base = (fields.number(name, unsaid) for name, unsaid in (("scale_depth", 1.4), ("dim_model_base", 256)))
    return {
        "embedding_scale": fields.number("scale_emb", 12.0),
        "residual_scale": 1.0 if fields.is_null("scale_depth") else depth / layers**0.5,
        "logit_scale": 1.0 if fields.is_null("dim_model_base") else base / hidden,
    }


def minicpm3_gguf(fields: Fields) -> dict[str, Any]:
    """As `minicpm3`; the factors are those of its only model, as in llama.cpp."""
    sizes = {"hidden_size": fields.get("embedding_length"), "num_hidden_layers": fields.get("block_count")}
    return minicpm3(Fields(sizes))


def granite_gguf(fields: Fields) -> dict[str, Any]:
    """As `granite`. Files of llama.cpp say by ``rope.scaling.finetuned`` whether there are positions."""
    turns, layers = fields.flag("rope.scaling.finetuned", True), fields.whole("block_count", most=MOST_LAYERS)
    return {
        "layers_without_rope": () if turns else tuple(range(layers)),
        "embedding_scale": fields.number("embedding_scale", 1.0),
        "residual_scale": fields.number("residual_scale", 1.0),
        "attention_scale": fields.number("attention.scale") if "attention.scale" in fields else None,
        "logit_scale": 1.0 / fields.number("logit_scale", 1.0),
    }


def smollm3(fields: Fields) -> dict[str, Any]:
    """SmolLM3: some layers, by default every fourth, do not turn queries and keys."""
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    every = fields.whole("no_rope_layer_interval", 4)
    rotated = fields.list("no_rope_layers", int) or [int((i + 1) % every != 0) for i in range(layers)]
    if len(rotated) < layers:
        raise refuse("no_rope_layers", f"{len(rotated)} of them for {layers} layers")
    return {"layers_without_rope": tuple(i for i, turns in enumerate(rotated[:layers]) if not turns)}


def smollm3_gguf(fields: Fields) -> dict[str, Any]:
    """As `smollm3`; GGUF cannot say otherwise."""
    return {"layers_without_rope": tuple(range(3, fields.whole("block_count", most=MOST_LAYERS), 4))}


def biased_queries(fields: Fields) -> dict[str, Any]:
    """Biases on queries, keys and values (Qwen)."""
    return {"attention_bias": fields.flag("qkv_bias", True)}


def head_norms(fields: Fields) -> dict[str, Any]:
    """Norms of queries and keys per head."""
    return {"qk_norm": True}


def gpt2(fields: Fields) -> dict[str, Any]:
    """GPT-2, without its variants of attention."""
    for name, expected in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False),
                           ("add_cross_attention", False)):  # fmt: skip
        fields.expect(name, expected)
    return gpt2_gguf(fields)


def gpt2_gguf(fields: Fields) -> dict[str, Any]:
    """As `gpt2`."""
    return {
        "attention_bias": True, "attention_out_bias": True, "mlp_bias": True, "norm": "layer", "mlp": "gelu_tanh",
        "position_embedding": "learned",
    }  # fmt: skip
