"""Mixtures of experts in blocks of a GGUF file and in 4-bit safetensors: weights of every expert, then logits."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.files.safetensors_folder import SafetensorsCheckpoint
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.rows import Part, build_rows

from .conftest import ENDS
from .converter import convert
from .test_int4_tensors import GROUP, SCHEMES
from .tiny import SIZES, random_tokens

pytestmark = pytest.mark.usefixtures("own_weight_cache")
TOKENS = random_tokens(50)
WIDE = SIZES | {"num_attention_heads": 2, "num_key_value_heads": 1}
"""Heads of 32, which products of blocks need."""
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32}


def mixtures():
    import transformers as t

    return {
        "qwen2_moe": t.Qwen2MoeConfig(**WIDE, **EXPERTS, shared_expert_intermediate_size=64),
        "qwen3_moe": t.Qwen3MoeConfig(**WIDE, **EXPERTS, head_dim=32, norm_topk_prob=True),
        "mixtral": t.MixtralConfig(**WIDE, num_local_experts=4, num_experts_per_tok=2),
        "gemma4_text": t.Gemma4TextConfig(
            **WIDE,
            sliding_window=9,
            head_dim=32,
            global_head_dim=64,
            enable_moe_block=True,
            num_experts=6,
            top_k_experts=3,
            moe_intermediate_size=32,
            hidden_size_per_layer_input=32,
            attention_k_eq_v=True,
            vocab_size_per_layer_input=WIDE["vocab_size"],
            layer_types=["sliding_attention", "full_attention"],
        ),
        "glm4_moe": t.Glm4MoeConfig(
            **WIDE, head_dim=32, n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=32, **ENDS
        ),
        "gpt_oss": t.GptOssConfig(**WIDE, head_dim=32, num_local_experts=6, num_experts_per_tok=3, sliding_window=9),
    }


FAMILIES = ("qwen2_moe", "qwen3_moe", "mixtral")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Family to a folder as transformers saves it."""
    import torch
    from transformers import AutoModelForCausalLM

    found = {}
    for family, config in mixtures().items():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for name, parameter in model.named_parameters():
            is_scale = parameter.ndim == 1 and name.endswith("weight")
            torch.nn.init.normal_(parameter, mean=1.0 if is_scale else 0.0, std=0.2)
        found[family] = tmp_path_factory.mktemp(family)
        model.save_pretrained(found[family])
    return found


def run(model, cache, *parts):
    return model.forward(build_rows(list(parts)), cache).logits.copy()


def check(checkpoint) -> None:
    """Logits nearer to float32 arithmetic on the same weights than w8a8's are; rows alone as in company."""
    models = [NumbaModel(checkpoint, dtype, num_threads=1) for dtype in ("float32", "auto", "w8a8")]
    exact, whole, coarse = (run(one, one.new_cache(4), Part(range(4), 0, TOKENS)) for one in models)
    # Of single rows, a router that hangs in the balance may choose another expert.
    ours, theirs = (np.median((x - exact).std(axis=1) / exact.std(axis=1)) for x in (whole, coarse))
    assert 0 < ours < min(theirs, 0.06)
    model = models[1]
    assert model.dtype_choice.name == "gguf"
    assert model.experts_touched.min() >= checkpoint.config.experts.num_experts - 1
    cache = model.new_cache(10)
    alone = [run(model, cache, Part([7, 3, 9, 1], at, [token]))[0] for at, token in enumerate(TOKENS)]
    assert np.array_equal(np.stack(alone), whole)


@pytest.mark.parametrize("storage", ["Q8_0", "Q4_0", "Q5_1"])
@pytest.mark.parametrize("family", [*FAMILIES, "gpt_oss", "gemma4_text", "glm4_moe"])
def test_blocks_of_a_gguf_file(family, storage, folders, tmp_path):
    check(GGUFCheckpoint(convert(tmp_path / "model.gguf", folders[family], storage=storage)))


def packed_folder(folder: Path, source: Path, scheme: str) -> dict[str, np.ndarray]:
    """Write the model in `source` with all linear layers but routers in 4 bits; returns what these then hold."""
    quantization, pack, symmetric = SCHEMES[scheme]
    tensors, expected = {}, {}
    rng = np.random.default_rng(0)
    for name, values in load_file(source / "model.safetensors").items():
        is_linear = "_proj." in name or ".w" in name.removesuffix(".weight")
        if values.ndim == 1 or not is_linear:
            tensors[name] = values
            continue
        groups = values.reshape(len(values), -1, GROUP)
        scales = (np.abs(groups).max(axis=2) / 7).astype(np.float16)
        zeros = np.full(scales.shape, 8) if symmetric else rng.integers(6, 10, scales.shape)
        codes = np.clip(np.rint(groups / scales[:, :, None].astype(np.float32)) + zeros[:, :, None], 0, 15).astype(int)
        for part, stored in pack(codes.reshape(values.shape), scales, zeros).items():
            tensors[f"{name.removesuffix('weight')}{part}"] = np.ascontiguousarray(stored)
        whole = (codes - zeros[:, :, None]).astype(np.float32) * scales[:, :, None]
        expected[name] = whole.reshape(values.shape)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}))
    return expected


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_4_bit_safetensors(family, scheme, folders, tmp_path):
    expected = packed_folder(tmp_path, folders[family], scheme)
    checkpoint = SafetensorsCheckpoint(tmp_path)
    ours = {source.name: name for name, source in checkpoint._sources.items()}
    assert len(expected) > 20
    for name, values in expected.items():
        np.testing.assert_allclose(checkpoint.tensor(ours[name]), values, rtol=1e-6)
        assert checkpoint.blocks(ours[name])
    check(checkpoint)
