"""Metadata of GGUF files as they are published: read, with as many weights as their names say.

Files that the tests make say what `converter.py` writes; these say what is in use. The numbers are those that llama.cpp
prints when it loads the files.
"""

import pytest

from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.size import num_parameters
from paceline.models.text.gguf_words import word_cut

MIXED = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
DELTAS = {
    "context_length": 262144, "rope.dimension_sections": [11, 11, 10, 0], "rope.freq_base": 1e7,
    "attention.layer_norm_rms_epsilon": 1e-6, "attention.key_length": 256, "attention.value_length": 256,
    "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 16, "full_attention_interval": 4,
    "rope.dimension_count": 64,
}  # fmt: skip
GEMMA4 = {
    "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.key_length": 512, "attention.value_length": 512, "attention.key_length_swa": 256,
    "attention.value_length_swa": 256, "final_logit_softcapping": 30.0, "rope.dimension_count": 512,
    "rope.dimension_count_swa": 256,
}  # fmt: skip
FILES = {
    "Qwen3.5-0.8B": ("qwen35", "qwen35", 248320, 0.75, DELTAS | {
        "block_count": 24, "embedding_length": 1024, "feed_forward_length": 3584, "attention.head_count": 8,
        "attention.head_count_kv": 2, "ssm.time_step_rank": 16, "ssm.inner_size": 2048,
    }),
    "Qwen3.6-27B with a layer for multi-token prediction": ("qwen35", "qwen35", 248320, 26.9, DELTAS | {
        "block_count": 65, "embedding_length": 5120, "feed_forward_length": 17408, "attention.head_count": 24,
        "attention.head_count_kv": 4, "ssm.time_step_rank": 48, "ssm.inner_size": 6144, "nextn_predict_layers": 1,
    }),
    "Qwen3.5-35B-A3B": ("qwen35moe", "qwen35", 248320, 34.66, DELTAS | {
        "block_count": 40, "embedding_length": 2048, "attention.head_count": 16, "attention.head_count_kv": 2,
        "expert_count": 256, "expert_used_count": 8, "expert_feed_forward_length": 512,
        "expert_shared_feed_forward_length": 512, "ssm.time_step_rank": 32, "ssm.inner_size": 4096,
    }),
    "LFM2-1.2B": ("lfm2", "lfm2", 65536, 1.17, {
        "block_count": 16, "context_length": 128000, "embedding_length": 2048, "feed_forward_length": 8192,
        "attention.head_count": 32, "attention.head_count_kv": [0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0],
        "rope.freq_base": 1e6, "attention.layer_norm_rms_epsilon": 1e-5, "vocab_size": 65536, "shortconv.l_cache": 3,
    }),
    "gpt-oss-20b": ("gpt-oss", "gpt-4o", 201088, 20.91, {
        "block_count": 24, "context_length": 131072, "embedding_length": 2880, "feed_forward_length": 2880,
        "attention.head_count": 64, "attention.head_count_kv": 8, "rope.freq_base": 150000.0,
        "attention.layer_norm_rms_epsilon": 1e-5, "expert_count": 32, "expert_used_count": 4,
        "attention.key_length": 64, "attention.value_length": 64, "attention.sliding_window": 128,
        "expert_feed_forward_length": 2880, "rope.scaling.type": "yarn", "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 4096,
    }),
    "GLM-4.5-Air": ("glm4moe", "glm4", 151552, 106.85, {
        "block_count": 47, "context_length": 131072, "embedding_length": 4096, "feed_forward_length": 10944,
        "attention.head_count": 96, "attention.head_count_kv": 8, "rope.freq_base": 1e6,
        "attention.layer_norm_rms_epsilon": 1e-5, "expert_used_count": 8, "attention.key_length": 128,
        "attention.value_length": 128, "rope.dimension_count": 64, "expert_count": 128,
        "expert_feed_forward_length": 1408, "expert_shared_count": 1, "leading_dense_block_count": 1,
        "expert_gating_func": 2, "expert_weights_scale": 1.0, "expert_weights_norm": True, "nextn_predict_layers": 1,
    }),
    "DeepSeek-V3": ("deepseek2", "deepseek-v3", 129280, 671.03, {
        "block_count": 61, "context_length": 163840, "embedding_length": 7168, "feed_forward_length": 18432,
        "attention.head_count": 128, "attention.head_count_kv": 1, "rope.freq_base": 10000.0,
        "attention.layer_norm_rms_epsilon": 1e-6, "expert_used_count": 8, "expert_group_count": 8,
        "expert_group_used_count": 4, "leading_dense_block_count": 3, "vocab_size": 129280,
        "attention.q_lora_rank": 1536, "attention.kv_lora_rank": 512, "attention.key_length": 576,
        "attention.value_length": 512, "attention.key_length_mla": 192, "attention.value_length_mla": 128,
        "expert_feed_forward_length": 2048, "expert_count": 256, "expert_shared_count": 1,
        "expert_weights_scale": 2.5, "expert_weights_norm": True, "expert_gating_func": 2,
        "rope.dimension_count": 64, "rope.scaling.type": "yarn", "rope.scaling.factor": 40.0,
        "rope.scaling.original_context_length": 4096, "rope.scaling.yarn_log_multiplier": 0.1,
    }),
    "Gemma 4 E2B": ("gemma4", None, 262144, 4.63, GEMMA4 | {
        "block_count": 35, "context_length": 131072, "embedding_length": 1536,
        "feed_forward_length": [6144] * 15 + [12288] * 20, "attention.head_count": 8, "attention.head_count_kv": 1,
        "attention.sliding_window": 512, "attention.shared_kv_layers": 20, "embedding_length_per_layer_input": 256,
        "attention.sliding_window_pattern": [True, True, True, True, False] * 7,
    }),
    "Gemma 4 26B-A4B": ("gemma4", None, 262144, 25.23, GEMMA4 | {
        "block_count": 30, "context_length": 262144, "embedding_length": 2816, "feed_forward_length": 2112,
        "attention.head_count": 16, "attention.head_count_kv": [8, 8, 8, 8, 8, 2] * 5, "expert_count": 128,
        "expert_used_count": 8, "expert_feed_forward_length": 704, "attention.sliding_window": 1024,
        "attention.shared_kv_layers": 0, "embedding_length_per_layer_input": 0,
        "attention.sliding_window_pattern": [True, True, True, True, True, False] * 5,
    }),
    "Nemotron 3 Nano 30B-A3B": ("nemotron_h_moe", "pixtral", 131072, 31.58, {
        "block_count": 52, "context_length": 1048576, "embedding_length": 2688,
        "feed_forward_length": [1856 * (one == "E") for one in MIXED], "attention.head_count": 32,
        "attention.head_count_kv": [2 * (one == "*") for one in MIXED], "rope.freq_base": 1e4,
        "attention.layer_norm_rms_epsilon": 1e-5, "attention.layer_norm_epsilon": 1e-5, "expert_used_count": 6,
        "expert_group_count": 1, "expert_group_used_count": 1, "vocab_size": 131072, "rope.dimension_count": 84,
        "ssm.conv_kernel": 4, "ssm.state_size": 128, "ssm.group_count": 8, "ssm.inner_size": 4096,
        "ssm.time_step_rank": 64, "rope.scaling.finetuned": False, "attention.key_length": 128,
        "attention.value_length": 128, "expert_feed_forward_length": 1856, "expert_shared_feed_forward_length": 3712,
        "expert_count": 128, "expert_shared_count": 1, "expert_weights_norm": True, "expert_weights_scale": 2.5,
    }),
}  # fmt: skip
TIED = ("Qwen3.5-0.8B", "LFM2-1.2B", "Gemma 4 E2B", "Gemma 4 26B-A4B")


def tensors_told_by(name, vocab_size, own):
    """The few tensors of a file that a configuration depends on."""
    shapes = {"token_embd.weight": (vocab_size, own["embedding_length"])}
    if name not in TIED:
        shapes["output.weight"] = shapes["token_embd.weight"]
    if first := own.get("leading_dense_block_count"):
        shapes |= {
            f"blk.{first}.exp_probs_b.bias": (own["expert_count"],),
            f"blk.{first}.ffn_up_shexp.weight": (own["expert_feed_forward_length"], own["embedding_length"]),
        }
    return shapes


@pytest.mark.parametrize("name", FILES)
def test_a_published_file_is_a_model_of_its_size(name):
    architecture, words, vocab_size, billions, own = FILES[name]
    metadata = {"general.architecture": architecture} | {f"{architecture}.{key}": own[key] for key in own}
    config = ModelConfig.from_gguf(metadata, tensors_told_by(name, vocab_size, own))
    assert round(num_parameters(config) / 1e9, 2) == billions
    assert words is None or word_cut(words)
