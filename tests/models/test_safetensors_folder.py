"""Reading model folders: formats, shards, and every way a folder can be wrong."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from paceline.errors import CorruptWeights, ModelNotFound, UnsupportedModel
from paceline.models.files.safetensors_folder import SafetensorsCheckpoint


@pytest.fixture
def folder(tiny_models, tmp_path):
    """A copy of the tiny Llama that a test may break."""
    return shutil.copytree(tiny_models["llama"][0], tmp_path / "model")


def states(model):
    return {name: values.detach().clone() for name, values in model.state_dict().items() if name != "lm_head.weight"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_number_formats(tiny_models, folder, dtype):
    stored = {name: values.to(dtype) for name, values in states(tiny_models["llama"][1]).items()}
    save_file(stored, folder / "model.safetensors")
    ours = SafetensorsCheckpoint(folder)
    assert set(ours.names()) == set(stored)
    for name, values in stored.items():
        assert ours.tensor(name).dtype == np.float32
        np.testing.assert_array_equal(ours.tensor(name), values.float().numpy())


def test_masks_beside_the_weights_do_not_decide_how_these_are_stored(tiny_models, tmp_path):
    """Pythia's files have a causal mask in every layer, which in the smallest models has more values than all else."""
    shutil.copytree(tiny_models["gpt_neox"][0], tmp_path, dirs_exist_ok=True)
    attention = "gpt_neox.layers.0.attention"
    mask = {
        f"{attention}.bias": torch.ones(1, 1, 512, 512, dtype=torch.bool),
        f"{attention}.masked_bias": torch.ones(1),
    }
    weights = load_file(tmp_path / "model.safetensors")
    save_file({name: values.half() for name, values in weights.items()} | mask, tmp_path / "model.safetensors")
    ours = SafetensorsCheckpoint(tmp_path)
    assert (ours.storage, ours.storages) == ("F16", {"F16"})


def test_shards(tiny_models, tmp_path):
    model = tiny_models["qwen2"][1]
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ours = SafetensorsCheckpoint(tmp_path)
    for name, values in model.state_dict().items():
        np.testing.assert_array_equal(ours.tensor(name), values.numpy())


@pytest.mark.parametrize("key", ["paceline", "speculators_model_type"])
def test_a_draft_head_is_no_model(folder, key):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: {}}))
    with pytest.raises(UnsupportedModel, match=r"is a draft head and not a model; draft with it, as --draft-model"):
        SafetensorsCheckpoint(folder)


def test_a_checkpoint_of_the_bare_model_lacks_the_prefix(tiny_models, folder):
    bare = {name.removeprefix("model."): values for name, values in states(tiny_models["llama"][1]).items()}
    save_file(bare, folder / "model.safetensors")
    ours = SafetensorsCheckpoint(folder).tensor("model.norm.weight")
    np.testing.assert_array_equal(ours, bare["norm.weight"].numpy())


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_a_stored_head_counts_unless_it_is_the_embeddings(tiny_models, folder, shift):
    stored = states(tiny_models["llama"][1])
    stored["lm_head.weight"] = stored["model.embed_tokens.weight"] + shift
    save_file(stored, folder / "model.safetensors")
    ours = SafetensorsCheckpoint(folder)
    assert ours.config.tie_word_embeddings == ("lm_head.weight" not in ours.names()) == (shift == 0)
    theirs = AutoModelForCausalLM.from_pretrained(folder).lm_head.weight.detach().numpy()
    head = "model.embed_tokens.weight" if ours.config.tie_word_embeddings else "lm_head.weight"
    np.testing.assert_array_equal(ours.tensor(head), theirs)


def test_generation_config_knows_all_end_ids(folder):
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert SafetensorsCheckpoint(folder).config.eos_token_ids == (5, 6)


def test_fingerprint_follows_the_files(folder):
    before = SafetensorsCheckpoint(folder).fingerprint
    assert before == SafetensorsCheckpoint(folder).fingerprint
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": 11}))
    assert before != SafetensorsCheckpoint(folder).fingerprint


def test_missing_config(folder):
    (folder / "config.json").unlink()
    with pytest.raises(ModelNotFound, match=r"config\.json: missing"):
        SafetensorsCheckpoint(folder)


