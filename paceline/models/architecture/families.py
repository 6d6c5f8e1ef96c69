"""The model families that Paceline runs, as data: names of tensors, defaults, and the parts of their layers.

The executors know parts, never families. Not for reading files (`config.py`, `files/sources.py`).
"""

from collections.abc import Mapping
from typing import Any

from paceline.errors import UnsupportedModel
from paceline.models.architecture import family_parts as parts
from paceline.models.architecture.family import Family
from paceline.models.fields import shown

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_POST_NORMS = {
    "self_attn.out_norm": "post_attention_layernorm", "post_attention_layernorm": "pre_feedforward_layernorm",
    "mlp.out_norm": "post_feedforward_layernorm",
}  # fmt: skip
_OUT_NORMS = {part: name for part, name in _POST_NORMS.items() if part.endswith("out_norm")}
_SHARED = {f"mlp.shared_expert.{part}_proj": part for part in ("gate", "up", "down")}
_GEMMA4_NAMES = {
    **_POST_NORMS, **{name: f"mlp.{part}_proj" for name, part in _SHARED.items()},
    "layer_scalar.weight": "layer_scalar", "mlp.gate": "router.proj", "mlp.gate_norm.weight": "router.scale",
    "mlp.gate_scales.weight": "router.per_expert_scale", "mlp.experts.gate_up_proj": "experts.gate_up_proj",
    "mlp.experts.down_proj": "experts.down_proj", "mlp.experts_norm": "pre_feedforward_layernorm_2",
    "mlp.shared_expert.out_norm": "post_feedforward_layernorm_1",
    "mlp.experts_out_norm": "post_feedforward_layernorm_2",
}  # fmt: skip
_EXPERTS_GATE_UP = ("mlp.experts.gate_proj", "mlp.experts.up_proj")
_GEMMA4_GGUF = {
    "layer_scalar": "layer_output_scale", "model.embed_tokens_per_layer": "per_layer_token_embd",
    "model.per_layer_model_projection": "per_layer_model_proj", "per_layer_input_gate": "inp_gate",
    "model.per_layer_projection_norm": "per_layer_proj_norm", "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm", **{name: f"ffn_{part}" for name, part in _SHARED.items()},
    "mlp.gate_norm.weight": "ffn_gate_inp.scale", "mlp.gate_scales.weight": "ffn_down_exps.scale",
    "mlp.experts_norm": "pre_ffw_norm_2", "mlp.experts_out_norm": "post_ffw_norm_2",
    "mlp.shared_expert.out_norm": "post_ffw_norm_1",
}  # fmt: skip
_GLM4_NAMES = {"self_attn.out_norm": "post_self_attn_layernorm", "mlp.out_norm": "post_mlp_layernorm"}
_GATE_UP = {"mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")}
_FFN_UP = {"ffn_up": ("mlp.gate_proj", "mlp.up_proj")}
_MIXTRAL_NAMES = {
    "mlp.gate": "block_sparse_moe.gate", "mlp.experts.gate_proj": "block_sparse_moe.experts.w1",
    "mlp.experts.up_proj": "block_sparse_moe.experts.w3", "mlp.experts.down_proj": "block_sparse_moe.experts.w2",
}  # fmt: skip
_SCORE_BIAS = "mlp.gate.e_score_correction.bias"
_MINIMAX_NAMES = _MIXTRAL_NAMES | {_SCORE_BIAS: "block_sparse_moe.e_score_correction_bias"}
_SHARED_NAMES = {
    f"mlp.shared_expert.{part}_proj": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")
} | {_SCORE_BIAS: "mlp.gate.e_score_correction_bias"}
_LATENT_NAMES = _SHARED_NAMES | {
    "self_attn.q_a_norm": "self_attn.q_a_layernorm", "self_attn.kv_a_norm": "self_attn.kv_a_layernorm",
    "self_attn.kv_a_proj": "self_attn.kv_a_proj_with_mqa",
}  # fmt: skip
_KEYS_AND_VALUES = ("self_attn.k_b_proj", "self_attn.v_b_proj")
_LATENT: dict[str, Any] = {
    "names": _LATENT_NAMES, "woven": {"self_attn.kv_b_proj": _KEYS_AND_VALUES},
    "gguf_woven": {"attn_kv_b": _KEYS_AND_VALUES}, "interleaved": True, "latent": True,
}  # fmt: skip
_LATENT_HALVES: dict[str, Any] = {**_LATENT, "interleaved": False}
_ERNIE_KEYS = {
    "n_routed_experts": "moe_num_experts", "num_experts_per_tok": "moe_k", "n_shared_experts": "moe_num_shared_experts",
    "first_k_dense_replace": "moe_layer_start_index",
}  # fmt: skip
_GPT2_NAMES = {
    "model.embed_tokens": "transformer.wte", "model.position_embeddings": "transformer.wpe",
    "model.norm": "transformer.ln_f", "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
    "self_attn.o_proj": "attn.c_proj", "mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj",
}  # fmt: skip
_NEOX_NAMES = {
    "model.embed_tokens": "gpt_neox.embed_in", "model.norm": "gpt_neox.final_layer_norm", "lm_head": "embed_out",
    "self_attn.o_proj": "attention.dense", "mlp.up_proj": "mlp.dense_h_to_4h", "mlp.down_proj": "mlp.dense_4h_to_h",
}  # fmt: skip
_ONE_NORM, _ONE_NORM_GGUF = {"post_attention_layernorm": "input_layernorm"}, {"post_attention_layernorm": "attn_norm"}
"""The norm before attention is that before the feed-forward, too."""
_LFM2_NAMES = {
    "input_layernorm": "operator_norm", "post_attention_layernorm": "ffn_norm", "model.norm": "model.embedding_norm",
    "self_attn.q_norm": "self_attn.q_layernorm", "self_attn.k_norm": "self_attn.k_layernorm",
    "self_attn.o_proj": "self_attn.out_proj", "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}  # fmt: skip
_LFM2_EXPERTS = {
    "mlp.gate": "feed_forward.gate", "mlp.experts.gate_proj": "feed_forward.experts.w1",
    "mlp.experts.up_proj": "feed_forward.experts.w3", "mlp.experts.down_proj": "feed_forward.experts.w2",
    _SCORE_BIAS: "feed_forward.expert_bias",
}  # fmt: skip
_LFM2_GGUF = {"model.norm": "token_embd_norm", "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv",
              "conv.out_proj": "shortconv.out_proj"}  # fmt: skip
_DELTA_QKVZ = tuple(f"linear_attn.in_proj_{part}" for part in "qkvz")
_DELTA_QKV, _DELTA_QKV_GGUF = {"linear_attn.in_proj_qkv": _DELTA_QKVZ[:3]}, {"attn_qkv": _DELTA_QKVZ[:3]}
_GATED_QUERY = ("self_attn.q_proj", "self_attn.g_proj")
_DELTA_NAMES = {"linear_attn.dt.bias": "linear_attn.dt_bias", "linear_attn.A_log.weight": "linear_attn.A_log"}
_DELTA_GGUF = {
    "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.dt": "ssm_dt", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out", "linear_attn.A_log.weight": "ssm_a",
}  # fmt: skip
_DELTA = {
    "head_dim": 256, "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-6, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
}  # fmt: skip
_GRANITE_NAMES = {"mlp.gate": "block_sparse_moe.router.layer",
                  "mlp.experts.down_proj": "block_sparse_moe.output_linear"}  # fmt: skip
_GRANITE_SHARED = tuple(f"mlp.{stem}{part}_proj" for stem in ("", "shared_expert.") for part in ("gate", "up"))
"""A model has either the first two or the last two."""
_GRANITE_EXPERTS = {"block_sparse_moe.input_linear": _EXPERTS_GATE_UP}
_EXPERTS_OF_GRANITE = {"num_local_experts": 8, "num_experts_per_tok": 2}
_MAMBA = {"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2}
_STATE_SPACE_PARTS = tuple(f"linear_attn.in_proj_{part}" for part in "zvkqa")
_STATE_SPACE_NAMES = {
    "linear_attn.conv1d": "mamba.conv1d", "linear_attn.dt.bias": "mamba.dt_bias", "linear_attn.norm": "mamba.norm",
    "linear_attn.out_proj": "mamba.out_proj", "linear_attn.A_log.weight": "mamba.A_log",
    "linear_attn.D.weight": "mamba.D",
}  # fmt: skip
_STATE_SPACE_GGUF = {
    "linear_attn.conv1d": "ssm_conv1d", "linear_attn.dt": "ssm_dt", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out", "linear_attn.A_log.weight": "ssm_a", "linear_attn.D.weight": "ssm_d",
}  # fmt: skip
_NEMOTRON_NAMES = {
    "model.embed_tokens": "backbone.embeddings", "model.norm": "backbone.norm_f", "input_layernorm": "norm",
    "post_attention_layernorm": "norm", _SCORE_BIAS: "mixer.gate.e_score_correction_bias",
    **{f"self_attn.{part}_proj": f"mixer.{part}_proj" for part in "qkvo"},
    **{name: theirs.replace("mamba.", "mixer.") for name, theirs in _STATE_SPACE_NAMES.items()},
    **{f"mlp.{part}": f"mixer.{part}" for part in ("up_proj", "down_proj", "gate", "experts.up_proj",
                                                   "experts.down_proj")},
    **{f"mlp.shared_expert.{part}_proj": f"mixer.shared_experts.{part}_proj" for part in ("up", "down")},
}  # fmt: skip
_NEMOTRON_KEYS = {
    "norm_eps": "layer_norm_epsilon", "hidden_act": "mlp_hidden_act", "mamba_d_conv": "conv_kernel",
    "mamba_n_groups": "n_groups", "mamba_n_heads": "mamba_num_heads", "mamba_d_state": "ssm_state_size",
    "mamba_d_head": "mamba_head_dim", "mamba_conv_bias": "use_conv_bias",
}  # fmt: skip
_COHERE = {"tie_word_embeddings": True, "logit_scale": 0.0625, "sliding_window": 4096}
_GELU_TANH = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")

_GEMMA_DEFAULTS = {
    "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "rms_norm_eps": 1e-6, "head_dim": 256,
    "sliding_window": 4096, "num_attention_heads": 8, "num_key_value_heads": 4,
}  # fmt: skip
_QWEN = {"max_window_layers": 28}
_ERNIE = {"tie_word_embeddings": True, "rope_theta": 5e5}
_ONE_OF_EACH = {"n_shared_experts": 1, "first_k_dense_replace": 1}
_GLM = {"attention_bias": True, "head_dim": 128, "partial_rotary_factor": 0.5}
_GEMMA_KEYS = {"hidden_act": "hidden_activation"}

FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (
        Family(
            "llama", "llama", "the plain form: Llama 2 and 3, SmolLM2, TinyLlama; llama3 rope scaling", pairs=True
        ),
        Family("mistral", "llama", "a sliding window on all layers", pairs=True, window="all"),
        Family("ministral3", "mistral3", "llama with YaRN and queries that grow with their position; Ministral 3",
               pairs=True, window="all"),
        Family(
            "mixtral", "llama", "experts instead of the feed-forward", pairs=True, window="all", names=_MIXTRAL_NAMES,
            defaults={"rope_theta": 1e6},
        ),
        Family("qwen2", "qwen2", "biases on queries, keys and values; Qwen 2 and 2.5", window="typed",
               window_asked=True, defaults=_QWEN, parts=parts.biased_queries),
        Family("qwen2_moe", "qwen2moe", "qwen2 with experts, one of them shared", window="listed", window_asked=True,
               defaults={**_QWEN, "shared_expert_intermediate_size": 5632},
               parts=parts.biased_queries),
        Family("qwen3", "qwen3", "norms of queries and keys per head", defaults={**_QWEN, "head_dim": 128},
               window="typed", window_asked=True, parts=parts.head_norms, gguf_parts=parts.head_norms),
        Family("qwen2_5_vl_text", "qwen2vl", "the language model of Qwen2.5-VL: qwen2, for text", window="typed",
               window_asked=True, defaults={**_QWEN, "max_window_layers": 80}, parts=parts.biased_queries),
        Family("qwen3_vl_text", "qwen3vl", "the language model of Qwen3-VL: qwen3, for text",
               defaults={"head_dim": 128}, parts=parts.head_norms, gguf_parts=parts.head_norms),
        Family("qwen3_vl_moe_text", "qwen3vlmoe", "the language model of Qwen3-VL with experts: qwen3_moe, for text",
               stacked={"mlp.experts.gate_up_proj": ("mlp.experts.gate_proj", "mlp.experts.up_proj")},
               transposed=("mlp.experts",), either=True, parts=parts.head_norms, gguf_parts=parts.head_norms),
        Family("qwen3_moe", "qwen3moe", "qwen3 with experts", window="all", window_asked=True,
               parts=parts.head_norms, gguf_parts=parts.head_norms),
        Family(
            "gemma", "gemma", "norm weights less one, scaled embeddings, gelu in the gate",
            defaults={**_GEMMA_DEFAULTS, "num_attention_heads": 16, "num_key_value_heads": 16},
            activation=("gelu", *_GELU_TANH), norm_shift=1.0, parts=parts.scaled_embeddings,
            gguf_parts=parts.scaled_embeddings,
        ),
        Family(
            "gemma2", "gemma2", "gemma with norms after attention and feed-forward too, soft caps, every second layer "
            "with a window", keys=_GEMMA_KEYS, names=_POST_NORMS, activation=_GELU_TANH, norm_shift=1.0,
            defaults={
                **_GEMMA_DEFAULTS, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
                "vocab_size": 256000, "max_position_embeddings": 8192,
            },
            window="typed", window_every=2, gguf_window=4096, parts=parts.gemma2, gguf_parts=parts.gemma2_gguf,
        ),
        Family(
            "gemma3_text", "gemma3", "gemma2 with norms of queries and keys instead of caps, five of six layers with a "
            "window and positions of their own", keys=_GEMMA_KEYS, names=_POST_NORMS, activation=_GELU_TANH,
            norm_shift=1.0,
            defaults={
                **_GEMMA_DEFAULTS, "vocab_size": 262208, "max_position_embeddings": 131072, "rope_theta": 1e6,
                "rope_local_base_freq": 1e4,
            },
            window="typed", window_every=6, gguf_window=4096, parts=parts.gemma3, gguf_parts=parts.gemma3_gguf,
        ),
        Family(
            "gemma4_text", "gemma4", "gemma3 with whole norm weights and norms of values too; layers with full "
            "attention have larger heads, of which a part turns; E2B and E4B: layers have embeddings of their own, the "
            "last ones read keys of earlier ones; 31B, 26B-A4B: values are keys; 26B-A4B: experts beside the "
            "feed-forward", keys=_GEMMA_KEYS, names=_GEMMA4_NAMES,
            gguf_names=_GEMMA4_GGUF, activation=_GELU_TANH,
            stacked={"mlp.experts.gate_up_proj": _EXPERTS_GATE_UP},
            gguf_stacked={"ffn_gate_up_exps": _EXPERTS_GATE_UP},
            defaults={
                **_GEMMA_DEFAULTS, "vocab_size": 262144, "max_position_embeddings": 131072, "sliding_window": 512,
                "num_hidden_layers": 30, "hidden_size": 2304, "intermediate_size": 9216, "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                    "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
                },
            },
            window="typed", window_every=6, parts=parts.gemma4, gguf_parts=parts.gemma4_gguf,
        ),
        Family(
            "phi3", "phi3", "queries, keys and values in one tensor, gate and up in one; LongRoPE; Phi-3, Phi-4, "
            "Phi-4-mini", window="all", turns_part=True,
            stacked={"self_attn.qkv_proj": _QKV, **_GATE_UP}, gguf_stacked={"attn_qkv": _QKV, **_FFN_UP},
        ),
        Family("smollm3", "smollm3", "every fourth layer without positions", pairs=True, window="listed",
               window_asked=True, defaults={"tie_word_embeddings": True, "rope_theta": 2e6}, parts=parts.smollm3,
               gguf_parts=parts.smollm3_gguf),
        Family("olmo2", "olmo2", "norms after attention and feed-forward, none before; one norm over all queries and "
               "one over all keys", names=_OUT_NORMS, parts=parts.olmo2, gguf_parts=parts.olmo2),
        Family("olmo3", "olmo2", "olmo2 with a window in three of four layers, which have unscaled positions",
               names=_OUT_NORMS, defaults={"rope_theta": 5e5, "sliding_window": 4096}, window="typed", window_every=4,
               parts=parts.olmo3, gguf_parts=parts.olmo3_gguf),
        Family("olmoe", "olmoe", "experts; one norm over all queries and one over all keys", parts=parts.olmoe,
               gguf_parts=parts.olmoe),
        Family(
            "gpt_oss", "gpt-oss", "experts in 4-bit floats, with biases, a clamped gate and 1 added to its factor; "
            "attention sinks; every second layer with a window",
            names={"self_attn.sinks.weight": "self_attn.sinks", "mlp.gate": "mlp.router"},
            woven={"mlp.experts.gate_up_proj": ("mlp.experts.gate_proj", "mlp.experts.up_proj")},
            transposed=("mlp.experts",), gguf_names={"post_attention_layernorm": "post_attention_norm"},
            defaults={"head_dim": 64, "sliding_window": 128, "attention_bias": True, "rope_theta": 150000.0,
                      "num_local_experts": 128, "num_experts_per_tok": 4, "max_position_embeddings": 131072},
            window="typed", window_every=2, yarn_truncates=False, parts=parts.gpt_oss, gguf_parts=parts.gpt_oss,
        ),
        Family("exaone4", "exaone4", "norms after attention and feed-forward, none before; norms of queries and keys "
               "per head; where three of four layers have a window, the fourth has no positions", names=_OUT_NORMS,
               window="typed", window_every=4, turns_windows=True,
               parts=parts.exaone4, gguf_parts=parts.exaone4),
        Family("glm", "chatglm", "half of a head turns, in pairs; biases on queries, keys and values; gate and up in "
               "one tensor; GLM-4-9B", defaults=_GLM, stacked=_GATE_UP, gguf_stacked={"attn_qkv": _QKV, **_FFN_UP},
               interleaved=True, turns_part=True, parts=parts.glm),
        Family("glm4", "glm4", "glm with norms after attention and feed-forward too; GLM-4-0414", names=_GLM4_NAMES,
               defaults=_GLM, stacked=_GATE_UP, gguf_stacked=_FFN_UP, interleaved=True, turns_part=True,
               parts=parts.glm4, gguf_parts=parts.both_norms),
        Family("glm4_moe", "glm4moe", "half of a head turns; experts after dense first layers, chosen by sigmoids plus "
               "a bias from the best groups, and a shared one; norms of queries and keys per head where asked; GLM-4.5 "
               "and 4.6", names=_SHARED_NAMES,
               defaults={"partial_rotary_factor": 0.5, "norm_topk_prob": True, **_ONE_OF_EACH},
               turns_part=True, norms_asked=True, gguf_names={"post_attention_layernorm": "post_attention_norm"},
               parts=parts.glm4_moe),
        Family("dots1", "dots1", "glm4_moe with norms of queries and keys per head, whole heads that turn and a window "
               "where layer_types say so; dots.llm1", names=_SHARED_NAMES, window="typed", parts=parts.head_norms,
               gguf_parts=parts.head_norms),
        Family("deepseek_v2", "deepseek2", "latent attention; experts after dense first layers, chosen by softmax from "
               "the best groups, and shared ones; DeepSeek-V2, V2-Lite", defaults={"n_shared_experts": 2}, **_LATENT),
        Family("deepseek_v3", "deepseek2", "deepseek_v2 with sigmoids plus a bias; DeepSeek-V3 and R1", defaults={
               "n_shared_experts": 1, "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4,
               "norm_topk_prob": True, "routed_scaling_factor": 2.5}, **_LATENT),
        Family("glm4_moe_lite", "deepseek2", "deepseek_v3 with other defaults; GLM-4.7-Flash", defaults={
               **_ONE_OF_EACH, "norm_topk_prob": True, "routed_scaling_factor": 1.8}, **_LATENT),
        Family("minicpm3", "minicpm3", "latent attention whose heads turn in halves; embeddings, residuals and logits "
               "multiplied", defaults={"tie_word_embeddings": True}, parts=parts.minicpm3,
               gguf_parts=parts.minicpm3_gguf, **_LATENT_HALVES),
        Family("seed_oss", "seed_oss", "biases on queries, keys and values",
               defaults={"attention_bias": True, "head_dim": 128},
               gguf_names={"post_attention_layernorm": "post_attention_norm"}, parts=parts.seed_oss),
        Family("ernie4_5", "ernie4_5", "llama that turns pairs of a head", interleaved=True,
               defaults={**_ERNIE, "head_dim": 128}, parts=parts.biased),
        Family("ernie4_5_moe", "ernie4_5-moe", "ernie4_5 with experts after dense first layers, chosen by softmax plus "
               "a bias, and a shared one; 21B-A3B, 300B-A47B", keys=_ERNIE_KEYS, interleaved=True,
               names=_SHARED_NAMES | {_SCORE_BIAS: "mlp.moe_statics.e_score_correction_bias"},
               defaults={**_ERNIE, **_ONE_OF_EACH, "n_shared_experts": 2}, parts=parts.ernie4_5_moe),
        Family("starcoder2", "starcoder2", "layer norms, biases, no gate, a window on all layers", window="all",
               gguf_window=4096,
               keys={"norm_eps": "norm_epsilon"}, names={"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"},
               defaults={"tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh"}, activation=_GELU_TANH,
               parts=parts.starcoder2, gguf_parts=parts.ungated),
        Family("cohere", "command-r", "layer norms without biases; attention and feed-forward side by side; pairs of a "
               "head turn; logits multiplied; Command R",
               keys={"norm_eps": "layer_norm_eps", "max_position_embeddings": "model_max_length"}, names=_ONE_NORM,
               defaults=_COHERE, interleaved=True, gguf_names=_ONE_NORM_GGUF, parts=parts.cohere,
               gguf_parts=parts.cohere),
        Family("cohere2", "cohere2", "cohere with a window in three of four layers, the fourth without positions; "
               "Command R7B, Command A", keys={"norm_eps": "layer_norm_eps"}, names=_ONE_NORM, defaults=_COHERE,
               interleaved=True, gguf_names=_ONE_NORM_GGUF, window="typed", window_every=4,
               turns_windows=True, parts=parts.cohere, gguf_parts=parts.cohere),
        Family("gpt_neox", "gptneox", "layer norms, biases, no gate, gelu; attention and feed-forward side by side; a "
               "quarter of a head turns; Pythia, GPT-NeoX-20B", layers="gpt_neox.layers.{}", names=_NEOX_NAMES,
               keys={"norm_eps": "layer_norm_eps", "partial_rotary_factor": "rotary_pct",
                     "rope_theta": "rotary_emb_base"},
               defaults={"partial_rotary_factor": 0.25, "attention_bias": True, "hidden_act": "gelu"},
               woven={"attention.query_key_value": _QKV}, gguf_stacked={"attn_qkv": _QKV}, turns_part=True,
               activation=("gelu", *_GELU_TANH), parts=parts.gpt_neox, gguf_parts=parts.gpt_neox),
        Family("stablelm", "stablelm", "layer norms; a quarter of a head turns; StableLM 3B and 2-1.6B",
               keys={"norm_eps": "layer_norm_eps"}, defaults={"partial_rotary_factor": 0.25}, turns_part=True,
               parts=parts.stablelm, gguf_parts=parts.stablelm_gguf),
        Family("lfm2", "lfm2", "short convolutions in place of attention in most layers; norms of queries and keys per "
               "head; LFM2", keys={"norm_eps": "norm_eps", "intermediate_size": "block_ff_dim",
                                   "tie_word_embeddings": "tie_embedding"},
               names=_LFM2_NAMES, defaults={"tie_word_embeddings": True, "rope_theta": 1e6, "norm_eps": 1e-5},
               gguf_names=_LFM2_GGUF, parts=parts.lfm2, gguf_parts=parts.lfm2_gguf),
        Family("lfm2_moe", "lfm2moe", "lfm2 with experts after dense first layers, chosen by sigmoids plus a bias",
               keys={"norm_eps": "norm_eps", "tie_word_embeddings": "tie_embedding", "n_routed_experts": "num_experts",
                     "first_k_dense_replace": "num_dense_layers"},
               names=_LFM2_NAMES | _LFM2_EXPERTS,
               defaults={"tie_word_embeddings": True, "rope_theta": 1e6, "norm_eps": 1e-5, "norm_topk_prob": True,
                         "first_k_dense_replace": 2, "num_experts_per_tok": 4, "block_auto_adjust_ff_dim": False},
               gguf_names=_LFM2_GGUF, parts=parts.lfm2, gguf_parts=parts.lfm2_gguf),
        Family("qwen3_next", "qwen3next", "qwen3_5_text with experts, one of them shared; Qwen3-Next",
               names=_DELTA_NAMES, defaults=_DELTA | {"norm_topk_prob": True, "shared_expert_intermediate_size": 512},
               woven={"self_attn.q_proj": _GATED_QUERY, "linear_attn.in_proj_qkvz": _DELTA_QKVZ,
                      "linear_attn.in_proj_ba": ("linear_attn.in_proj_b", "linear_attn.in_proj_a")},
               gguf_woven={"attn_q": _GATED_QUERY, "ssm_ba": ("linear_attn.in_proj_b", "linear_attn.in_proj_a")},
               gguf_stacked=_DELTA_QKV_GGUF, gguf_names=_DELTA_GGUF, norm_shift=1.0, turns_part=True,
               parts=parts.qwen3_5, gguf_parts=parts.qwen3_next_gguf),
        Family("qwen3_5_moe_text", "qwen35moe", "qwen3_5_text with experts, one of them shared; Qwen3.5-35B-A3B and "
               "larger", names=_DELTA_NAMES, defaults=_DELTA | {"shared_expert_intermediate_size": 512},
               stacked=_DELTA_QKV | {"mlp.experts.gate_up_proj": ("mlp.experts.gate_proj", "mlp.experts.up_proj")},
               woven={"self_attn.q_proj": _GATED_QUERY}, gguf_woven={"attn_q": _GATED_QUERY}, gguf_names=_DELTA_GGUF,
               gguf_stacked=_DELTA_QKV_GGUF, norm_shift=1.0, turns_part=True, parts=parts.qwen3_5,
               gguf_parts=parts.qwen3_5_gguf),
        Family("qwen3_5_text", "qwen35", "gated delta nets in place of attention in three of four layers, whose "
               "attention is gated; a quarter of a head turns; Qwen3.5, for text", names=_DELTA_NAMES,
               defaults=_DELTA, stacked=_DELTA_QKV, woven={"self_attn.q_proj": _GATED_QUERY},
               gguf_woven={"attn_q": _GATED_QUERY}, gguf_stacked=_DELTA_QKV_GGUF, gguf_names=_DELTA_GGUF,
               norm_shift=1.0, turns_part=True, parts=parts.qwen3_5, gguf_parts=parts.qwen3_5_gguf),
        Family("granite", "granite", "embeddings, residuals, attention and logits multiplied", pairs=True,
               parts=parts.granite, gguf_parts=parts.granite_gguf),
        Family("granitemoe", "granitemoe", "granite with experts; Granite 3 1B-A400M, 3B-A800M", pairs=True,
               names=_GRANITE_NAMES, defaults=_EXPERTS_OF_GRANITE, stacked=_GRANITE_EXPERTS, parts=parts.granite,
               gguf_parts=parts.granite_gguf),
        Family("granitemoehybrid", "granitehybrid", "granite with gate and up in one tensor; H models: state spaces "
               "(Mamba-2) in place of attention in nine of ten layers, no positions, in Tiny and Small experts and a "
               "shared one; Granite 4", pairs=True,
               names=_GRANITE_NAMES | _STATE_SPACE_NAMES | {"mlp.down_proj": "shared_mlp.output_linear",
                                                            "mlp.shared_expert.down_proj": "shared_mlp.output_linear"},
               stacked={"shared_mlp.input_linear": _GRANITE_SHARED, **_GRANITE_EXPERTS,
                        "mamba.in_proj": _STATE_SPACE_PARTS},
               defaults=_EXPERTS_OF_GRANITE | _MAMBA | {"shared_intermediate_size": 1024},
               gguf_names=_STATE_SPACE_GGUF, gguf_stacked={"ssm_in": _STATE_SPACE_PARTS}, parts=parts.granite4,
               gguf_parts=parts.granite4_gguf),
        Family("arcee", "arcee", "llama with squared ReLUs without a gate; AFM-4.5B", pairs=True, activation=("relu2",),
               parts=parts.squared_relu, gguf_parts=parts.squared_relu),
        Family("nemotron", "nemotron", "layer norms, whose files have weights less one; squared ReLUs without a gate; "
               "half of a head turns; Nemotron-4, Minitron, Nemotron-Mini", keys={"norm_eps": "norm_eps"},
               norm_shift=1.0, defaults={"norm_eps": 1e-5, "partial_rotary_factor": 0.5}, turns_part=True,
               activation=("relu2",), parts=parts.nemotron, gguf_parts=parts.nemotron),
        Family("jais2", "jais2", "layer norms, biases, squared ReLUs without a gate; Jais 2",
               keys={"norm_eps": "layer_norm_eps"}, activation=("relu2",),
               defaults={"attention_bias": True, "mlp_bias": True, "norm_eps": 1e-5},
               parts=parts.nemotron, gguf_parts=parts.nemotron),
        Family("hunyuan_v1_dense", "hunyuan-dense", "norms of queries and keys per head, after their rotation; Hunyuan "
               "0.5B to 7B, Hunyuan-MT", names={f"self_attn.{part}_norm": f"self_attn.{name}_layernorm"
                                             for part, name in (("q", "query"), ("k", "key"))},
               parts=parts.hunyuan, gguf_parts=parts.hunyuan),
        Family("nemotron_h", "nemotron_h", "state spaces (Mamba-2) in place of attention in most layers; some layers "
               "without a feed-forward, squared ReLUs without a gate in the others; no positions; Nemotron-H, Nemotron "
               "Nano 2; Nemotron 3 Nano: experts chosen by sigmoids plus a bias, and a shared one",
               layers="backbone.layers.{}",
               names=_NEMOTRON_NAMES, keys=_NEMOTRON_KEYS, stacked={"mixer.in_proj": _STATE_SPACE_PARTS},
               defaults={"num_hidden_layers": 52, "norm_eps": 1e-5, "head_dim": 128, "num_key_value_heads": 8,
                         "mamba_d_conv": 4, "mamba_n_groups": 8, "mamba_n_heads": 128, "mamba_d_state": 128,
                         "mamba_d_head": 64},
               activation=("relu2",), mixture_architecture="nemotron_h_moe",
               gguf_names=_STATE_SPACE_GGUF | {"post_attention_layernorm": "attn_norm"},
               gguf_stacked={"ssm_in": _STATE_SPACE_PARTS}, parts=parts.nemotron_h, gguf_parts=parts.nemotron_h_gguf),
        Family("minimax_m2", "minimax-m2", "experts chosen by sigmoids plus a bias; one norm over all queries and one "
               "over all keys; half of a head turns; MiniMax-M2", names=_MINIMAX_NAMES,
               defaults={"rope_theta": 5e6, "rms_norm_eps": 1e-6, "head_dim": 128}, turns_part=True,
               parts=parts.minimax_m2, gguf_parts=parts.wide_norms),
        Family(
            "gpt2", "gpt2", "learned positions, layer norms, biases, no gate",
            keys={
                "hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer",
                "intermediate_size": "n_inner", "max_position_embeddings": "n_positions",
                "norm_eps": "layer_norm_epsilon", "hidden_act": "activation_function",
            },
            defaults={"tie_word_embeddings": True, "hidden_act": "gelu_new"}, layers="transformer.h.{}",
            names=_GPT2_NAMES, stacked={"attn.c_attn": _QKV}, gguf_stacked={"attn_qkv": _QKV},
            transposed=("self_attn", "mlp"), activation=_GELU_TANH, parts=parts.gpt2, gguf_parts=parts.gpt2_gguf,
        ),
    )
}  # fmt: skip
"""Family by transformers' ``model_type``."""


def family_of(model_type: str) -> Family:
    """The family of `model_type`, which must be a key of `FAMILIES`."""
    return FAMILIES[model_type]


def family_of_gguf(metadata: Mapping[str, Any]) -> Family:
    """The family of a GGUF file, whose name for an architecture may be that of several families.

    Raises:
        UnsupportedModel: no family has that architecture.
    """
    name = metadata.get("general.architecture")
    if name == "llama" and metadata.get("llama.expert_count"):
        return FAMILIES["mixtral"]
    if name == "olmo2" and metadata.get("olmo2.attention.sliding_window"):
        return FAMILIES["olmo3"]
    for family in FAMILIES.values():
        if name and name in (family.architecture, family.mixture_architecture):
            return family
    raise unknown_architecture("general.architecture", name)


def unknown_architecture(name: str, value: object) -> UnsupportedModel:
    """The error for an architecture that is not supported."""
    supported = ", ".join(FAMILIES)
    return UnsupportedModel(f"{name}: {shown(value)} is not an architecture Paceline runs; use one of {supported}")
