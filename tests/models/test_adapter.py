"""LoRA adapters as PEFT saves them: PEFT's logits from models of both formats, and clear refusals of the rest."""

import json
import pickle
import shutil

import gguf
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from paceline.errors import CorruptWeights, ModelNotFound, UnsupportedModel
from paceline.models.files.adapter import AdaptedCheckpoint
from paceline.models.files.adapter_files import is_adapter, read_adapter
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.files.safetensors_folder import SafetensorsCheckpoint
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor import TorchModel

from .conftest import configs, random_model
from .converter import convert, interleaved
from .tiny import random_tokens

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.usefixtures("own_weight_cache")
TOKENS = random_tokens(30)
ATTENTION = {"target_modules": ["q_proj", "v_proj"]}
CASES = {
    "all matrices": ("llama", {}),
    "biases beside": ("llama-biased", {"bias": "all"}),
    "biases of other layers": ("qwen2", ATTENTION | {"bias": "lora_only"}),
    "matrices that hold several": ("phi3", {}),
    "matrices the other way round": ("gpt2", {"fan_in_fan_out": True}),
    "heads in turn": ("gpt_neox", {}),
    "a mixture's dense parts": ("qwen2_moe", {}),
    "recurrent layers": ("lfm2", {}),
    "another scale": (
        "llama",
        ATTENTION | {"use_rslora": True, "alpha_pattern": {r"layers\.1.*q_proj": 3.0}, "rank_pattern": {"v_proj": 2}},
    ),
    "lengths of rows": ("llama", {"use_dora": True}),
    "lengths of rows of several": ("phi3", {"use_dora": True}),
    "whole tables": ("qwen2", ATTENTION | {"modules_to_save": ["embed_tokens", "lm_head"]}),
    "whole tables that were one": ("llama", ATTENTION | {"modules_to_save": ["embed_tokens", "lm_head"]}),
    "embeddings whose head stays": ("llama", {"target_modules": ["q_proj", "embed_tokens"]}),
    "a head whose embeddings stay": ("llama", {"target_modules": ["q_proj", "lm_head"]}),
    "lengths of columns of a table": ("llama", {"target_modules": ["embed_tokens"], "use_dora": True}),
    "a table that two go on sharing": ("llama", {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}),
    "a whole one": ("llama", ATTENTION | {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    "both of one": ("llama", {"target_modules": ["embed_tokens", "lm_head"], "ensure_weight_tying": True}),
    "whole norms": ("llama", ATTENTION | {"modules_to_save": ["input_layernorm"]}),
    "some layers": ("phi3", {"target_modules": ["qkv_proj"], "layers_to_transform": [1]}),
}


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """Makes (model folder, adapter folder, PEFT's logits) of a family and settings; models are made once."""
    models = {}

    def make(family, **settings):
        if family not in models:
            models[family] = tmp_path_factory.mktemp(family)
            random_model(family, configs()[family], 0).save_pretrained(models[family])
        from transformers import AutoModelForCausalLM

        tokens = settings.pop("tokens", None)
        settings = {"target_modules": "all-linear", "r": 4, "lora_alpha": 16} | settings
        model = AutoModelForCausalLM.from_pretrained(models[family], dtype=torch.float32, attn_implementation="eager")
        if tokens is not None:
            model.resize_token_embeddings(tokens, mean_resizing=False)
        model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings)).eval()
        torch.manual_seed(1)
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data += 0.1 * torch.randn_like(parameter)
        folder = tmp_path_factory.mktemp("adapter")
        model.save_pretrained(folder)
        with torch.no_grad():
            return models[family], folder, model(torch.tensor([TOKENS])).logits[0].numpy()

    return make


