"""`ModelConfig`: what it reads, and that it refuses what would change the numbers."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.errors import UnsupportedModel
from paceline.models.architecture.config import SUPPORTED_MODEL_TYPES, ModelConfig
from paceline.models.architecture.experts import Experts
from paceline.models.architecture.layer_sizes import LayerSizes
from paceline.models.architecture.positions import frequencies, rope_table_of, rotary_tables
from paceline.models.architecture.rope import inverse_frequencies
from paceline.models.architecture.size import bytes_per_pass, num_parameters

LLAMA = {
    "model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 8, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 512,
    "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "vocab_size": 100, "n_embd": 64, "n_head": 4, "n_layer": 3, "n_positions": 128,
    "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
}  # fmt: skip
GGUF = {
    "general.architecture": "llama", "llama.block_count": 3, "llama.context_length": 512,
    "llama.embedding_length": 64, "llama.feed_forward_length": 96, "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
MIXTURE = LLAMA | {"model_type": "qwen2_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
GLM = LLAMA | {
    "model_type": "glm4_moe", "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
    "n_shared_experts": 2, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1,
}  # fmt: skip
GEMMA3 = LLAMA | {"model_type": "gemma3_text", "hidden_act": None, "head_dim": 8}
GEMMA4 = LLAMA | {
    "model_type": "gemma4_text", "hidden_act": None, "head_dim": 8, "global_head_dim": 16, "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2, "vocab_size_per_layer_input": 100,
}  # fmt: skip
GRANITE4 = LLAMA | {
    "model_type": "granitemoehybrid", "layer_types": ["mamba", "attention", "mamba"], "num_local_experts": 0,
    "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "shared_intermediate_size": 96,
}  # fmt: skip
NEMOTRON = {key: value for key, value in LLAMA.items() if key not in ("hidden_act", "num_hidden_layers")} | {
    "model_type": "nemotron_h", "head_dim": 16, "ssm_state_size": 16, "mamba_num_heads": 4, "mamba_head_dim": 32,
    "n_groups": 2, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
    "moe_shared_expert_intermediate_size": 64,
}  # fmt: skip
NEMOTRON_GGUF = {
    "general.architecture": "nemotron_h",
    **{f"nemotron_h.{key}": value for key, value in {
        "block_count": 3, "nextn_predict_layers": 1, "context_length": 64, "embedding_length": 64,
        "attention.head_count": 4, "attention.head_count_kv": [0, 0, 2], "feed_forward_length": [0, 96, 0],
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.dimension_count": 21, "ssm.conv_kernel": 4,
        "ssm.state_size": 16, "ssm.group_count": 2, "ssm.inner_size": 128, "ssm.time_step_rank": 4,
    }.items()},
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
FULL = "full_attention"
GGUF_SHAPES = {"token_embd.weight": (100, 64)}


def test_llama():
    config = ModelConfig.from_hf(LLAMA)
    assert (config.head_dim, config.num_key_value_heads, config.eos_token_ids) == (8, 2, (2,))
    assert not (config.tie_word_embeddings or config.attention_bias or config.qk_norm)
    assert config.rope_inv_freq_scale is None


def test_families_differ_where_they_should():
    def family(name):
        return ModelConfig.from_hf(LLAMA | {"model_type": name})

    assert family("qwen2").attention_bias and not family("qwen2").attention_out_bias
    assert family("qwen3").qk_norm and family("qwen3").head_dim == 128
    assert ModelConfig.from_hf(MIXTURE | {"model_type": "qwen3_moe"}).head_dim == 8
    gpt2 = ModelConfig.from_hf(GPT2)
    assert (gpt2.norm, gpt2.mlp, gpt2.position_embedding) == ("layer", "gelu_tanh", "learned")
    assert gpt2.intermediate_size == 4 * 64 and gpt2.tie_word_embeddings


def test_gguf_says_the_same_as_config_json():
    ours = ModelConfig.from_gguf(
        GGUF | {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2},
        GGUF_SHAPES | {"output.weight": (100, 64)},
    )
    assert ours == ModelConfig.from_hf(LLAMA)


def test_a_list_of_end_ids_is_kept():
    assert ModelConfig.from_hf(LLAMA | {"eos_token_id": [7, 9]}).eos_token_ids == (7, 9)
    ends = {"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 9}
    assert ModelConfig.from_gguf(GGUF | ends, GGUF_SHAPES).eos_token_ids == (7, 9)
    harmony = {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.tokens": ["<|end|>", "<|return|>", "a", "<|call|>"]}
    assert ModelConfig.from_gguf(GGUF | harmony, GGUF_SHAPES).eos_token_ids == (1, 3)
    gemma = {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.tokens": ["<pad>", "<eos>", "<end_of_turn>", "a"]}
    assert ModelConfig.from_gguf(GGUF | gemma, GGUF_SHAPES).eos_token_ids == (1, 2)
    glm = {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 1,
           "tokenizer.ggml.tokens": ["<|endoftext|>", "<|user|>", "<|observation|>"]}  # fmt: skip
    assert ModelConfig.from_gguf(GGUF | glm, GGUF_SHAPES).eos_token_ids == (0, 1, 2)


@pytest.mark.parametrize(
    ("model_type", "extra", "windows"),
    [
        ("mistral", {"sliding_window": 100}, (100, 100, 100)),
        ("mistral", {"sliding_window": None}, ()),
        ("mistral", {"sliding_window": 512}, ()),
        ("qwen2", {"sliding_window": 100, "use_sliding_window": False}, ()),
        ("qwen2", {"sliding_window": 100, "use_sliding_window": True, "max_window_layers": 2}, (0, 0, 100)),
        ("qwen3_moe", {"sliding_window": 100, "use_sliding_window": True, "max_window_layers": 2}, (100, 100, 100)),
        ("qwen3_moe", {"sliding_window": 100, "max_window_layers": 0}, ()),
        ("llama", {"sliding_window": 100}, ()),
        ("ministral3", {"sliding_window": 100}, (100, 100, 100)),
        ("gemma2", {"sliding_window": 100}, (100, 0, 100)),
        ("gemma3_text", {"sliding_window": 100, "sliding_window_pattern": 3}, (100, 100, 0)),
        ("gemma3_text", {"sliding_window": 9, "layer_types": [FULL, "sliding_attention", FULL]}, (0, 9, 0)),
    ],
)
def test_windows_are_on_the_layers_that_transformers_gives_them(model_type, extra, windows):
    values = LLAMA | {"model_type": model_type} | extra
    if model_type.startswith("gemma"):
        del values["hidden_act"]
    if model_type == "qwen3_moe":
        values = MIXTURE | values
    config = ModelConfig.from_hf(values)
    assert config.windows == windows and config.max_position_embeddings == 512


def test_other_positions_in_layers_with_a_window():
    positions = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                 "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}  # fmt: skip
    new = ModelConfig.from_hf(GEMMA3 | {"rope_parameters": positions})
    old = ModelConfig.from_hf(GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert new == old and (new.rope_theta, new.rope_local_theta) == (1e6, 1e4)
    assert [rope_table_of(replace(new, windows=(9, 0, 9)), layer) for layer in range(3)] == [1, 0, 1]


def test_layers_of_gemma_4_differ():
    parted = GEMMA4 | {"num_kv_shared_layers": 2, "use_double_wide_mlp": True}
    config = ModelConfig.from_hf(parted)
    saved = {key: value for key, value in parted.items() if key != "global_head_dim"}
    assert config == ModelConfig.from_hf(saved | {"per_layer_config": {str(i): {"head_dim": 16} for i in (1, 3)}})
    assert config.layer_sizes == (
        LayerSizes(8, 2, 96, 0), LayerSizes(16, 2, 96, 1), LayerSizes(8, 2, 192, 0, False, False),
        LayerSizes(16, 2, 192, 1, False, False),
    )  # fmt: skip
    assert (config.head_dim, config.intermediate_size, config.num_cache_layers) == (16, 192, 2)
    assert [rope_table_of(config, layer) for layer in range(4)] == [1, 0, 1, 0]
    full, local = frequencies(config)
    np.testing.assert_allclose(full, [1, 1e6 ** (-2 / 16), 0, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(local, 1e4 ** (-np.arange(4) / 4))
    cosines, _ = rotary_tables(config, 3)
    assert cosines.shape == (2, 3, 8) and (cosines[1, :, 4:] == 1).all() and (cosines[0, :, 2:] == 1).all()
    equal = ModelConfig.from_hf(GEMMA4 | {"attention_k_eq_v": True, "num_global_key_value_heads": 1})
    assert equal.layer_sizes[1] == LayerSizes(16, 1, 96, 1, has_values=False) and equal.layer_sizes[0].has_values
    apart = ModelConfig.from_hf(GEMMA4 | {"num_global_key_value_heads": 1})  # which the flag alone makes matter
    assert apart.layer_sizes[1] == LayerSizes(16, 2, 96, 1)


def test_minimax_m2s_published_config_says_how_much_of_a_head_turns_in_dimensions():
    values = {
        "model_type": "minimax_m2", "vocab_size": 200064, "hidden_size": 3072, "intermediate_size": 1536,
        "num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 196608, "rotary_dim": 64, "rope_theta": 5000000, "rms_norm_eps": 1e-6,
        "num_local_experts": 256, "num_experts_per_tok": 8, "scoring_func": "sigmoid", "use_routing_bias": True,
        "use_qk_norm": True, "qk_norm_type": "per_layer", "shared_intermediate_size": 0, "hidden_act": "silu",
    }  # fmt: skip
    config = ModelConfig.from_hf(values)
    assert (config.rotary_dim, config.qk_norm_over, config.experts.scoring_func) == (64, "all", "sigmoid")
    assert 228e9 < num_parameters(config) < 230e9
    with pytest.raises(UnsupportedModel, match="qk_norm_type"):
        ModelConfig.from_hf(values | {"qk_norm_type": "per_head"})


def test_mimo_is_qwen2():
    values = {
        "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "attention_bias": True,
        "num_nextn_predict_layers": 1,
    }  # fmt: skip
    assert ModelConfig.from_hf(values | {"model_type": "mimo"}) == ModelConfig.from_hf(values | {"model_type": "qwen2"})


def test_the_published_sizes_of_gemma_4_have_as_many_weights_as_their_names_say():
    common = {
        "model_type": "gemma4_text", "rms_norm_eps": 1e-6, "attention_k_eq_v": True, "head_dim": 256,
        "hidden_size_per_layer_input": 0, "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
    }  # fmt: skip
    large = common | {
        "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60, "num_attention_heads": 32,
        "num_key_value_heads": 16, "num_global_key_value_heads": 4,
    }  # fmt: skip
    mixture = common | {
        "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30, "num_attention_heads": 16,
        "num_key_value_heads": 8, "num_global_key_value_heads": 2, "enable_moe_block": True, "num_experts": 128,
        "top_k_experts": 8, "moe_intermediate_size": 704,
    }  # fmt: skip
    assert 30e9 < num_parameters(ModelConfig.from_hf(large)) < 31.5e9
    sparse = ModelConfig.from_hf(mixture)
    assert 25e9 < num_parameters(sparse) < 26.5e9 and 3.5e9 < bytes_per_pass(sparse, "int8") < 4.5e9


def test_longrope_ends_where_its_other_frequencies_would_begin():
    long = {"type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [4.0, 8.0]}
    phi = LLAMA | {"model_type": "phi3", "partial_rotary_factor": 0.5, "original_max_position_embeddings": 128}
    config = ModelConfig.from_hf(phi | {"rope_scaling": long})
    assert (config.rotary_dim, config.rope_inv_freq_scale, config.max_position_embeddings) == (4, (1.0, 0.5), 128)
    assert config.rope_factor == pytest.approx((1 + np.log(4) / np.log(128)) ** 0.5)


def test_a_cap_of_null_is_none_and_gemma_3_caps_logits_only():
    gemma = LLAMA | {"model_type": "gemma2", "hidden_act": None}
    names = ("attn_logit_softcapping", "final_logit_softcapping")
    for caps, expected in (({}, (50.0, 30.0)), (dict.fromkeys(names), (0.0, 0.0)), (dict.fromkeys(names, 7.0), (7, 7))):
        config = ModelConfig.from_hf(gemma | caps)
        assert (config.attention_softcap, config.logit_softcap) == expected
    third = ModelConfig.from_hf(gemma | {"model_type": "gemma3_text"} | dict.fromkeys(names, 7.0))
    assert (third.attention_softcap, third.logit_softcap) == (0.0, 7.0)


def test_yarn_in_gguf_means_what_llama_cpp_makes_of_it():
    names = {"type": "yarn", "factor": 4.0, "original_context_length": 128}
    prefix = "llama.rope.scaling."
    base = GGUF | {prefix + name: value for name, value in names.items()}

    def both(asked, theirs):
        ours = ModelConfig.from_gguf(base | {prefix + name: value for name, value in asked.items()}, GGUF_SHAPES)
        want = ModelConfig.from_hf(LLAMA | {"rope_scaling": YARN | theirs})
        assert ours.rope_inv_freq_scale == want.rope_inv_freq_scale
        return ours.rope_factor, want.rope_factor

    growth = 0.1 * np.log(4) + 1
    for asked, theirs in (({}, {}), ({"yarn_beta_fast": 8.0, "yarn_beta_slow": 2.0}, {"beta_fast": 8, "beta_slow": 2})):
        assert both(asked, theirs) == pytest.approx((growth, growth))
    ours, _ = both({"attn_factor": 0.5, "yarn_log_multiplier": 1.0, "yarn_ext_factor": 1.0}, {})
    assert ours == pytest.approx(0.5)
    assert both({"yarn_attn_factor": round(growth, 4)}, {})[0] == pytest.approx(growth)


def test_yarn_reaches_its_factor_times_the_original_context():
    """Qwen's instructions add it to a file that goes on stating the original context."""
    asked = {"rope_scaling": YARN | {"original_max_position_embeddings": 512}}
    config = ModelConfig.from_hf(LLAMA | asked | {"model_type": "mistral", "sliding_window": 512})
    assert (config.max_position_embeddings, config.windows) == (2048, (512,) * 3)
    assert ModelConfig.from_hf(LLAMA | {"rope_scaling": YARN}).max_position_embeddings == 512
    pairs = {"type": "yarn", "factor": 4.0, "original_context_length": 512}
    named = {f"llama.rope.scaling.{name}": value for name, value in pairs.items()}
    assert ModelConfig.from_gguf(GGUF | named, GGUF_SHAPES).max_position_embeddings == 2048


