"""Latent attention beyond what the tests of all families see: number formats, old files, settings that are refused."""

from dataclasses import replace

import gguf
import numpy as np
import pytest

from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.latent import LatentAttention
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.files.safetensors_folder import SafetensorsCheckpoint
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor.shard import check_tensor_parallel_size
from tests.fakes import RandomCheckpoint, latent_config

from . import converter
from .tiny import random_tokens

pytestmark = pytest.mark.usefixtures("own_weight_cache")
TOKENS = random_tokens(40)
DEEPSEEK = {
    "model_type": "deepseek_v3", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "n_routed_experts": 16,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "kv_lora_rank": 32,
    "q_lora_rank": 48, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
}  # fmt: skip


def logits(model, cache, *parts):
    return model.forward(build_rows(list(parts)), cache).logits.copy()


@pytest.fixture(
    scope="module",
    params=[("float32", "float32"), ("bfloat16", "float16"), ("w8a8", "int8")],
)
def model(request):
    dtype, cache = request.param
    return NumbaModel(RandomCheckpoint(latent_config()), dtype, num_threads=2, kv_cache_dtype=cache)


def test_a_row_is_bitwise_the_same_alone_and_in_any_batch(model):
    whole, cache = logits(model, model.new_cache(4), Part(range(4), 0, TOKENS)), model.new_cache(16)
    alone = [logits(model, cache, Part(range(4), at, [token]))[0] for at, token in enumerate(TOKENS)]
    assert np.array_equal(whole, np.stack(alone))
    company = Part([9, 12, 10, 14], 0, TOKENS[::-1], logits="none")
    assert np.array_equal(whole, logits(model, cache, company, Part([3, 0, 5, 1], 0, TOKENS)))


def test_number_formats_are_near_float32(model):
    exact = NumbaModel(RandomCheckpoint(latent_config()), "float32", num_threads=1)
    want, found = (logits(one, one.new_cache(4), Part(range(4), 0, TOKENS)) for one in (exact, model))
    assert np.median((found - want).std(axis=1) / want.std(axis=1)) < 0.15


def test_the_number_of_threads_changes_nothing():
    checkpoint, part = RandomCheckpoint(latent_config()), Part(range(4), 0, TOKENS)
    one, three = (NumbaModel(checkpoint, "float32", num_threads=n) for n in (1, 3))
    assert np.array_equal(logits(one, one.new_cache(4), part), logits(three, three.new_cache(4), part))


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "glm4_moe_lite"])
def test_blocks_of_a_gguf_file(family, tiny_models, tmp_path):
    """Matrices of keys, which lie transposed in the file, are rounded again; others are multiplied as they are."""
    path = converter.convert(tmp_path / "model.gguf", tiny_models[family][0], storage="Q8_0")
    models = [NumbaModel(GGUFCheckpoint(path), dtype, num_threads=1) for dtype in ("float32", "gguf")]
    exact, found = (logits(one, one.new_cache(4), Part(range(4), 0, TOKENS)) for one in models)
    assert np.median((found - exact).std(axis=1) / exact.std(axis=1)) < 0.06
    cache = models[1].new_cache(4)
    alone = [logits(models[1], cache, Part(range(4), at, [token]))[0] for at, token in enumerate(TOKENS)]
    assert np.array_equal(np.stack(alone), found)


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v2-greedy", "deepseek_v3"])
def test_files_written_before_keys_and_values_were_apart(family, tiny_models, tmp_path, monkeypatch):
    """They have ``attn_kv_b``, and the sizes of expanded heads."""
    folder = tiny_models[family][0]
    sizes = SafetensorsCheckpoint(folder).config.latent
    newer = converter._latent_metadata

    def older(config, values):
        found = {key: value for key, value in newer(config, values).items() if not key.endswith("_length_mla")}
        heads = {"attention.key_length": sizes.head_dim, "attention.value_length": sizes.v_head_dim}
        return found | heads | {"attention.head_count_kv": config["num_attention_heads"]}

    monkeypatch.setattr(converter, "_latent_metadata", older)
    monkeypatch.setattr(converter, "_keys_and_values_apart", lambda config, name, values: [(name, values)])
    ours, original = GGUFCheckpoint(converter.convert(tmp_path / "old.gguf", folder)), SafetensorsCheckpoint(folder)
    assert "blk.0.attn_kv_b.weight" in {tensor.name for tensor in gguf.GGUFReader(tmp_path / "old.gguf").tensors}
    assert (ours.config.latent, ours.config.head_dim) == (sizes, original.config.head_dim)
    for tensor in ours.names():
        np.testing.assert_array_equal(ours.tensor(tensor), original.tensor(tensor), err_msg=tensor)