def logits(model):
    return np.array(model.forward(build_rows([Part((0, 1), 0, TOKENS)]), model.new_cache(4)).logits)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_peft(case, adapted, tmp_path):
    family, settings = CASES[case]
    folder, adapter, want = adapted(family, **settings)
    for base in (SafetensorsCheckpoint(folder), GGUFCheckpoint(convert(tmp_path / "model.gguf", folder))):
        model = TorchModel(AdaptedCheckpoint(base, adapter), "cpu", "float32")
        np.testing.assert_allclose(logits(model), want, atol=2e-5 * np.abs(want).max())
        assert np.abs(logits(TorchModel(base, "cpu", "float32")) - want).max() > 0.01  # the adapter matters


@pytest.mark.parametrize("tokens", [68, 80])
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("qwen2", {"modules_to_save": ["embed_tokens", "lm_head"]}),
        ("qwen2", {"target_modules": ["q_proj", "embed_tokens", "lm_head"]}),
        ("llama", {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
        ("llama", {"modules_to_save": ["embed_tokens", "lm_head"]}),
    ],
)
def test_another_vocabulary_comes_with_the_adapter(family, settings, tokens, adapted):
    settings = {"target_modules": ["q_proj"], "tokens": tokens} | settings
    folder, adapter, want = adapted(family, **settings)
    found = AdaptedCheckpoint(SafetensorsCheckpoint(folder), adapter)
    assert found.config.vocab_size == tokens
    np.testing.assert_allclose(logits(TorchModel(found, "cpu", "float32")), want, atol=2e-5 * np.abs(want).max())


def test_half_of_a_vocabulary_is_refused(adapted):
    folder, adapter, _ = adapted("qwen2", **ATTENTION, modules_to_save=["embed_tokens", "lm_head"])
    grow(adapter, "embed_tokens", 5)
    with pytest.raises(UnsupportedModel, match=r"embeddings have 72 tokens, the output head 67.*modules_to_save"):
        AdaptedCheckpoint(SafetensorsCheckpoint(folder), adapter)


def grow(adapter, table, rows):
    def longer(name, values):
        return np.concatenate([values, values[:rows]]) if f"{table}.weight" in name else values

    rewrite(adapter, lambda tensors: {name: longer(name, values) for name, values in tensors.items()})


def rewrite(adapter, change, **settings):
    """Save the adapter's tensors after `change`, and settings beside them."""
    path, config = adapter / "adapter_model.safetensors", adapter / "adapter_config.json"
    tensors = {name: np.ascontiguousarray(values) for name, values in change(load_file(path)).items()}
    save_file(tensors, path)
    config.write_text(json.dumps(json.loads(config.read_text()) | settings))


def test_experts_one_by_one_as_older_transformers_named_them(adapted):
    folder, adapter, _ = adapted("mixtral", target_modules=["q_proj"])
    down, up = np.ones((2, 64), np.float32), np.ones((96, 2), np.float32)
    expert = "base_model.model.model.layers.1.block_sparse_moe.experts.2.w1.lora_"
    rewrite(adapter, lambda _: {f"{expert}A.weight": down, f"{expert}B.weight": up}, r=2)
    base = SafetensorsCheckpoint(folder)
    found = AdaptedCheckpoint(base, adapter)
    for name in base.names():
        added = 16.0 if name == "model.layers.1.mlp.experts.2.gate_proj.weight" else 0.0
        np.testing.assert_allclose(found.tensor(name), base.tensor(name) + added, rtol=1e-6)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_an_adapter_in_a_gguf_file_is_the_same_adapter(family, adapted, tmp_path):
    folder, adapter, want = adapted(family)
    file = in_gguf(adapter, folder, tmp_path / "adapter.gguf")
    for base in (GGUFCheckpoint(convert(tmp_path / "model.gguf", folder)), SafetensorsCheckpoint(folder)):
        found = AdaptedCheckpoint(base, file)
        np.testing.assert_allclose(
            logits(TorchModel(found, "cpu", "float32")), want, atol=2e-5 * np.abs(want).max()
        )  # fmt: skip


