"""The model families that Paceline runs: the layout of their files and the parts of their layers.

A family is data: names of tensors, defaults of its ``config.json``, and the fields of `ModelConfig` in which it differs
from Llama. The executors know parts, never families. Not for reading files (`config.py`, `sources.py`).

Parts of a layer have the names of Llama's in transformers (``self_attn.q_proj``, ``mlp.down_proj``), where
``input_layernorm`` and ``post_attention_layernorm`` are the norms before attention and feed-forward. Parts that Llama
lacks are ``self_attn.out_norm`` and ``mlp.out_norm``, the norms after them, and ``model.position_embeddings``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from paceline.errors import UnsupportedModel
from paceline.models.fields import Fields, refuse, shown

MOST_LAYERS = 10_000
_NOTHING: Mapping[str, Any] = {}


def _as_llama(fields: Fields) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Family:
    """How one ``model_type`` differs from Llama.

    Attributes:
        model_type: transformers' name. architecture: GGUF's name.
        differs: a summary of the differences, for the documentation.
        keys: our key to the family's in ``config.json``, where they differ. defaults: values of keys that it omits.
        layers: transformers' prefix of a layer's tensors, with ``{}`` for its number.
        names: our part to transformers'. stacked: transformers' part to our parts, whose rows it holds in this order.
        gguf_names, gguf_stacked: the same for GGUF, in addition to `GGUF_PARTS`.
        transposed: whether transformers stores linear layers as [in, out].
        pairs: whether GGUF interleaves the rows of queries and keys, (2i, 2i + 1) instead of (i, i + head_dim / 2).
        norm_shift: what must be added to norm weights of transformers' files (GGUF has it added).
        activation: values of ``hidden_act`` that mean the activation of `mlp`.
        window: which layers use ``sliding_window``: ``none``, ``all``, ``typed`` (by ``layer_types``, where these are
            given) or ``listed`` (by ``layer_types``, which must be given).
        window_asked: whether windows apply only if ``use_sliding_window`` is true.
        window_every: without ``layer_types``, every layer of this number has full attention (0: none has). If set, a
            GGUF file may omit the window, and a window as long as the context is kept.
        turns_part: whether ``partial_rotary_factor`` is supported.
        parts: fields of `ModelConfig` that differ, from ``config.json``. gguf_parts: the same from GGUF.
    """

    model_type: str
    architecture: str
    differs: str
    keys: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    layers: str = "model.layers.{}"
    names: Mapping[str, str] = field(default_factory=dict)
    stacked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gguf_names: Mapping[str, str] = field(default_factory=dict)
    gguf_stacked: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    transposed: bool = False
    pairs: bool = False
    norm_shift: float = 0.0
    activation: tuple[str, ...] = ("silu",)
    window: Literal["none", "all", "typed", "listed"] = "none"
    window_asked: bool = False
    window_every: int = 0
    turns_part: bool = False
    parts: Callable[[Fields], dict[str, Any]] = _as_llama
    gguf_parts: Callable[[Fields], dict[str, Any]] = _as_llama


GGUF_PARTS: Mapping[str, str] = {
    "model.embed_tokens": "token_embd", "model.position_embeddings": "position_embd", "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.out_norm": "post_attention_norm", "mlp.out_norm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}  # fmt: skip
"""Our part to GGUF's; ``mlp.experts.*`` holds all experts of a layer, one after the other."""

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_POST_NORMS = {
    "self_attn.out_norm": "post_attention_layernorm", "post_attention_layernorm": "pre_feedforward_layernorm",
    "mlp.out_norm": "post_feedforward_layernorm",
}  # fmt: skip
_MIXTRAL_NAMES = {
    "mlp.gate": "block_sparse_moe.gate", "mlp.experts.gate_proj": "block_sparse_moe.experts.w1",
    "mlp.experts.up_proj": "block_sparse_moe.experts.w3", "mlp.experts.down_proj": "block_sparse_moe.experts.w2",
}  # fmt: skip
_GPT2_NAMES = {
    "model.embed_tokens": "transformer.wte", "model.position_embeddings": "transformer.wpe",
    "model.norm": "transformer.ln_f", "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "attn.c_proj", "mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj",
}  # fmt: skip
_GELU_TANH = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")


def _scaled_embeddings(fields: Fields) -> dict[str, Any]:
    """Gemma: embeddings are multiplied by the square root of their width; the gate uses GELU."""
    hidden = fields.get("hidden_size", fields.get("embedding_length", 1))
    return {"mlp": "gated_gelu_tanh", "embedding_scale": float(hidden) ** 0.5}


def _gemma2(fields: Fields) -> dict[str, Any]:
    fields.expect("use_bidirectional_attention", False)
    return _scaled_embeddings(fields) | {
        "post_norms": True,
        "attention_scale": fields.number("query_pre_attn_scalar", 256) ** -0.5,
        "attention_softcap": _cap(fields, "attn_logit_softcapping"),
        "logit_softcap": _cap(fields, "final_logit_softcapping"),
    }