@pytest.mark.parametrize("text", ["{", "[1, 2]", "\xff"])
def test_damaged_config(folder, text):
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CorruptWeights, match=r"config\.json: is n"):
        SafetensorsCheckpoint(folder)


def test_missing_weights(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(CorruptWeights, match=r"neither model\.safetensors"):
        SafetensorsCheckpoint(folder)


def test_missing_shard(folder):
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index = {"weight_map": {"model.norm.weight": "a.safetensors", "lm_head.weight": "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptWeights, match=r"b\.safetensors of the index is missing"):
        SafetensorsCheckpoint(folder)


def test_a_tensor_in_two_shards_is_the_one_of_the_index(tiny_models, folder):
    weights = states(tiny_models["llama"][1])
    (folder / "model.safetensors").unlink()
    save_file(weights, folder / "a.safetensors")
    save_file({"model.norm.weight": weights["model.norm.weight"] * 2}, folder / "b.safetensors")
    for means, times in (("a", 1), ("b", 2)):
        own = {"model.norm.weight": f"{means}.safetensors", "unused.a": "a.safetensors", "unused.b": "b.safetensors"}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": own}))
        found = SafetensorsCheckpoint(folder).tensor("model.norm.weight")
        np.testing.assert_array_equal(found, times * weights["model.norm.weight"].numpy())
    own.pop("model.norm.weight")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": own}))
    with pytest.raises(CorruptWeights, match=r"b\.safetensors: .model\.norm\.weight. stands in another file too"):
        SafetensorsCheckpoint(folder)


def test_an_index_in_any_order_and_one_that_lacks_a_shard(tiny_models, tmp_path):
    tiny_models["qwen2"][1].save_pretrained(tmp_path, max_shard_size="20KB")
    index = tmp_path / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    want = SafetensorsCheckpoint(tmp_path)
    index.write_text(json.dumps({"weight_map": dict(reversed(weight_map.items()))}))
    found = SafetensorsCheckpoint(tmp_path)
    assert all(np.array_equal(found.tensor(name), want.tensor(name)) for name in want.names())
    last = max(weight_map.values())
    index.write_text(json.dumps({"weight_map": {n: file for n, file in weight_map.items() if file != last}}))
    with pytest.raises(CorruptWeights, match="tensors are missing, first"):
        SafetensorsCheckpoint(tmp_path)


def test_index_without_a_map(folder):
    (folder / "model.safetensors").unlink()
    for text in ("{}", '{"weight_map": {}}', '{"weight_map": []}'):
        (folder / "model.safetensors.index.json").write_text(text)
        with pytest.raises(CorruptWeights, match="weight_map"):
            SafetensorsCheckpoint(folder)


def test_missing_tensor(tiny_models, folder):
    rest = states(tiny_models["llama"][1])
    del rest["model.layers.1.self_attn.v_proj.weight"]
    save_file(rest, folder / "model.safetensors")
    with pytest.raises(CorruptWeights, match=r"tensors are missing, first model\.layers\.1\.self_attn\.v_proj"):
        SafetensorsCheckpoint(folder)


@pytest.mark.parametrize("family, field", [("llama", "num_hidden_layers"), ("gpt2", "n_layer")])
def test_layers_that_the_config_leaves_out(family, field, tiny_models, tmp_path):
    folder = shutil.copytree(tiny_models[family][0], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {field: 1}))
    with pytest.raises(
        CorruptWeights, match=f"{field}: the configuration says 1, the weights have 2 layers; set it to 2"
    ):
        SafetensorsCheckpoint(folder)


@pytest.mark.parametrize("prefix", ["mtp.", "model.mtp_layers."])
def test_layers_for_multi_token_prediction_are_left_alone(prefix, tiny_models, folder):
    stored = states(tiny_models["llama"][1])
    more = {f"{prefix}{i}.input_layernorm.weight": torch.ones(64) for i in (0, 9)}
    save_file(stored | more, folder / "model.safetensors")
    assert set(SafetensorsCheckpoint(folder).names()) == set(stored)


def test_layers_for_multi_token_prediction_that_are_numbered_on(tiny_models, tmp_path):
    """GLM-4.5 stores one after its layers, and says so; transformers leaves it out too."""
    folder = shutil.copytree(tiny_models["glm4_moe"][0], tmp_path / "model")
    stored = load_file(folder / "model.safetensors")
    names = set(SafetensorsCheckpoint(folder).names())
    more = {f"model.layers.2.{name}.weight": torch.ones(64) for name in ("input_layernorm", "enorm")}
    save_file(stored | more, folder / "model.safetensors")
    checkpoint = SafetensorsCheckpoint(folder)
    assert set(checkpoint.names()) == names and checkpoint.config.num_hidden_layers == 2
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 0}))
    with pytest.raises(CorruptWeights, match="the configuration says 2, the weights have 3 layers"):
        SafetensorsCheckpoint(folder)