def in_gguf(adapter, folder, path):
    """The adapter as llama.cpp's converter writes it: rows of Llama's queries and keys in pairs."""
    config = json.loads((folder / "config.json").read_text())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[config["model_type"].upper()], config["num_hidden_layers"])
    writer = gguf.GGUFWriter(path, config["model_type"])
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 16.0)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, values in load_file(adapter / "adapter_model.safetensors").items():
        module, part = name.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".lora_", 1)
        turned = config["model_type"] == "llama" and part == "B" and module.rsplit(".", 1)[1] in heads
        values = interleaved(values, heads[module.rsplit(".", 1)[1]]) if turned else values
        writer.add_tensor(f"{names.get_name(module)}.weight.lora_{part.lower()}", np.ascontiguousarray(values))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return path


def test_an_adapter_in_a_gguf_file_is_for_one_architecture(adapted, tmp_path):
    folder, adapter, _ = adapted("llama")
    file = in_gguf(adapter, folder, tmp_path / "adapter.gguf")
    other, _, _ = adapted("qwen2")
    for base in (GGUFCheckpoint(convert(tmp_path / "model.gguf", other)), SafetensorsCheckpoint(other)):
        with pytest.raises(UnsupportedModel, match="an adapter for 'llama', and this model is qwen2"):
            AdaptedCheckpoint(base, file)


def test_a_model_is_no_adapter_in_gguf(adapted, tmp_path):
    folder, _, _ = adapted("qwen2")
    model = convert(tmp_path / "model.gguf", folder)
    with pytest.raises(UnsupportedModel, match="no LoRA adapter"):
        AdaptedCheckpoint(GGUFCheckpoint(model), model)


def test_blocks_that_nothing_changes_stay_blocks(adapted, tmp_path):
    folder, adapter, _ = adapted("llama", **ATTENTION)
    base = GGUFCheckpoint(convert(tmp_path / "model.gguf", folder, storage="Q8_0"))
    found = AdaptedCheckpoint(base, adapter)
    assert found.blocks("model.layers.0.self_attn.q_proj.weight") is None
    kept = found.blocks("model.layers.0.mlp.up_proj.weight")
    assert kept is not None and np.array_equal(kept.rows, base.blocks("model.layers.0.mlp.up_proj.weight").rows)
    assert found.storage == "Q8_0" and found.storages == base.storages | {"F32"}
    exact = logits(TorchModel(found, "cpu", "float32"))
    np.testing.assert_allclose(logits(NumbaModel(found, "float32", num_threads=2)), exact, atol=1e-4)


def test_a_copy_in_another_process_has_the_adapter_and_caches_know_it(adapted):
    folder, adapter, _ = adapted("qwen2")
    base = SafetensorsCheckpoint(folder)
    found = AdaptedCheckpoint(base, adapter)
    copy = pickle.loads(pickle.dumps(found))
    name = "model.layers.1.mlp.down_proj.weight"
    assert np.array_equal(copy.tensor(name), found.tensor(name))
    before = found.fingerprint
    assert copy.fingerprint == before != base.fingerprint
    rewrite(adapter, lambda tensors: {name: 2 * values for name, values in tensors.items()})
    assert AdaptedCheckpoint(base, adapter).fingerprint != before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"peft_type": "IA3"}, "peft_type: 'IA3'.*merge_and_unload"),
        ({"layer_replication": [[0, 2]]}, "layer_replication"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights.*changes the model too"),
        ({"init_lora_weights": "OLoRA"}, "init_lora_weights.*changes the model too"),
        ({"init_lora_weights": "loftq"}, "init_lora_weights.*changes the model too"),
        ({"use_next_years_idea": {"a": 1}}, "use_next_years_idea.*not implemented.*merge_and_unload"),
        ({"lora_alpha": "much"}, "lora_alpha"),
        ({"alpha_pattern": {"(": 2}}, r"adapter_config\.json: alpha_pattern.*save the adapter again"),
        ({"alpha_pattern": {"([a-z]+)+!": 2}}, "repeats what is repeated"),
        ({"alpha_pattern": {"q_proj": "3"}}, "alpha_pattern: q_proj: '3'"),
    ],
)
def test_adapters_that_compute_something_else_are_refused(settings, words, adapted):
    folder, adapter, _ = adapted("qwen2", **ATTENTION)
    rewrite(adapter, dict, **settings)
    with pytest.raises(UnsupportedModel, match=words):
        AdaptedCheckpoint(SafetensorsCheckpoint(folder), adapter)