def _gemma3(fields: Fields) -> dict[str, Any]:
    """Gemma 3. Its files may have an attention soft cap, which transformers does not apply."""
    return _gemma2(fields) | {"qk_norm": True, "attention_softcap": 0.0}


def _gemma2_gguf(fields: Fields) -> dict[str, Any]:
    """Gemma 2. As in llama.cpp, the number of layers identifies the 27B model, whose scale is from hidden / heads."""
    return _scaled_embeddings(fields) | {
        "post_norms": True,
        "attention_scale": _gemma_scale(fields, 46),
        "attention_softcap": fields.number("attn_logit_softcapping", 50.0),
        "logit_softcap": fields.number("final_logit_softcapping", 30.0),
    }


def _gemma3_gguf(fields: Fields) -> dict[str, Any]:
    return _scaled_embeddings(fields) | {
        "post_norms": True,
        "qk_norm": True,
        "attention_scale": _gemma_scale(fields, 62),
        "logit_softcap": _cap(fields, "final_logit_softcapping"),
        "rope_local_theta": fields.number("rope.freq_base_swa", 10000.0, above=1.0),
    }


def _gemma_scale(fields: Fields, layers_of_largest: int) -> float:
    per_head = fields.whole("embedding_length") / fields.whole("attention.head_count")
    is_largest = fields.whole("block_count") == layers_of_largest
    return (per_head if is_largest else fields.whole("attention.key_length", int(per_head))) ** -0.5


def _cap(fields: Fields, name: str) -> float:
    return fields.number(name) if name in fields and not fields.is_null(name) else 0.0


def _olmo2(fields: Fields) -> dict[str, Any]:
    return {"pre_norms": False, "post_norms": True, "qk_norm": True, "qk_norm_over": "all"}


def _olmo2_gguf(fields: Fields) -> dict[str, Any]:
    """OLMo 2. The same architecture with windows is OLMo 3, which has positions of their own in these layers."""
    fields.expect("attention.sliding_window", 0)
    return _olmo2(fields)


def _granite(fields: Fields) -> dict[str, Any]:
    return {
        "embedding_scale": fields.number("embedding_multiplier", 1.0),
        "residual_scale": fields.number("residual_multiplier", 1.0),
        "attention_scale": fields.number("attention_multiplier", 1.0),
        "logit_scale": 1.0 / fields.number("logits_scaling", 1.0),
    }


def _granite_gguf(fields: Fields) -> dict[str, Any]:
    return {
        "embedding_scale": fields.number("embedding_scale", 1.0),
        "residual_scale": fields.number("residual_scale", 1.0),
        "attention_scale": fields.number("attention.scale") if "attention.scale" in fields else None,
        "logit_scale": 1.0 / fields.number("logit_scale", 1.0),
    }


def _smollm3(fields: Fields) -> dict[str, Any]:
    layers = fields.whole("num_hidden_layers", most=MOST_LAYERS)
    every = fields.whole("no_rope_layer_interval", 4)
    rotated = fields.list("no_rope_layers", int) or [int((i + 1) % every != 0) for i in range(layers)]
    if len(rotated) < layers:
        raise refuse("no_rope_layers", f"{len(rotated)} of them for {layers} layers")
    return {"layers_without_rope": tuple(i for i, turns in enumerate(rotated[:layers]) if not turns)}


def _smollm3_gguf(fields: Fields) -> dict[str, Any]:
    return {"layers_without_rope": tuple(range(3, fields.whole("block_count", most=MOST_LAYERS), 4))}


def _biased_queries(fields: Fields) -> dict[str, Any]:
    return {"attention_bias": fields.flag("qkv_bias", True)}


def _head_norms(fields: Fields) -> dict[str, Any]:
    return {"qk_norm": True}


def _gpt2(fields: Fields) -> dict[str, Any]:
    for name, expected in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False),
                           ("add_cross_attention", False)):  # fmt: skip
        fields.expect(name, expected)
    return _gpt2_gguf(fields)


def _gpt2_gguf(fields: Fields) -> dict[str, Any]:
    return {
        "attention_bias": True, "attention_out_bias": True, "mlp_bias": True, "norm": "layer", "mlp": "gelu_tanh",
        "position_embedding": "learned",
    }  # fmt: skip