def test_yarn_makes_scores_grow():
    yarn = {"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 16, "mscale": 1.0}
    plain = ModelConfig.from_hf(DEEPSEEK)
    assert plain.attention_scale == 48**-0.5 and plain.rotary_dim == 16
    grown = ModelConfig.from_hf(DEEPSEEK | {"rope_scaling": yarn | {"mscale_all_dim": 1.0}})
    assert grown.attention_scale == pytest.approx(48**-0.5 * (0.1 * np.log(40) + 1) ** 2) and grown.rope_factor == 1
    angles = ModelConfig.from_hf(DEEPSEEK | {"rope_scaling": yarn})
    assert angles.attention_scale == 48**-0.5 and angles.rope_factor == pytest.approx(0.1 * np.log(40) + 1)


def test_factors_of_minicpm3():
    mini = {name: value for name, value in DEEPSEEK.items() if name not in ("n_routed_experts", "v_head_dim")}
    mini |= {"model_type": "minicpm3"}
    config = ModelConfig.from_hf(mini)
    assert (config.embedding_scale, config.logit_scale, config.value_dim) == (12.0, 4.0, 16)
    assert config.residual_scale == pytest.approx(1.4 / 3**0.5)
    none = ModelConfig.from_hf(mini | {"scale_depth": None, "dim_model_base": None, "scale_emb": 1})
    assert (none.embedding_scale, none.logit_scale, none.residual_scale) == (1.0, 1.0, 1.0)


def test_of_gguf_files_a_bias_or_a_key_tells_v3_from_v2():
    keys = {
        "general.architecture": "deepseek2", "block_count": 3, "context_length": 64, "embedding_length": 64,
        "feed_forward_length": 96, "attention.head_count": 4, "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.kv_lora_rank": 32, "attention.key_length": 48, "attention.value_length": 32,
        "rope.dimension_count": 16, "expert_count": 16, "expert_used_count": 2, "expert_feed_forward_length": 32,
    }  # fmt: skip
    keys = {name if name.startswith("general") else f"deepseek2.{name}": value for name, value in keys.items()}
    table, bias = {"token_embd.weight": (100, 64)}, {"blk.0.exp_probs_b.bias": (16,)}
    for more, shapes, scores in (({}, table, "softmax"), ({}, table | bias, "sigmoid"), (
        {"deepseek2.expert_gating_func": 2}, table, "sigmoid"), ({"deepseek2.expert_gating_func": 1}, table, "softmax"),
    ):  # fmt: skip
        assert ModelConfig.from_gguf(keys | more, shapes).experts.scoring_func == scores
    for name, value, named in (("attention.key_length", 16, "key_length"), ("attention.value_length", 64, "v_head_dim"),
                               ("expert_gating_func", 4, "expert_gating_func")):  # fmt: skip
        with pytest.raises(UnsupportedModel, match=named):
            ModelConfig.from_gguf(keys | {f"deepseek2.{name}": value}, table)


@pytest.mark.parametrize(
    "change",
    [
        {"attention_bias": True}, {"rope_interleave": False}, {"num_key_value_heads": 2}, {"v_head_dim": 64},
        {"qk_rope_head_dim": 15}, {"kv_lora_rank": None}, {"partial_rotary_factor": 0.5}, {"scoring_func": "softmax"},
        {"mlp_layer_types": ["sparse", "dense", "sparse"]}, {"mlp_layer_types": ["dense", "sparse"]},
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_by_name(change):
    with pytest.raises(UnsupportedModel, match=next(iter(change))):
        ModelConfig.from_hf(DEEPSEEK | change)


@pytest.mark.parametrize("change", [{"norm_topk_prob": True}, {"mlp_bias": True}, {"topk_method": "noaux_tc"}])
def test_what_deepseek_v2_cannot_be_is_refused_by_name(change):
    with pytest.raises(UnsupportedModel, match=next(iter(change))):
        ModelConfig.from_hf(DEEPSEEK | {"model_type": "deepseek_v2"} | change)


def test_sizes_that_executors_do_not_cover_are_refused():
    config = latent_config()
    with pytest.raises(InvalidParameter, match="latent attention cannot be shared"):
        check_tensor_parallel_size(config, 2)
    odd = LatentAttention(40, 32, qk_rope_head_dim=16, qk_nope_head_dim=48, v_head_dim=32)
    with pytest.raises(UnsupportedModel, match=r"kv_lora_rank: 40.*torch"):
        NumbaModel(RandomCheckpoint(replace(config, latent=odd)))
    narrow = LatentAttention(64, 0, qk_rope_head_dim=16, qk_nope_head_dim=48, v_head_dim=48)
    with pytest.raises(InvalidParameter, match="48 per head"):
        NumbaModel(RandomCheckpoint(replace(config, latent=narrow)), "w8a8")
