"""Fixtures of this folder: tiny random models of every family, saved the way transformers saves them."""

import pytest

from paceline.errors import DownloadFailed
from paceline.models.resolve import resolve_model

from .tiny import SIZES, VOCAB

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
WINDOW = {"sliding_window": 9}
STDS = {"gate_up_proj": 0.6, "sinks": 2.0, "linear_attn.out_proj.weight": 0.1}
"""Standard deviations that make gpt-oss's gates reach their limits and its sinks matter, and keep states small."""
ZERO_CENTRED = ("nemotron", "qwen3_next", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_5_text-even")
"""Families whose files have norm weights less one, and whose states grow with twice the weight."""
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
VISION = {"hidden_size": 32, "num_heads": 2, "intermediate_size": 32, "patch_size": 4}
NEOX = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"} | {
    "hidden_size": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25},
}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
DENSE_FIRST = {"moe_intermediate_size": 32, "head_dim": 16}
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True, "routed_scaling_factor": 1.75}
GROUPED = {"n_group": 4, "topk_group": 2}
HEADS = SIZES | {"num_key_value_heads": 4}
LATENT = {
    "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32, "moe_intermediate_size": 32,
}  # fmt: skip
USUAL = {"query_pre_attn_scalar": 16}
"""The head's size: another scale of Gemma's queries cannot be said in GGUF. Nor can StarCoder2's window."""
DELTA = {
    "head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 32,
}
GRANITE = {
    "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 2.0,
}  # fmt: skip
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1}
NEMOTRON = SIZES | {
    "head_dim": 16, "mamba_num_heads": 4, "mamba_head_dim": 48, "ssm_state_size": 16, "n_groups": 2,
    "time_step_min": 1e-30,
}  # fmt: skip
"""transformers keeps steps from their least on, which no other program does."""
GEMMA = {**SIZES, "head_dim": 16, "query_pre_attn_scalar": 24}
GEMMA4 = {
    **SIZES, **WINDOW, "head_dim": 16, "global_head_dim": 32, "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip


def _longrope(rotated: int) -> dict:
    short, long = ([1.0 + 0.1 * i for i in range(rotated // 2)], [2.0 + i for i in range(rotated // 2)])
    return {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": short, "long_factor": long}


def configs():
    """Family, or a name for one of its forms, to a small config of transformers'."""
    import transformers as t

    many = {"num_hidden_layers": 7}
    longrope = _longrope(12) | {"partial_rotary_factor": 0.75, "original_max_position_embeddings": 64}
    return {
        "llama": t.LlamaConfig(**SIZES, tie_word_embeddings=True),
        "llama-biased": t.LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
        "llama3": t.LlamaConfig(**SIZES, rope_parameters=LLAMA3),
        "llama3-tied": t.LlamaConfig(**SIZES, rope_parameters=LLAMA3, tie_word_embeddings=True),
        "llama-linear": t.LlamaConfig(**SIZES, rope_parameters=LINEAR),
        "mistral": t.MistralConfig(**SIZES, head_dim=16, **WINDOW),
        "qwen2": t.Qwen2Config(**SIZES),
        "qwen2-yarn": t.Qwen2Config(
            **SIZES, rope_parameters=YARN, use_sliding_window=True, max_window_layers=1, **WINDOW
        ),
        "qwen3": t.Qwen3Config(**SIZES, head_dim=16),
        "qwen2_5_vl_text": t.Qwen2_5_VLConfig(
            text_config=SIZES | ENDS | {"rope_parameters": MROPE},
            vision_config={"depth": 1, "out_hidden_size": 64} | VISION),
        "qwen3_vl_text": t.Qwen3VLConfig(
            text_config=SIZES | {"head_dim": 16, "rope_parameters": MROPE},
            vision_config={"depth": 1, "out_hidden_size": 64, "deepstack_visual_indexes": [0]} | VISION),
        "qwen2_moe": t.Qwen2MoeConfig(**SIZES, **EXPERTS, shared_expert_intermediate_size=64),
        "qwen3_moe": t.Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=16, norm_topk_prob=True),
        "mixtral": t.MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, **WINDOW),
        "gemma": t.GemmaConfig(**SIZES, head_dim=16),
        "gemma2": t.Gemma2Config(**GEMMA, **WINDOW, attn_logit_softcapping=5.0, final_logit_softcapping=4.0),
        "gemma3_text": t.Gemma3TextConfig(**GEMMA | many, **WINDOW, rope_parameters={
            "full_attention": LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}),
        "gemma2-usual": t.Gemma2Config(**GEMMA | USUAL, **WINDOW, attn_logit_softcapping=5.0),
        "gemma3_text-usual": t.Gemma3TextConfig(**GEMMA | many | USUAL, **WINDOW, rope_parameters={
            "full_attention": LINEAR, "sliding_attention": {"rope_type": "default", "rope_theta": 100.0}}),
        "phi3": t.Phi3Config(**SIZES, pad_token_id=0, eos_token_id=2, **WINDOW),
        "phi3-long": t.Phi3Config(
            **SIZES | {"max_position_embeddings": 256}, pad_token_id=0, eos_token_id=2,
            original_max_position_embeddings=64, rope_parameters=longrope),
        "smollm3": t.SmolLM3Config(**SIZES | {"num_hidden_layers": 5}, pad_token_id=0, bos_token_id=1, eos_token_id=2),
        "olmo2": t.Olmo2Config(**SIZES, eos_token_id=2),
        "olmo3": t.Olmo3Config(**SIZES | many, **WINDOW, eos_token_id=2, rope_parameters={
            "full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}),
        "olmoe": t.OlmoeConfig(**SIZES, num_experts=6, num_experts_per_tok=3, eos_token_id=2),
        "gpt_oss": t.GptOssConfig(
            **SIZES, **WINDOW, head_dim=16, num_local_experts=6, num_experts_per_tok=3, eos_token_id=2,
            rope_parameters=YARN | {"truncate": False}),
        "ministral3": t.Ministral3Config(**SIZES, head_dim=16, eos_token_id=2, rope_parameters=YARN | {
            "llama_4_scaling_beta": 0.3, "mscale": 1.0, "mscale_all_dim": 1.0}),
        "exaone4": t.Exaone4Config(**SIZES | many, **WINDOW),
        "exaone4-small": t.Exaone4Config(
            **SIZES, sliding_window=None, layer_types=["full_attention"] * 2, tie_word_embeddings=True,
            rope_parameters=LLAMA3),
        "glm": t.GlmConfig(**SIZES, head_dim=16, **ENDS),
        "glm4": t.Glm4Config(**SIZES, head_dim=16, **ENDS),
        "seed_oss": t.SeedOssConfig(**SIZES, head_dim=16),
        "ernie4_5": t.Ernie4_5Config(**SIZES, head_dim=16),
        "starcoder2": t.Starcoder2Config(**SIZES, **WINDOW, **ENDS),
        "starcoder2-usual": t.Starcoder2Config(**SIZES, **ENDS),
        "cohere": t.CohereConfig(**SIZES, logit_scale=0.4, **ENDS),
        "cohere2": t.Cohere2Config(**SIZES | many, **WINDOW, logit_scale=0.4, **ENDS),
        "gpt_neox": t.GPTNeoXConfig(**NEOX),
        "gpt_neox-serial": t.GPTNeoXConfig(**NEOX, use_parallel_residual=False, attention_bias=False),
        "stablelm": t.StableLmConfig(**SIZES | {"hidden_size": 128}, use_qkv_bias=True),
        "granite": t.GraniteConfig(
            **SIZES, **GRANITE),
        "granitemoehybrid-attention": t.GraniteMoeHybridConfig(
            **SIZES, shared_intermediate_size=96, num_local_experts=0, num_experts_per_tok=0,
            position_embedding_type="rope", layer_types=["full_attention"] * 2, **GRANITE),
        "gpt2": t.GPT2Config(
            vocab_size=VOCAB, n_embd=64, n_head=4, n_layer=2, n_positions=64, bos_token_id=1, eos_token_id=2),
        "qwen3_vl_moe_text": t.Qwen3VLMoeConfig(
            text_config=SIZES | EXPERTS | {"head_dim": 16, "rope_parameters": MROPE, "moe_intermediate_size": 96},
            vision_config={"depth": 1, "out_hidden_size": 64, "deepstack_visual_indexes": [0]} | VISION),
        "glm4_moe": t.Glm4MoeConfig(**SIZES | DENSE_FIRST, **ROUTED, **ENDS, attention_bias=True),
        "glm4_moe-large": t.Glm4MoeConfig(
            **SIZES | DENSE_FIRST | ROUTED | GROUPED | {"num_hidden_layers": 3}, **ENDS, first_k_dense_replace=2,
            n_shared_experts=2, use_qk_norm=True, num_mtp_layers=0),
        "dots1": t.Dots1Config(
            **SIZES | DENSE_FIRST | ROUTED, **ENDS, first_k_dense_replace=1, n_shared_experts=2, sliding_window=None),
        "dots1-grouped": t.Dots1Config(
            **SIZES | DENSE_FIRST | ROUTED | GROUPED | {"norm_topk_prob": False, "routed_scaling_factor": 0.75}, **ENDS,
            **WINDOW, n_shared_experts=1, max_window_layers=1),
        "deepseek_v2": t.DeepseekV2Config(
            **HEADS | LATENT | GROUPED, **ENDS, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=1,
            topk_method="group_limited_greedy", q_lora_rank=None, first_k_dense_replace=1,
            routed_scaling_factor=0.75, rms_norm_eps=1e-3,
            rope_parameters=YARN | {"mscale": 0.7, "mscale_all_dim": 0.7}),
        "deepseek_v2-greedy": t.DeepseekV2Config(
            **HEADS | LATENT, **ENDS, n_routed_experts=8, num_experts_per_tok=3, q_lora_rank=32,
            first_k_dense_replace=1),
        "deepseek_v3": t.DeepseekV3Config(
            **HEADS | LATENT | ROUTED | GROUPED, **ENDS, q_lora_rank=32, first_k_dense_replace=1,
            rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}),
        "glm4_moe_lite": t.Glm4MoeLiteConfig(
            **HEADS | LATENT | ROUTED | {"v_head_dim": 64}, **ENDS, q_lora_rank=64),
        "minicpm3": t.MiniCPM3Config(
            **HEADS | {"kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 48, "qk_rope_head_dim": 16}, **ENDS),
        "ernie4_5_moe": t.Ernie4_5_MoeConfig(
            **SIZES | DENSE_FIRST, **ENDS, moe_num_experts=6, moe_k=3, moe_num_shared_experts=2),
        "lfm2": t.Lfm2Config(
            **SIZES | {"num_hidden_layers": 5, "intermediate_size": 96}, block_auto_adjust_ff_dim=False,
            layer_types=["conv", "full_attention", "conv", "conv", "full_attention"], **ENDS),
        "lfm2-adjusted": t.Lfm2Config(**SIZES, block_multiple_of=32, full_attn_idxs=[1], tie_word_embeddings=False,
                                      **ENDS),
        "lfm2_moe": t.Lfm2MoeConfig(
            **SIZES | {"num_hidden_layers": 4, "moe_intermediate_size": 32, "num_experts": 6, "num_experts_per_tok": 3},
            num_dense_layers=1, layer_types=["conv", "full_attention", "conv", "conv"],
            **ENDS),
        "qwen3_next": t.Qwen3NextConfig(
            **SIZES, **DELTA, **EXPERTS, shared_expert_intermediate_size=64,
            layer_types=["linear_attention", "full_attention"]),
        "qwen3_5_moe_text": t.Qwen3_5MoeTextConfig(
            **{k: v for k, v in SIZES.items() if k != "intermediate_size"}, **DELTA, **EXPERTS,
            shared_expert_intermediate_size=64, layer_types=["linear_attention", "full_attention"]),
        "qwen3_5_text": t.Qwen3_5TextConfig(
            **SIZES | {"num_hidden_layers": 3}, **DELTA,
            layer_types=["linear_attention", "full_attention", "linear_attention"]),
        "qwen3_5_text-even": t.Qwen3_5Config(
            text_config=SIZES | DELTA | {"linear_num_value_heads": 2, "rope_parameters": MROPE | {
                "partial_rotary_factor": 0.5}, "layer_types": ["linear_attention", "full_attention"]},
            vision_config={"depth": 1, "out_hidden_size": 64} | VISION),
        "gemma4_text": t.Gemma4TextConfig(
            **GEMMA4 | {"num_hidden_layers": 8, "layer_types": GEMMA4["layer_types"] * 2},
            num_kv_shared_layers=4, use_double_wide_mlp=True,
            hidden_size_per_layer_input=32, vocab_size_per_layer_input=VOCAB, final_logit_softcapping=4.0),
        "gemma4_text-large": t.Gemma4TextConfig(
            **GEMMA4, attention_k_eq_v=True, num_global_key_value_heads=1, hidden_size_per_layer_input=0),
        "gemma4_text-mixture": t.Gemma4TextConfig(
            **GEMMA4, attention_k_eq_v=True, num_global_key_value_heads=1, hidden_size_per_layer_input=0,
            enable_moe_block=True, num_experts=6, top_k_experts=3, moe_intermediate_size=32),
        "granitemoe": t.GraniteMoeConfig(**SIZES | {"intermediate_size": 32}, **GRANITE, num_local_experts=6,
                                         num_experts_per_tok=3),
        "granitemoehybrid": t.GraniteMoeHybridConfig(
            **SIZES, **GRANITE, **MAMBA, shared_intermediate_size=96, num_local_experts=0, num_experts_per_tok=0,
            layer_types=["linear_attention", "full_attention"]),
        "granitemoehybrid-mixture": t.GraniteMoeHybridConfig(
            **SIZES | {"intermediate_size": 32, "num_hidden_layers": 3}, **GRANITE, **MAMBA | {"mamba_n_groups": 2},
            shared_intermediate_size=96, num_local_experts=6, num_experts_per_tok=3, position_embedding_type="rope",
            layer_types=["linear_attention", "full_attention", "linear_attention"]),
        "minimax_m2": t.MiniMaxM2Config(
            **SIZES | {"intermediate_size": 32}, head_dim=16, num_local_experts=6, num_experts_per_tok=3, **ENDS,
            rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
        "arcee": t.ArceeConfig(**SIZES, **ENDS, rope_parameters=YARN, mlp_bias=True),
        "nemotron": t.NemotronConfig(**SIZES, rope_parameters=LINEAR | {"partial_rotary_factor": 0.5}),
        "jais2": t.Jais2Config(**SIZES, **ENDS),
        "hunyuan_v1_dense": t.HunYuanDenseV1Config(**SIZES, head_dim=16, rope_parameters={
            "rope_type": "dynamic", "rope_theta": 100.0, "alpha": 7.0, "factor": 1.0}),
        "nemotron_h": t.NemotronHConfig(
            **NEMOTRON, layers_block_type=[*["linear_attention", "full_attention", "mlp"] * 2, "linear_attention"]),
        "nemotron_h-mixture": t.NemotronHConfig(
            **NEMOTRON | ROUTED | {"moe_intermediate_size": 32, "moe_shared_expert_intermediate_size": 64},
            layers_block_type=["linear_attention", "moe", "linear_attention", "full_attention", "moe"]),
    }  # fmt: skip


def random_model(family, config, seed):
    """transformers' model of `config`, random and so large in all its parts that each of them matters."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    torch.manual_seed(seed)
    maker = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    model = maker.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        is_scale = parameter.ndim == 1 and name.endswith("weight")
        std = next((own for part, own in STDS.items() if name.endswith(part)), 0.2)
        is_scale = is_scale and (family not in ZERO_CENTRED or "linear_attn" in name)
        torch.nn.init.normal_(parameter, mean=1.0 if is_scale else 0.0, std=std)
    for name, buffer in model.named_buffers():
        if name.endswith("layer_scalar"):
            torch.nn.init.normal_(buffer, mean=1.0, std=0.2)
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, std=0.2)
    return model


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory):
    """Family to (folder, transformers model), random and large enough that every part of it matters."""
    models = {}
    for family, config in configs().items():
        model = random_model(family, config, len(models))
        folder = tmp_path_factory.mktemp(family)
        model.save_pretrained(folder)
        models[family] = (folder, model)
    return models


@pytest.fixture(scope="session")
def default_source():
    """The built-in model, downloaded into the user's cache on first use."""
    try:
        return resolve_model("smollm2-135m")
    except DownloadFailed as error:
        pytest.skip(f"the default model's weights cannot be fetched: {error}")


@pytest.fixture(scope="module")
def own_weight_cache(tmp_path_factory):
    """Converted weights go to this folder of the test; compiled kernels stay where they are kept."""
    from paceline.models.numba_executor import weights

    folder = tmp_path_factory.mktemp("converted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "cache_dir", lambda: folder)
        yield folder