def test_the_language_model_of_a_model_of_text_and_images():
    whole = {"model_type": "gemma3", "eos_token_id": [1, 5], "text_config": {
        "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}}  # fmt: skip
    config = ModelConfig.from_hf(whole)
    assert (config.model_type, config.eos_token_ids, config.vocab_size) == ("gemma3_text", (1, 5), 262208)
    fourth = ModelConfig.from_hf({"model_type": "gemma4", "eos_token_id": [1, 7], "text_config": GEMMA4})
    assert (fourth.model_type, fourth.eos_token_ids) == ("gemma4_text", (1, 7))
    mistral = {"model_type": "mistral3", "text_config": LLAMA | {"model_type": "mistral", "tie_word_embeddings": False}}
    assert not ModelConfig.from_hf(mistral).tie_word_embeddings
    assert ModelConfig.from_hf(mistral | {"tie_word_embeddings": True}).tie_word_embeddings


def test_position_scalings():
    linear = {"rope_scaling": {"type": "linear", "factor": 4.0}}
    assert ModelConfig.from_hf(LLAMA | linear).rope_inv_freq_scale == (0.25,) * 4
    of_gguf = ModelConfig.from_gguf(GGUF | {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, {
        "token_embd.weight": (100, 64)})  # fmt: skip
    assert of_gguf.rope_inv_freq_scale == (0.25,) * 4
    divisors = (1.0, 2.0, 4.0, 8.0)
    assert ModelConfig.from_gguf(GGUF, GGUF_SHAPES, divisors).rope_inv_freq_scale == (1.0, 0.5, 0.25, 0.125)


def test_llama3_keeps_short_waves_and_divides_long_ones():
    scaling = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }  # fmt: skip
    config = ModelConfig.from_hf(LLAMA | {"rope_scaling": scaling, "rope_theta": 10000.0, "head_dim": 16})
    scale = np.array(config.rope_inv_freq_scale)
    wavelengths = 2 * np.pi / inverse_frequencies(10000.0, 16)
    assert (scale[wavelengths < 64 / 4.0] == 1).all() and (scale[wavelengths > 64] == 1 / 8).all()
    between = (wavelengths >= 64 / 4.0) & (wavelengths <= 64)
    assert between.any() and ((scale[between] > 1 / 8) & (scale[between] < 1)).all()


def test_both_spellings_of_rope_settings_mean_the_same():
    scaling = {"rope_type": "linear", "factor": 2.0}
    old = ModelConfig.from_hf(LLAMA | {"rope_scaling": scaling, "rope_theta": 777.0})
    assert old == ModelConfig.from_hf(LLAMA | {"rope_parameters": scaling | {"rope_theta": 777.0}})
    assert old.rope_theta == 777.0


@pytest.mark.parametrize(
    ("base", "change", "named"),
    [
        (LLAMA, {"model_type": "mamba"}, "model_type.*llama, mistral.*qwen2.*gpt2"),
        (LLAMA, {"model_type": None}, "model_type"),
        (LLAMA, {"hidden_act": "relu"}, "hidden_act"),
        (LLAMA, {"rope_scaling": {"rope_type": "proportional", "partial_rotary_factor": 1.5}}, "partial_rotary_factor"),
        (LLAMA, {"rope_scaling": {"rope_type": "linear"}}, "factor"),
        (LLAMA, {"rope_scaling": {"rope_type": "linear", "factor": -1}}, "factor"),
        (LLAMA, {"partial_rotary_factor": 0.1}, "partial_rotary_factor"),
        (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor.*llama turns whole heads"),
        (LLAMA, {"partial_rotary_factor": "half"}, "partial_rotary_factor"),
        (LLAMA, {"rope_theta": True}, "rope_theta"),
        (LLAMA, {"rope_theta": 1e400}, "rope_theta"),
        (LLAMA, {"rope_scaling": ["linear"]}, "rope_scaling"),
        (
            LLAMA,
            {"rope_scaling": {"rope_type": "other"}},
            "'other' is not implemented, only default, dynamic, linear, ",
        ),
        (LLAMA, {"rope_scaling": {"rope_type": "linear", "factor": 1e-320}}, "factor"),
        (LLAMA, {"rope_scaling": YARN | {"original_max_position_embeddings": 5e-324}}, "original_max_position"),
        (LLAMA, {"rope_scaling": YARN | {"beta_slow": 5e-324}}, "beta_slow"),
        (GEMMA3, {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}}, "sliding.*linear"),
        (LLAMA, {"eos_token_id": 2.0}, "eos_token_id"),
        (LLAMA, {"eos_token_id": [2, "3"]}, "eos_token_id"),
        (LLAMA, {"eos_token_id": 100}, "eos_token_id.*vocabulary of 100"),
        (LLAMA, {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        (LLAMA, {"num_hidden_layers": 10**9}, "num_hidden_layers"),
        (LLAMA, {"vocab_size": 10**12}, "vocab_size"),
        (LLAMA, {"model_type": "mistral", "sliding_window": "all"}, "sliding_window"),
        (LLAMA, {"model_type": "gemma"}, "hidden_act"),
        (LLAMA, {"hidden_size": None}, "hidden_size"),
        (LLAMA, {"hidden_size": "64"}, "hidden_size"),
        (LLAMA, {"num_hidden_layers": 0}, "num_hidden_layers"),
        (LLAMA, {"num_key_value_heads": 3}, "num_key_value_heads"),
        (LLAMA, {"head_dim": 7}, "head_dim"),
        (LLAMA, {"head_dim": 2**31 - 2, "rope_scaling": YARN}, "head_dim"),
        (LLAMA, {"hidden_size": 2**30, "rope_scaling": YARN}, "head_dim"),
        (LLAMA, {"model_type": "smollm3", "sliding_window": 9, "use_sliding_window": True}, "layer_types"),
        (MIXTURE, {"model_type": "qwen2_moe", "sliding_window": 9, "use_sliding_window": True}, "layer_types"),
        (LLAMA, {"rms_norm_eps": 0}, "rms_norm_eps"),
        (GPT2, {"activation_function": "relu"}, "activation_function"),
        (LLAMA, {"model_type": "stablelm", "layer_norm_eps": 1e-5, "qk_layernorm": True}, "qk_layernorm"),
        (LLAMA, {"model_type": "stablelm", "layer_norm_eps": 1e-5, "use_parallel_residual": True}, "use_parallel"),
        (MIXTURE, {"model_type": "olmoe", "clip_qkv": 8.0}, "clip_qkv"),
        (LLAMA, {"model_type": "granitemoehybrid", "layer_types": ["mamba"]}, "layer_types"),
        (GRANITE4, {"layer_types": ["mamba"] * 3}, "no layer has attention"),
        (GRANITE4, {"position_embedding_type": "alibi"}, "position_embedding_type"),
        (GRANITE4, {"time_step_limit": [0.001, 0.1]}, "time_step_limit"),
        (GRANITE4, {"mamba_proj_bias": True}, "mamba_proj_bias"),
        (GRANITE4, {"mamba_n_groups": 3}, "mamba_n_heads"),
        (LLAMA, {"model_type": "hunyuan_v1_dense", "use_qk_norm": False}, "use_qk_norm"),
        (NEMOTRON, {}, "hybrid_override_pattern"),
        (NEMOTRON, {"hybrid_override_pattern": "M-X*"}, "hybrid_override_pattern.*X.*one of M"),
        (NEMOTRON, {"hybrid_override_pattern": "M--*"}, "feed-forward number 2 follows neither"),
        (NEMOTRON, {"hybrid_override_pattern": "-M*"}, "feed-forward number 0 follows neither"),
        (NEMOTRON, {"hybrid_override_pattern": "M-*E"}, "with experts beside others without"),
        (NEMOTRON, {"hybrid_override_pattern": "M-M-"}, "no layer has attention"),
        (NEMOTRON, {"layers_block_type": ["mamba", "conv"]}, "layers_block_type.*conv"),
        (NEMOTRON, {"hybrid_override_pattern": "ME*E", "moe_latent_size": 32}, "moe_latent_size"),
        (NEMOTRON, {"hybrid_override_pattern": "M-*-", "mlp_hidden_act": "silu"}, "mlp_hidden_act"),
        (NEMOTRON, {"hybrid_override_pattern": "M-*-", "mlp_bias": True}, "mlp_bias"),
        (LLAMA, {"model_type": "cohere", "layer_norm_eps": 1e-5, "use_qk_norm": True}, "use_qk_norm"),
        (MIXTURE, {"model_type": "gpt_oss", "swiglu_limit": 5.0}, "swiglu_limit"),
        (GPT2, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        (GEMMA4, {"attention_bias": True}, "attention_bias"),
        (GEMMA4, {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
        (GEMMA4, {"vocab_size_per_layer_input": 90}, "vocab_size_per_layer_input"),
        (GEMMA4, {"layer_types": ["full_attention", "sliding_attention"] * 2}, "layer_types.*last must be full"),
        (GEMMA4, {"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
        (GEMMA4, {"num_kv_shared_layers": 3}, "num_kv_shared_layers.*keys of full_attention"),
        (GEMMA4, {"per_layer_config": {"1": {"hidden_size": 8}}}, "per_layer_config"),
        (GEMMA4, {"per_layer_config": {"1": {"num_key_value_heads": 3}}}, "num_key_value_heads"),
        (
            GEMMA4 | {"num_experts": 4, "top_k_experts": 5, "moe_intermediate_size": 8},
            {"enable_moe_block": True},
            "num_experts_per_tok: 5",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(base, change, named):
    with pytest.raises(UnsupportedModel, match=named):
        ModelConfig.from_hf(base | change)


@pytest.mark.parametrize(
    ("change", "factors", "named"),
    [
        ({"general.architecture": "rwkv6"}, None, "general.architecture.*llama"),
        ({"llama.expert_count": 8}, None, "expert_used_count"),
        ({"llama.attention.sliding_window": [1]}, None, "sliding_window"),
        ({"tokenizer.ggml.eos_token_id": 100}, None, "eos_token_id"),
        ({"llama.rope.dimension_count": 4}, None, "rope.dimension_count"),
        ({"llama.rope.scaling.type": "other"}, None, "rope.scaling.type.*only none, linear, yarn, longrope"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.yarn_ext_factor": 0.5}, None, "yarn_ext_factor"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.yarn_attn_factor": 2.0}, None, "yarn_attn_factor"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}, (1.0,) * 4, "rope_freqs"),
        ({"llama.block_count": 2.5}, None, "block_count"),
        ({"llama.attention.head_count": [8, 8, 8]}, None, "head_count"),
        ({}, (1.0, 2.0), "rope_freqs.weight"),
        ({"llama.attention.head_count_kv": [2, 4, 2]}, None, "head_count_kv: layers of different sizes .* llama"),
        ({"llama.feed_forward_length": [96, 96, 192]}, None, "feed_forward_length: layers of different sizes"),
    ],
)
def test_what_a_gguf_file_cannot_ask_for(change, factors, named):
    with pytest.raises(UnsupportedModel, match=named):
        ModelConfig.from_gguf(GGUF | change, GGUF_SHAPES, factors)


@pytest.mark.parametrize("architecture", ["command-r", "stablelm"])
def test_norms_of_queries_that_only_the_largest_models_have(architecture):
    """Command R+ and StableLM 2 12B, whose metadata do not say so."""
    pairs = renamed(architecture) | {f"{architecture}.logit_scale": 0.1, f"{architecture}.use_parallel_residual": True}
    assert not ModelConfig.from_gguf(pairs, GGUF_SHAPES).qk_norm
    with pytest.raises(UnsupportedModel, match=f"attn_q_norm: a norm of queries .* {architecture}"):
        ModelConfig.from_gguf(pairs, GGUF_SHAPES | {"blk.0.attn_q_norm.weight": (8, 8)})


def renamed(architecture):
    """The pairs of `GGUF` for another architecture."""
    pairs = {key.replace("llama", architecture): value for key, value in GGUF.items()}
    return pairs | {"general.architecture": architecture}


def test_olmo3_is_olmo2_with_windows():
    pairs = renamed("olmo2")
    assert ModelConfig.from_gguf(pairs, GGUF_SHAPES).model_type == "olmo2"
    more = {
        "attention.sliding_window": 100,
        "rope.freq_base": 5e5,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
    }
    third = ModelConfig.from_gguf(pairs | {f"olmo2.{key}": value for key, value in more.items()}, GGUF_SHAPES)
    assert (third.model_type, third.windows, third.rope_local_theta) == ("olmo3", (100, 100, 100), 5e5)
    own = {f"olmo2.{key}": value for key, value in (more | {"rope.freq_base_swa": 1e4}).items()}
    assert ModelConfig.from_gguf(pairs | own, GGUF_SHAPES).rope_local_theta == 1e4
    growth = 0.1 * np.log(4) + 1
    assert third.rope_factor == pytest.approx(growth)
    first = {f"olmo2.{key}": value for key, value in more.items()} | {
        "olmo2.rope.scaling.attn_factor": round(growth, 4)
    }
    assert ModelConfig.from_gguf(pairs | first, GGUF_SHAPES).rope_factor == pytest.approx(growth)


def test_the_first_files_of_qwen_vl_state_the_language_model_beside_the_pictures():
    mrope = {"type": "mrope", "mrope_section": [1, 1, 2]}
    old = LLAMA | {"model_type": "qwen2_5_vl", "vision_config": {"hidden_size": 32}, "rope_scaling": mrope}
    new = {"model_type": "qwen2_5_vl", "text_config": LLAMA | {"model_type": "qwen2_5_vl_text", "rope_scaling": mrope}}
    assert ModelConfig.from_hf(old) == ModelConfig.from_hf(new)
    assert ModelConfig.from_hf(old).attention_bias and ModelConfig.from_hf(old).rope_inv_freq_scale is None


def test_positions_only_in_layers_with_a_window():
    exaone = LLAMA | {"model_type": "exaone4", "num_hidden_layers": 8, "sliding_window": 100}
    ours = ModelConfig.from_hf(exaone)
    assert ours.windows == (100, 100, 100, 0) * 2 and ours.layers_without_rope == (3, 7)
    assert ModelConfig.from_hf(exaone | {"sliding_window": None}).layers_without_rope == ()
    pairs = renamed("exaone4") | {"exaone4.attention.sliding_window": 100}
    listed = {"exaone4.attention.sliding_window_pattern": [True, False, True]}
    assert ModelConfig.from_gguf(pairs, GGUF_SHAPES).layers_without_rope == ()
    assert ModelConfig.from_gguf(pairs | listed, GGUF_SHAPES).layers_without_rope == (1,)
    for wrong in ([True], [1, 0, 1]):
        with pytest.raises(UnsupportedModel, match="sliding_window_pattern"):
            ModelConfig.from_gguf(pairs | {"exaone4.attention.sliding_window_pattern": wrong}, GGUF_SHAPES)


def test_the_context_of_command_r_is_what_it_was_trained_on():
    """Of the first ones, config.json has 131,072 beside `max_position_embeddings` of 8,192."""
    config = LLAMA | {"model_type": "cohere", "layer_norm_eps": 1e-5}
    assert ModelConfig.from_hf(config).max_position_embeddings == 512
    assert ModelConfig.from_hf(config | {"model_max_length": 4096}).max_position_embeddings == 4096


def test_gpt_neox_has_either_form_of_gelu():
    neox = LLAMA | {"model_type": "gpt_neox", "layer_norm_eps": 1e-5}
    assert ModelConfig.from_hf(neox | {"hidden_act": "gelu"}).mlp == "gelu"
    assert ModelConfig.from_hf(neox | {"hidden_act": "gelu_fast"}).mlp == "gelu_tanh"


def test_queries_grow_with_their_position():
    scaled = YARN | {"llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0}
    ministral = LLAMA | {"model_type": "ministral3"}
    ours = ModelConfig.from_hf(ministral | {"rope_parameters": scaled})
    assert (ours.max_position_embeddings, ours.rope_factor) == (512, 1.0)
    assert (ours.query_growth, ours.query_growth_every) == (0.1, 128)
    whole = ModelConfig.from_hf(ministral | {"rope_parameters": scaled | {"llama_4_scaling_beta": 0}})
    assert whole.query_growth == 0
    with pytest.raises(UnsupportedModel, match="llama_4_scaling_beta"):
        ModelConfig.from_hf(ministral | {"rope_parameters": scaled | {"llama_4_scaling_beta": -1}})
    asked = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128,
             "rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.1}  # fmt: skip
    same = ModelConfig.from_gguf(renamed("mistral3") | {f"mistral3.{k}": v for k, v in asked.items()}, GGUF_SHAPES)
    assert (same.query_growth, same.query_growth_every, same.rope_factor) == (0.1, 128, 1.0)


LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3")
ACTIVATIONS = {
    **dict.fromkeys(("arcee", "nemotron", "jais2"), "relu2"),
    "gpt_neox": "gelu",
    **dict.fromkeys(("gemma", "gemma2", "gemma3_text", "gemma4_text", "starcoder2"), "gelu_pytorch_tanh"),
}


NEED_KINDS = ("granitemoehybrid", "gemma4_text")


def test_every_supported_type_can_be_read():
    for name in SUPPORTED_MODEL_TYPES:
        act = {"hidden_act": ACTIVATIONS.get(name, "silu")}
        own = {"norm_epsilon": 1e-5, "layer_norm_eps": 1e-5, "full_attention_interval": 3}
        four = {"shared_intermediate_size": 96, "layer_types": ["full_attention"] * 3, "hidden_size_per_layer_input": 0}
        base = GPT2 if name == "gpt2" else MIXTURE | act | own | (four if name in NEED_KINDS else {})
        base = base | {"n_routed_experts": 16, "moe_num_experts": 8, "moe_k": 2, "first_k_dense_replace": 1}
        base = base | {"hybrid_override_pattern": "M-*-", "mlp_hidden_act": "relu2"}
        if name in LATENT:
            base = base | {"num_key_value_heads": 8, "kv_lora_rank": 32, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8}
        assert ModelConfig.from_hf(base | {"model_type": name}).model_type == name


def test_sublayers_make_layers_under_either_name():
    config = ModelConfig.from_hf(NEMOTRON | {"hybrid_override_pattern": "ME*MEM", "num_hidden_layers": 6})
    named = ["mamba", "moe", "attention", "mamba", "moe", "mamba"]
    assert ModelConfig.from_hf(NEMOTRON | {"layers_block_type": named}) == config
    assert (config.num_hidden_layers, config.attention_layers, config.expert_layers) == (4, (1,), (0, 2))
    assert (config.layers_without_mlp, config.sublayers, config.num_file_layers) == ((1, 3), (0, 2, 3, 5), 6)
    assert [config.file_number(2, is_mlp) for is_mlp in (False, True)] == [3, 4]
    assert config.recurrence.layers == (0, 2, 3) and config.layers_without_rope == (0, 1, 2, 3)
    assert config.intermediate_size == 40 and config.experts == Experts(
        8, 2, True, 64, scoring_func="sigmoid", e_score_correction_bias=True, shared_expert_gate=False
    )
    assert ModelConfig.from_hf(NEMOTRON | {"hybrid_override_pattern": "M-*-"}).experts is None


def test_sublayers_of_a_gguf_file_are_known_by_their_sizes():
    with pytest.raises(UnsupportedModel, match="no layer has attention"):  # the third predicts further tokens
        ModelConfig.from_gguf(NEMOTRON_GGUF, GGUF_SHAPES)
    config = ModelConfig.from_gguf(NEMOTRON_GGUF | {"nemotron_h.nextn_predict_layers": 0}, GGUF_SHAPES)
    assert (config.sublayers, config.layers_without_mlp, config.attention_layers) == ((0, 2), (1,), (1,))
    with pytest.raises(UnsupportedModel, match=r"feed_forward_length.*2 for 3 layers"):
        ModelConfig.from_gguf(
            NEMOTRON_GGUF | {"nemotron_h.nextn_predict_layers": 0, "nemotron_h.feed_forward_length": [0, 96]},
            GGUF_SHAPES,
        )


def test_a_mixture_is_read_under_each_familys_names():
    qwen = ModelConfig.from_hf(MIXTURE | {"shared_expert_intermediate_size": 24})
    assert qwen.experts == Experts(8, 2, norm_topk_prob=False, shared_intermediate_size=24)
    assert (qwen.intermediate_size, qwen.attention_bias) == (40, True)
    mixtral = ModelConfig.from_hf(
        LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 32}
    )
    assert mixtral.experts == Experts(4, 2, norm_topk_prob=True)
    assert mixtral.intermediate_size == LLAMA["intermediate_size"]
    assert mixtral.windows == (32, 32, 32)
    assert ModelConfig.from_hf(LLAMA).experts is None


def test_what_a_mixture_leaves_unsaid_is_what_transformers_takes_it_for():
    mixtral = LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    assert ModelConfig.from_hf(mixtral).rope_theta == 1e6
    shared = ModelConfig.from_hf(MIXTURE).experts
    assert shared is not None and shared.shared_intermediate_size == 5632


def test_experts_after_dense_layers():
    config = ModelConfig.from_hf(GLM)
    assert config.experts == Experts(
        8, 2, True, 80, scoring_func="sigmoid", e_score_correction_bias=True, n_group=4, topk_group=2,
        routed_scaling_factor=2.5, shared_expert_gate=False, first_k_dense_replace=1, dense_intermediate_size=96,
    )  # fmt: skip
    assert (config.intermediate_size, config.dense_size, config.rotary_dim, config.qk_norm) == (40, 96, 4, False)
    assert ModelConfig.from_hf(GLM | {"use_qk_norm": True}).qk_norm
    names = {"moe_num_experts": 8, "moe_k": 2, "moe_layer_start_index": 2, "moe_layer_end_index": 2}
    ernie = ModelConfig.from_hf(LLAMA | names | {"model_type": "ernie4_5_moe", "moe_intermediate_size": 40})
    assert ernie.experts == Experts(
        8, 2, True, 80, e_score_correction_bias=True, shared_expert_gate=False, first_k_dense_replace=2,
        dense_intermediate_size=96,
    )  # fmt: skip


def test_of_experts_in_gguf_tensors_tell_what_keys_do_not():
    """llama.cpp's converter writes another width of ERNIE's shared expert than that of its tensors."""
    keys = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 40, "leading_dense_block_count": 1,
            "expert_shared_feed_forward_length": 7}  # fmt: skip
    for name, extra in (("ernie4_5-moe", {}), ("glm4moe", {"expert_gating_func": 2, "expert_weights_scale": 0.0})):
        metadata = renamed(name) | {f"{name}.{key}": value for key, value in (keys | extra).items()}
        tensors = {"blk.1.ffn_up_shexp.weight": (80, 64), "blk.1.exp_probs_b.bias": (8,)}
        found = ModelConfig.from_gguf(metadata, GGUF_SHAPES | tensors).experts
        assert found is not None and found.shared_intermediate_size == 80 and found.e_score_correction_bias
        assert found.routed_scaling_factor == 1.0
        without = ModelConfig.from_gguf(metadata, GGUF_SHAPES).experts
        assert without is not None and not without.shared_intermediate_size and not without.e_score_correction_bias
        for key, value in (
            ("expert_gating_func", 3),
            ("interleave_moe_layer_step", 2),
            ("leading_dense_block_count", 3),
        ):
            with pytest.raises(UnsupportedModel, match=key):
                ModelConfig.from_gguf(metadata | {f"{name}.{key}": value}, GGUF_SHAPES)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"topk_method": "greedy"}, "topk_method"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"first_k_dense_replace": 3}, "first_k_dense_replace.*leaves none with experts"),
        ({"n_group": 3}, "n_group"),
        ({"n_group": 8, "topk_group": 4}, "n_group"),
        ({"topk_group": 5}, "topk_group"),
        ({"num_experts_per_tok": 5}, "topk_group"),
        ({"routed_scaling_factor": 0}, "routed_scaling_factor"),
        ({"model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_k": 2, "use_bias": True}, "use_bias"),
        ({"model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_layer_interval": 2}, "moe_layer_interval"),
        ({"model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_layer_end_index": 1}, "moe_layer_end_index"),
        ({"model_type": "ernie4_5_moe", "moe_num_experts": 8, "moe_norm_min": 0.1}, "moe_norm_min"),
    ],
)
def test_choices_of_experts_that_are_not_implemented_are_refused(change, named):
    with pytest.raises(UnsupportedModel, match=named):
        ModelConfig.from_hf(
            GLM | change if "model_type" not in change else LLAMA | {"moe_intermediate_size": 40} | change
        )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"decoder_sparse_step": 2}, "decoder_sparse_step"),
        ({"mlp_only_layers": [0]}, "mlp_only_layers"),
        ({"num_experts": None}, "num_experts"),
        ({"moe_intermediate_size": None}, "moe_intermediate_size"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok"),
    ],
)
def test_mixtures_that_cannot_be_run_are_refused(change, named):
    with pytest.raises(UnsupportedModel, match=named):
        ModelConfig.from_hf(MIXTURE | change)


def test_biases_of_gated_attention_are_refused():
    """Those of the gates would be left out."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 4}
    values = sizes | {"model_type": "qwen3_5_text", "vocab_size": 131, "max_position_embeddings": 64}
    assert ModelConfig.from_hf(values).attention_gate
    with pytest.raises(UnsupportedModel, match="attention_bias: True is not implemented"):
        ModelConfig.from_hf(values | {"attention_bias": True})


LFM2 = {
    "lfm2.block_count": 4, "lfm2.attention.head_count": 4, "lfm2.embedding_length": 64, "lfm2.context_length": 128,
    "lfm2.feed_forward_length": 96, "lfm2.attention.layer_norm_rms_epsilon": 1e-5, "lfm2.shortconv.l_cache": 3,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "counts"), [("llama", [2, 0, 2, 2]), ("lfm2", [2, 0, 2]), ("lfm2", [0, 0, 0, 0])])
def test_key_heads_that_do_not_fit_the_layers_are_refused(kind, counts):
    values = {name.replace("lfm2", kind): value for name, value in LFM2.items()} | {"general.architecture": kind}
    shapes = {"token_embd.weight": (131, 64)}
    good = [2, 0, 2, 2] if kind == "lfm2" else [2, 2, 2, 2]
    assert ModelConfig.from_gguf(values | {f"{kind}.attention.head_count_kv": good}, shapes).num_key_value_heads == 2
    with pytest.raises(UnsupportedModel, match=r"attention.head_count_kv: .*not implemented"):
        ModelConfig.from_gguf(values | {f"{kind}.attention.head_count_kv": counts}, shapes)


@pytest.mark.parametrize(
    ("change", "named"),
    [({"layer_types": ["conv"] * 2}, "layer_types: no layer has attention"), ({"conv_L_cache": 65}, "conv_L_cache")],
)
def test_convolutions_that_cannot_be_run_are_refused(change, named):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_hidden_layers": 2}
    values = sizes | {"model_type": "lfm2", "vocab_size": 131, "max_position_embeddings": 64}
    with pytest.raises(UnsupportedModel, match=named):
        ModelConfig.from_hf(values | change)