def without(part):
    return lambda tensors: {name: values for name, values in tensors.items() if part not in name}


@pytest.mark.parametrize(
    ("change", "settings", "error", "words"),
    [
        (without("lora_B"), {}, CorruptWeights, "has no lora_B"),
        (lambda _: {}, {}, CorruptWeights, "holds no tensors"),
        (lambda found: {n: x[:2] if "lora_A" in n else x for n, x in found.items()}, {}, CorruptWeights,
         "of ranks 2 and 4"),
        (lambda found: {n: x[:, :32] if "lora_A" in n else x for n, x in found.items()}, {}, UnsupportedModel,
         r"of shape \(64, 32\), which has \(64, 64\) here"),
        (lambda found: found | {n.removeprefix("base_model.model."): x for n, x in found.items()}, {}, CorruptWeights,
         "under two names"),
        (lambda found: found | {"base_model.model.x.lora_C.weight": np.ones((2, 2), np.float32)}, {}, UnsupportedModel,
         "no part of LoRA"),
        (lambda found: {n.replace("layers.1", "layers.7"): x for n, x in found.items()}, {}, UnsupportedModel,
         "layers.7.*which this model does not have"),
        (dict, {"use_dora": True}, CorruptWeights, "lora_magnitude_vector"),
        (dict, {"r": 8}, CorruptWeights, "has rank 4, the settings say 8"),
        (dict, {"rank_pattern": {"q_proj": 2}}, CorruptWeights, "has rank 4, the settings say 2"),
    ],
)  # fmt: skip
def test_damaged_adapters_and_those_of_other_models_are_refused(change, settings, error, words, adapted):
    folder, adapter, _ = adapted("qwen2", target_modules=["q_proj"])
    rewrite(adapter, change, **settings)
    with pytest.raises(error, match=words):
        AdaptedCheckpoint(SafetensorsCheckpoint(folder), adapter)


def test_numbers_that_are_not_finite_are_refused_when_they_are_read(adapted):
    folder, adapter, _ = adapted("qwen2", target_modules=["q_proj"])
    rewrite(adapter, lambda found: {name: values * np.float32(np.inf) for name, values in found.items()})
    found = AdaptedCheckpoint(SafetensorsCheckpoint(folder), adapter)
    assert np.isfinite(found.tensor("model.layers.0.self_attn.k_proj.weight")).all()
    with pytest.raises(CorruptWeights, match=r"lora_.*not finite"):
        found.tensor("model.layers.0.self_attn.q_proj.weight")


def test_recurrent_layers_whose_heads_lie_in_another_order_are_refused(adapted, tmp_path):
    folder, adapter, want = adapted("qwen3_5_text")
    found = AdaptedCheckpoint(SafetensorsCheckpoint(folder), adapter)
    np.testing.assert_allclose(logits(TorchModel(found, "cpu", "float32")), want, atol=1e-4 * np.abs(want).max())
    with pytest.raises(UnsupportedModel, match=r"another order.*one format"):
        AdaptedCheckpoint(GGUFCheckpoint(convert(tmp_path / "model.gguf", folder)), adapter)


def test_what_is_missing_is_named(adapted, tmp_path):
    _, adapter, _ = adapted("qwen2", **ATTENTION)
    assert is_adapter(adapter)
    (adapter / "config.json").write_text("{}")  # as some trainers leave it there
    assert is_adapter(adapter) and read_adapter(adapter / "adapter_model.safetensors").updates
    with pytest.raises(ModelNotFound, match=r"no adapter_config\.json"):
        read_adapter(tmp_path)
    pickled = shutil.copytree(adapter, tmp_path / "pickled")
    (pickled / "adapter_model.safetensors").rename(pickled / "adapter_model.bin")
    with pytest.raises(ModelNotFound, match="safe_serialization"):
        read_adapter(pickled)