_GEMMA_DEFAULTS = {
    "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "rms_norm_eps": 1e-6, "head_dim": 256,
    "sliding_window": 4096, "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip
_QWEN = {"max_window_layers": 28}
_GEMMA_KEYS = {"hidden_act": "hidden_activation"}

FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (
        Family(
            "llama", "llama", "the plain form: Llama 2 and 3, SmolLM2, TinyLlama; llama3 rope scaling", pairs=True
        ),
        Family("mistral", "llama", "a sliding window on all layers", pairs=True, window="all"),
        Family(
            "mixtral", "llama", "experts instead of the feed-forward", pairs=True, window="all", names=_MIXTRAL_NAMES,
            defaults={"rope_theta": 1e6},
        ),
        Family("qwen2", "qwen2", "biases on queries, keys and values; Qwen 2 and 2.5", window="typed",
               window_asked=True, defaults=_QWEN, parts=_biased_queries),
        Family("qwen2_moe", "qwen2moe", "qwen2 with experts, one of them shared", window="listed", window_asked=True,
               defaults={**_QWEN, "shared_expert_intermediate_size": 5632},
               parts=_biased_queries),
        Family("qwen3", "qwen3", "norms of queries and keys per head", defaults={**_QWEN, "head_dim": 128},
               window="typed", window_asked=True, parts=_head_norms, gguf_parts=_head_norms),
        Family("qwen3_moe", "qwen3moe", "qwen3 with experts", window="all", window_asked=True,
               parts=_head_norms, gguf_parts=_head_norms),
        Family(
            "gemma", "gemma", "norm weights less one, scaled embeddings, gelu in the gate",
            defaults={**_GEMMA_DEFAULTS, "num_attention_heads": 16, "num_key_value_heads": 16},
            activation=("gelu", *_GELU_TANH), norm_shift=1.0, parts=_scaled_embeddings, gguf_parts=_scaled_embeddings,
        ),
        Family(
            "gemma2", "gemma2", "gemma with norms after attention and feed-forward too, soft caps, every second layer "
            "with a window", keys=_GEMMA_KEYS, names=_POST_NORMS, activation=_GELU_TANH, norm_shift=1.0,
            defaults={
                **_GEMMA_DEFAULTS, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
                "vocab_size": 256000, "max_position_embeddings": 8192,
            },
            window="typed", window_every=2, parts=_gemma2, gguf_parts=_gemma2_gguf,
        ),
        Family(
            "gemma3_text", "gemma3", "gemma2 with norms of queries and keys instead of caps, five of six layers with a "
            "window and positions of their own", keys=_GEMMA_KEYS, names=_POST_NORMS, activation=_GELU_TANH,
            norm_shift=1.0,
            defaults={
                **_GEMMA_DEFAULTS, "vocab_size": 262208, "max_position_embeddings": 131072, "rope_theta": 1e6,
                "rope_local_base_freq": 1e4,
            },
            window="typed", window_every=6, parts=_gemma3, gguf_parts=_gemma3_gguf,
        ),
        Family(
            "phi3", "phi3", "queries, keys and values in one tensor, gate and up in one; LongRoPE; Phi-3, Phi-4, "
            "Phi-4-mini", window="all", turns_part=True,
            stacked={"self_attn.qkv_proj": _QKV, "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")},
            gguf_stacked={"attn_qkv": _QKV, "ffn_up": ("mlp.gate_proj", "mlp.up_proj")},
        ),
        Family("smollm3", "smollm3", "every fourth layer without positions", pairs=True, window="listed",
               window_asked=True, defaults={"tie_word_embeddings": True, "rope_theta": 2e6}, parts=_smollm3,
               gguf_parts=_smollm3_gguf),
        Family("olmo2", "olmo2", "norms after attention and feed-forward, none before; one norm over all queries and "
               "one over all keys", names={k: v for k, v in _POST_NORMS.items() if "out_norm" in k}, parts=_olmo2,
               gguf_parts=_olmo2_gguf),
        Family("granite", "granite", "embeddings, residuals, attention and logits multiplied", pairs=True,
               parts=_granite, gguf_parts=_granite_gguf),
        Family(
            "gpt2", "gpt2", "learned positions, layer norms, biases, no gate",
            keys={
                "hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
                "intermediate_size": "n_inner", "max_position_embeddings": "n_positions",
                "norm_eps": "layer_norm_epsilon", "hidden_act": "activation_function",
            },
            defaults={"tie_word_embeddings": True, "hidden_act": "gelu_new"}, layers="transformer.h.{}",
            names=_GPT2_NAMES, stacked={"attn.c_attn": _QKV}, gguf_stacked={"attn_qkv": _QKV}, transposed=True,
            activation=_GELU_TANH, parts=_gpt2, gguf_parts=_gpt2_gguf,
        ),
    )
}  # fmt: skip
"""Family by transformers' ``model_type``."""


def family_of(model_type: str) -> Family:
    """The family of `model_type`, which must be a key of `FAMILIES`."""
    return FAMILIES[model_type]


def family_of_gguf(architecture: object, has_experts: bool) -> Family:
    """The family of a GGUF file; GGUF names Mistral and Mixtral ``llama``, too.

    Raises:
        UnsupportedModel: no family has that architecture.
    """
    if architecture == "llama" and has_experts:
        return FAMILIES["mixtral"]
    for family in FAMILIES.values():
        if family.architecture == architecture:
            return family
    raise unknown_architecture("general.architecture", architecture)


def unknown_architecture(name: str, value: object) -> UnsupportedModel:
    """The error for an architecture that is not supported."""
    supported = ", ".join(FAMILIES)
    return UnsupportedModel(f"{name}: {shown(value)} is not an architecture Paceline runs; use one of {supported}")
