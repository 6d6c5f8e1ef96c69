"""Fixtures of this folder: tiny random models of every family, saved the way transformers saves them."""

import pytest

from paceline.errors import DownloadFailed
from paceline.models.resolve import resolve_model

from .tiny import SIZES, VOCAB


def _configs():
    from transformers import (
        GPT2Config,
        LlamaConfig,
        MistralConfig,
        MixtralConfig,
        Qwen2Config,
        Qwen2MoeConfig,
        Qwen3Config,
        Qwen3MoeConfig,
    )

    llama3 = {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }  # fmt: skip
    experts = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}
    return {
        "llama": LlamaConfig(**SIZES, tie_word_embeddings=True),
        "llama-biased": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
        "llama3": LlamaConfig(**SIZES, rope_parameters=llama3),
        "llama-linear": LlamaConfig(**SIZES, rope_parameters=linear),
        "mistral": MistralConfig(**SIZES, head_dim=12, sliding_window=None),
        "qwen2": Qwen2Config(**SIZES),
        "qwen3": Qwen3Config(**SIZES, head_dim=16),
        "qwen2_moe": Qwen2MoeConfig(**SIZES, **experts, shared_expert_intermediate_size=40),
        "qwen3_moe": Qwen3MoeConfig(**SIZES, **experts, head_dim=16, norm_topk_prob=True),
        "mixtral": MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=2, sliding_window=None),
        "gpt2": GPT2Config(vocab_size=VOCAB, n_embd=32, n_head=4, n_layer=2, n_positions=64),
    }


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory):
    """Family to (folder, transformers model), random and large enough that every part of it matters."""
    import torch
    from transformers import AutoModelForCausalLM

    models = {}
    for family, config in _configs().items():
        torch.manual_seed(len(models))
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
        for name, parameter in model.named_parameters():
            is_scale = parameter.ndim == 1 and name.endswith("weight")
            torch.nn.init.normal_(parameter, mean=1.0 if is_scale else 0.0, std=0.3)
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