def test_experts_are_read_whichever_way_round_they_are(tiny_models, tmp_path):
    """Qwen3-VL is published with matrices of experts [in, out]; transformers saves them [out, in]."""
    folder = shutil.copytree(tiny_models["qwen3_vl_moe_text"][0], tmp_path / "model")
    before, stored = SafetensorsCheckpoint(folder), load_file(folder / "model.safetensors")
    turned = {n: x.transpose(1, 2).contiguous() if ".mlp.experts." in n else x for n, x in stored.items()}
    assert sum(turned[name].shape != x.shape for name, x in stored.items()) == 4
    want = {name: before.tensor(name) for name in before.names()}
    save_file(turned, folder / "model.safetensors")
    after = SafetensorsCheckpoint(folder)
    for name, values in want.items():
        np.testing.assert_array_equal(after.tensor(name), values, err_msg=name)


def test_experts_are_read_one_by_one_or_all_in_one(tiny_models, tmp_path):
    """Qwen3.5 is published with the gates and ups of all experts in one tensor; transformers saves each expert's."""
    folder = shutil.copytree(tiny_models["qwen3_5_moe_text"][0], tmp_path / "model")
    before, stored = SafetensorsCheckpoint(folder), load_file(folder / "model.safetensors")
    want = {name: before.tensor(name) for name in before.names()}
    for layer in range(2):
        stem = f"model.layers.{layer}.mlp.experts"
        each = [
            {part: stored.pop(f"{stem}.{i}.{part}_proj.weight") for part in ("gate", "up", "down")} for i in range(6)
        ]
        stored[f"{stem}.gate_up_proj"] = torch.stack([torch.cat([one["gate"], one["up"]]) for one in each])
        stored[f"{stem}.down_proj"] = torch.stack([one["down"] for one in each])
    save_file(stored, folder / "model.safetensors")
    after = SafetensorsCheckpoint(folder)
    for name, values in want.items():
        np.testing.assert_array_equal(after.tensor(name), values, err_msg=name)


def test_weights_of_another_model(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 70}))
    with pytest.raises(
        CorruptWeights, match=r"embed_tokens.weight has shape \(67, 64\), the configuration says \(70, 64\)"
    ):
        SafetensorsCheckpoint(folder)


def test_wherever_a_file_is_cut_it_is_refused(folder):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for length in (0, 5, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptWeights, match=r"model\.safetensors.*download it again"):
            SafetensorsCheckpoint(folder)


@pytest.mark.parametrize("table", [b"not json", b"[]", b'{"x": 1}', b'{"x": {"dtype": "F32", "shape": [2]}}'])
def test_damaged_table(folder, table):
    (folder / "model.safetensors").write_bytes(len(table).to_bytes(8, "little") + table)
    with pytest.raises(CorruptWeights, match="damaged"):
        SafetensorsCheckpoint(folder)


def test_table_that_contradicts_itself(folder):
    table = b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}'
    (folder / "model.safetensors").write_bytes(len(table).to_bytes(8, "little") + table + bytes(8))
    with pytest.raises(CorruptWeights, match="4 bytes, not as its shape"):
        SafetensorsCheckpoint(folder)


def test_integer_weights_are_refused(tiny_models, folder):
    stored = states(tiny_models["llama"][1])
    stored["model.norm.weight"] = stored["model.norm.weight"].to(torch.int8)
    save_file(stored, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"model\.norm\.weight is stored as I8"):
        SafetensorsCheckpoint(folder).tensor("model.norm.weight")
    with pytest.raises(CorruptWeights, match="no tensor"):
        SafetensorsCheckpoint(folder).tensor("model.rotary")
