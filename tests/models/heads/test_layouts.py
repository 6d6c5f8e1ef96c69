"""Every published layout: a tiny file with the names and keys of its producer is read, and written back the same.

The files are written here by hand, from the producers' own sources, so that a mistake in both directions shows.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.errors import CorruptWeights, InvalidParameter, UnsupportedModel
from paceline.models.base import NORMED
from paceline.models.heads.files import layout_of, read_files, read_head, save_head
from paceline.models.heads.layouts.base import Reading
from paceline.models.heads.record import HeadRecord, TargetPrint
from paceline.models.heads.tensor_file import write_safetensors
from tests.models.heads.tiny_heads import OURS, THEIRS, VOCAB, WIDTH, assert_equal, random_head

TARGET = TargetPrint("tiny", WIDTH, 6, VOCAB)
READING = Reading(TARGET)
LLAMA = {
    "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "vocab_size": VOCAB,
    "max_position_embeddings": 64, "rope_theta": 5000.0, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
RNG = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def put(folder: Path, values: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(values))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def layer(prefix: str, width: int, input_norm: bool = True, qk_norm: bool = False) -> dict[str, np.ndarray]:
    """Llama's tensors of a layer whose attention reads `width` numbers."""
    parts = {
        "self_attn.q_proj.weight": (16, width), "self_attn.k_proj.weight": (8, width),
        "self_attn.v_proj.weight": (8, width), "self_attn.o_proj.weight": (WIDTH, 16),
        "post_attention_layernorm.weight": (WIDTH,), "mlp.gate_proj.weight": (24, WIDTH),
        "mlp.up_proj.weight": (24, WIDTH), "mlp.down_proj.weight": (WIDTH, 24),
    }  # fmt: skip
    if input_norm:
        parts["input_layernorm.weight"] = (WIDTH,)
    if qk_norm:
        parts |= {"self_attn.q_norm.weight": (4,), "self_attn.k_norm.weight": (4,)}
    return {prefix + name: normal(*shape) for name, shape in parts.items()}


def eagle3_files() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What SpecForge and SGLang call an EAGLE-3 head."""
    ids = np.array([3, 4, 9, 20, 39])
    tensors = layer("midlayer.", 2 * WIDTH) | {
        "midlayer.hidden_norm.weight": normal(WIDTH), "fc.weight": normal(WIDTH, 3 * WIDTH),
        "norm.weight": normal(WIDTH), "lm_head.weight": normal(5, WIDTH), "d2t": ids - np.arange(5),
        "t2d": np.isin(np.arange(VOCAB), ids),
    }  # fmt: skip
    return LLAMA | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 5}, tensors


@pytest.mark.parametrize("name", THEIRS)
def test_every_layout_comes_back(tmp_path: Path, name: str) -> None:
    config, layout = THEIRS[name]
    record = random_head(config)
    save_head(record, tmp_path, layout=layout)
    assert layout_of(read_files(tmp_path)).name == layout
    assert_equal(read_head(tmp_path), record)


def test_eagle1_as_its_authors_write_it(tmp_path: Path) -> None:
    tensors = layer("layers.0.", WIDTH, input_norm=False) | {
        "fc.weight": normal(WIDTH, 2 * WIDTH), "fc.bias": normal(WIDTH), "embed_tokens.weight": normal(VOCAB, WIDTH),
    }  # fmt: skip
    head = read_head(put(tmp_path, LLAMA, tensors), READING)
    assert head.config.family == "eagle" and head.config.taps == (NORMED,) and head.config.fc_bias
    assert any("absent, which means true" in note for note in head.notes)
    np.testing.assert_array_equal(head.tensors["fc.bias"], tensors["fc.bias"])
    del tensors["fc.bias"]
    assert not read_head(put(tmp_path, LLAMA | {"bias": False}, tensors), READING).config.fc_bias
    with pytest.raises(CorruptWeights, match=r"lacks fc\.bias"):
        read_head(put(tmp_path, LLAMA, tensors), READING)


def test_eagle3_of_specforge_reads_eagles_default_layers(tmp_path: Path) -> None:
    values, tensors = eagle3_files()
    head = read_head(put(tmp_path, values, tensors), READING)
    assert head.config.taps == (2, 3, 3)
    assert head.draft_ids is not None and head.draft_ids.tolist() == [3, 4, 9, 20, 39]
    np.testing.assert_array_equal(
        head.tensors["layers.0.self_attn.q_proj.weight"], tensors["midlayer.self_attn.q_proj.weight"]
    )
    assert not (head.config.norm_before_residual or head.config.norm_output or head.config.owns_embedding)
    with pytest.raises(InvalidParameter, match="name the target"):
        read_head(tmp_path)


@pytest.mark.parametrize(
    ("ids", "taps"), [([1, 2, 3], (2, 3, 4)), ([2, 3, 3], (2, 3, 3)), ([0, 4, 5], (1, 5, 6))]
)  # fmt: skip
def test_nvidias_nested_config_counts_layers_that_are_left(tmp_path: Path, ids: list[int], taps) -> None:
    values, tensors = eagle3_files()
    nested = {"eagle_aux_hidden_state_layer_ids": ids, "use_aux_hidden_state": True, "norm_before_residual": True}
    head = read_head(put(tmp_path, values | {"eagle_config": nested}, tensors), READING)
    assert head.config.taps == taps and head.config.norm_before_residual
    assert any(str(ids) in note for note in head.notes)
    asked = read_head(tmp_path, Reading(TARGET, convention="entering"))
    assert asked.config.taps == tuple(ids)


def test_one_key_with_two_meanings_is_told_and_can_be_overruled(tmp_path: Path) -> None:
    values, tensors = eagle3_files()
    place = put(tmp_path, values | {"norm_output": True}, tensors)
    head = read_head(place, READING)
    assert not head.config.norm_output and any("SpecForge" in note for note in head.notes)
    assert read_head(place, Reading(TARGET, norm_output=True)).config.norm_output
    with pytest.raises(InvalidParameter, match="norm_output"):
        read_head(put(tmp_path, values | {"norm_output": False}, tensors), READING)


def test_speculators_eagle3_as_vllm_reads_it(tmp_path: Path) -> None:
    _, tensors = eagle3_files()
    tensors = {name.replace("midlayer.", "layers.0."): array for name, array in tensors.items()}
    tensors |= {f"fc_norm.{i}.weight": normal(WIDTH) for i in range(3)} | {"verifier_norm.weight": normal(WIDTH)}
    config = {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "speculators_version": "0.5.0",
        "draft_vocab_size": 5, "transformer_layer_config": LLAMA, "fc_norm": True, "norm_output": True,
        "eagle_aux_hidden_state_layer_ids": [2, 3, 5], "embed_requires_grad": False,
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": "somebody/model", "architectures": ["LlamaForCausalLM"]},
        },
    }  # fmt: skip
    head = read_head(put(tmp_path, config, tensors))
    assert head.config.taps == (2, 3, 5) and head.config.norm_output and head.config.fc_norm
    assert head.config.norm_before_residual, "its trainer's default"
    assert head.config.target.name == "somebody/model" and head.config.num_steps == 3


def test_dflash_of_z_lab(tmp_path: Path) -> None:
    values = LLAMA | {
        "model_type": "qwen3", "head_dim": 4, "num_hidden_layers": 2, "block_size": 6, "num_target_layers": 6,
        "layer_types": ["full_attention"] * 2, "architectures": ["DFlashDraftModel"],
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "dflash_config": {"mask_token_id": 39, "target_layer_ids": [1, 3]},
    }  # fmt: skip
    tensors = {"fc.weight": normal(WIDTH, 2 * WIDTH), "hidden_norm.weight": normal(WIDTH), "norm.weight": normal(WIDTH)}
    for number in range(2):
        tensors |= layer(f"layers.{number}.", WIDTH, qk_norm=True)
    head = read_head(put(tmp_path, values, tensors))
    assert head.config.taps == (2, 4) and head.config.num_steps == 5 and head.config.block_size == 6
    assert not head.config.owns_head and head.config.mask_token_id == 39
    values["dflash_config"] = {"mask_token_id": 39}
    assert read_head(put(tmp_path, values, tensors)).config.taps == (2, 4), "the default for two layers of six"
    with pytest.raises(UnsupportedModel, match="DFlash2"):
        read_head(put(tmp_path, values | {"selector_rank": 16}, tensors))
    scaled, table = Reading(embedding_scale=8.0), {"embed_tokens.weight": normal(VOCAB, WIDTH)}
    for more, scale in (({}, 8.0), (table, 1.0)):  # what the target's layer multiplies by is no factor on other tables
        config = read_head(put(tmp_path, values, tensors | more), scaled).config
        assert (config.owns_embedding, config.embedding_scale) == (bool(more), scale)


def test_mimo_names_of_an_mtp_layer(tmp_path: Path) -> None:
    names = {"input_proj": (WIDTH, 2 * WIDTH), "hidden_layernorm": (WIDTH,), "token_layernorm": (WIDTH,),
             "final_layernorm": (WIDTH,)}  # fmt: skip
    prefix = "model.mtp_layers.0."
    tensors = {f"{prefix}{name}.weight": normal(*shape) for name, shape in names.items()}
    tensors |= layer(prefix, WIDTH) | {"model.layers.0.self_attn.q_proj.weight": normal(16, WIDTH)}
    head = read_head(put(tmp_path, LLAMA | {"num_hidden_layers": 6, "num_nextn_predict_layers": 1}, tensors))
    assert head.config.family == "mtp" and head.config.norm_output
    np.testing.assert_array_equal(head.tensors["embed_norm.weight"], tensors[prefix + "token_layernorm.weight"])
    state, embedding = np.split(tensors[prefix + "input_proj.weight"], 2, axis=1)  # the order of MiMo's own code
    np.testing.assert_array_equal(head.tensors["fc.weight"], np.concatenate([embedding, state], axis=1))


def test_medusas_uploaded_config_counts_heads_wrongly(tmp_path: Path) -> None:
    tensors: dict[str, np.ndarray] = {}
    for head in range(5):
        tensors |= {f"{head}.0.linear.weight": normal(WIDTH, WIDTH), f"{head}.0.linear.bias": normal(WIDTH),
                    f"{head}.1.weight": normal(VOCAB, WIDTH)}  # fmt: skip
    values = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}
    found = read_head(put(tmp_path, values, tensors))
    assert found.config.num_steps == 5 and found.config.target.name == "lmsys/vicuna-7b-v1.3"
    assert any("says 2, the file holds 5" in note for note in found.notes)
    np.testing.assert_array_equal(found.tensors["lm_heads.4.weight"], tensors["4.1.weight"])
    whole = {f"medusa_head.{name}": array for name, array in tensors.items()} | {"model.norm.weight": normal(WIDTH)}
    assert_same_tensors(read_head(put(tmp_path, values, whole)), found)


def test_medusa_of_vllm(tmp_path: Path) -> None:
    ids = np.array([3, 30, 7])
    tensors = {"token_map": ids}
    for head in range(2):
        tensors |= {f"medusa_heads.blocks.{head}.layers.0.weight": normal(WIDTH, WIDTH),
                    f"medusa_heads.lm_heads.{head}.weight": normal(3, WIDTH)}  # fmt: skip
    values = {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": WIDTH, "vocab_size": VOCAB,
              "num_heads": 2, "num_hidden_layers": 1, "truncated_vocab_size": 3, "topk": 10}  # fmt: skip
    head = read_head(put(tmp_path, values, tensors))
    assert head.draft_ids is not None and head.draft_ids.tolist() == [3, 7, 30] and not head.config.fc_bias
    rows = tensors["medusa_heads.lm_heads.1.weight"][[0, 2, 1]]
    np.testing.assert_array_equal(head.tensors["lm_heads.1.weight"], rows, "rows follow their ids")
    del tensors["token_map"]
    with pytest.raises(InvalidParameter, match="token_map"):
        read_head(put(tmp_path, values, tensors))


@pytest.mark.parametrize("tied", [True, False])
def test_mlp_speculator_of_ibm(tmp_path: Path, tied: bool) -> None:
    values = {"model_type": "mlp_speculator", "architectures": ["MLPSpeculatorPreTrainedModel"], "n_predict": 3,
              "emb_dim": WIDTH, "inner_dim": 0, "vocab_size": VOCAB, "top_k_tokens_per_head": [5, 4, 3],
              "n_candidates": 5, "tie_weights": tied, "scale_input": True}  # fmt: skip
    tensors: dict[str, np.ndarray] = {}
    shapes = {"emb": (VOCAB, WIDTH), "head": (VOCAB, WIDTH), "proj": (WIDTH, WIDTH)}
    for step in range(3):
        first = f"speculator.{{}}.{0 if tied else step}.{{}}"
        for name, shape in shapes.items():
            shared = f"speculator.{name}.{min(step, 1) if name == 'proj' and tied else 0 if tied else step}.weight"
            tensors[f"speculator.{name}.{step}.weight"] = tensors.get(shared, normal(*shape))
        for kind in ("weight", "bias"):
            tensors[f"speculator.ln.{step}.{kind}"] = tensors.get(first.format("ln", kind), normal(WIDTH))
    head = read_head(put(tmp_path, values, tensors))
    assert head.config.inner_size == WIDTH and head.config.scale_input and head.config.owns_embedding
    assert sum(name.startswith("emb.") for name in head.tensors) == (1 if tied else 3)
    assert sum(name.startswith("proj.") for name in head.tensors) == (2 if tied else 3)
    if tied:
        tensors["speculator.emb.2.weight"] = normal(VOCAB, WIDTH)
        with pytest.raises(CorruptWeights, match="must equal"):
            read_head(put(tmp_path, values, tensors))


def test_arctics_projections_are_joined_in_its_order(tmp_path: Path) -> None:
    values = {"model_type": "mlp_speculator", "method": "sum_lstm", "n_predict": 3, "input_hidden_dim": WIDTH,
              "inner_dim": [8], "emb_dim": "8", "proj_dim": 8, "vocab_size": VOCAB, "tie_weights": True,
              "tie_lstm_embs": True, "scale_input": False}  # fmt: skip
    tensors = {"forget_emb.0.weight": normal(VOCAB, 8), "head.0.weight": normal(VOCAB, 8),
               "input_emb.0.weight": normal(VOCAB, 8)}  # fmt: skip
    for norm in ("cell_ln", "state_ln"):
        tensors |= {f"{norm}.0.weight": normal(8), f"{norm}.0.bias": normal(8)}
    gates = ("forget", "input", "output", "cell")
    tensors |= {f"{gate}_proj.{step}.weight": normal(8, 8 if step else WIDTH) for gate in gates for step in range(2)}
    head = read_head(put(tmp_path, values, tensors))
    expected = np.concatenate([tensors[f"{gate}_proj.1.weight"] for gate in gates])
    np.testing.assert_array_equal(head.tensors["projs.1.weight"], expected)


def test_hydra_prefix_numbers_are_shifted_by_dropouts(tmp_path: Path) -> None:
    values = LLAMA | {"hydra_num_heads": 2, "hydra_num_layers": 1, "hydra_head_arch": "prefix-mlp",
                      "grounded_heads": True, "base_model_name_or_path": "vicuna"}  # fmt: skip
    prefix = "prefix_embeding_layer."
    tensors = layer(prefix + "layers.0.", WIDTH) | {f"{prefix}norm.weight": normal(WIDTH),
                                                   f"{prefix}embed_tokens.weight": normal(VOCAB, WIDTH)}  # fmt: skip
    for head in range(2):
        for part in ("linear", "res_connection"):
            tensors[f"hydra_mlp.{head}.1.{part}.weight"] = normal(WIDTH, (head + 2) * WIDTH)
            tensors[f"hydra_mlp.{head}.1.{part}.bias"] = normal(WIDTH)
        tensors[f"hydra_lm_head.{head}.1.weight"] = normal(VOCAB, WIDTH)
        tensors[f"hydra_lm_head.{head}.1.bias"] = normal(VOCAB)
    found = read_head(put(tmp_path, values, tensors))
    np.testing.assert_array_equal(
        found.tensors["blocks.1.0.residual.weight"], tensors["hydra_mlp.1.1.res_connection.weight"]
    )
    with pytest.raises(InvalidParameter, match="grounded_heads"):
        read_head(put(tmp_path, values | {"grounded_heads": False}, tensors))


def assert_same_tensors(found: HeadRecord, expected: HeadRecord) -> None:
    assert list(found.tensors) == list(expected.tensors)
    for name, values in expected.tensors.items():
        np.testing.assert_array_equal(found.tensors[name], values)


# What is refused


def test_a_missing_and_a_left_over_tensor_are_named(tmp_path: Path) -> None:
    values, tensors = eagle3_files()
    tensors["midlayer.mlp.gate_up_proj.weight"] = tensors.pop("midlayer.mlp.gate_proj.weight")
    with pytest.raises(CorruptWeights, match=r"lacks layers\.0\.mlp\.gate_proj.*holds layers\.0\.mlp\.gate_up_proj"):
        read_head(put(tmp_path, values, tensors), READING)


def test_a_wrong_shape_is_told_with_both_numbers(tmp_path: Path) -> None:
    values, tensors = eagle3_files()
    with pytest.raises(CorruptWeights, match=r"norm\.weight has shape \[8\], the config says \[16\]"):
        read_head(put(tmp_path, values, tensors | {"norm.weight": normal(8)}), READING)
    with pytest.raises(CorruptWeights, match="not finite"):
        read_head(put(tmp_path, values, tensors | {"norm.weight": np.full(WIDTH, np.nan, np.float32)}), READING)


@pytest.mark.parametrize("key", ["embed_norm", "logit_scale", "qkv_rope_factor", "head_bias"])
def test_an_unknown_setting_that_changes_numbers_is_refused(tmp_path: Path, key: str) -> None:
    values, tensors = eagle3_files()
    with pytest.raises(UnsupportedModel, match=key):
        read_head(put(tmp_path, values | {key: 2}, tensors), READING)
    head = read_head(put(tmp_path, values | {key: None, "colour": "green"}, tensors), READING)
    assert any("colour" in note for note in head.notes)


def test_another_position_scaling_is_refused(tmp_path: Path) -> None:
    values, tensors = eagle3_files()
    with pytest.raises(UnsupportedModel, match="rope_scaling"):
        read_head(put(tmp_path, values | {"rope_scaling": {"rope_type": "spiral", "factor": 4.0}}, tensors), READING)


def test_the_draft_map_is_checked(tmp_path: Path) -> None:
    values, tensors = eagle3_files()
    with pytest.raises(InvalidParameter, match="has 5 entries, the config says draft_vocab_size=7"):
        read_head(put(tmp_path, values | {"draft_vocab_size": 7}, tensors), READING)
    for wrong, problem in (
        ([3, 4, 9, 20, 39], "target ids, where the format has offsets"),
        ([0, 0, 0, 0, 90], "leads out of the target's vocabulary"),
        ([0, 0, -1, 0, 0], "names a target token twice"),
    ):
        with pytest.raises(InvalidParameter, match=problem):
            read_head(put(tmp_path, values, tensors | {"d2t": np.array(wrong)}), READING)
    del tensors["d2t"]
    with pytest.raises(InvalidParameter, match="d2t: is missing"):
        read_head(put(tmp_path, values, tensors), READING)


def test_a_head_of_another_width_or_vocabulary_is_refused(tmp_path: Path) -> None:
    values, tensors = eagle3_files()
    place = put(tmp_path, values, tensors)
    for other in (TargetPrint("wide", 32, 6, VOCAB), TargetPrint("large", WIDTH, 6, 41)):
        with pytest.raises(InvalidParameter, match="made for this target"):
            read_head(place, Reading(other))
    with pytest.raises(InvalidParameter, match="leaves a target of 6 layers"):
        read_head(put(tmp_path, values | {"eagle_aux_hidden_state_layer_ids": [1, 3, 9]}, tensors), READING)


def test_layers_after_the_first_are_ambiguous_outside_of_speculators(tmp_path: Path) -> None:
    values, tensors = eagle3_files()
    with pytest.raises(InvalidParameter, match="programs differ"):
        read_head(put(tmp_path, values | {"num_hidden_layers": 2}, tensors), READING)


def test_a_pickle_with_code_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    values, tensors = eagle3_files()
    torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert read_head(tmp_path, READING).config.family == "eagle3"
    torch.save({"fc.weight": print}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match=r"holds print, which could run code"):
        read_head(tmp_path, READING)


@pytest.mark.parametrize("content", [b"", b"hello world", b"GGUF" + bytes(40), b"PK" + bytes(40), b"\x80\x02."])
def test_a_file_that_is_no_pickle_is_refused(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("torch")
    values, _ = eagle3_files()
    (tmp_path / "config.json").write_text(json.dumps(values))
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises((CorruptWeights, UnsupportedModel), match=r"pytorch_model.bin.*get it again|no PyTorch file"):
        read_head(tmp_path, READING)


def test_a_file_for_llama_cpp_is_not_read_back(tmp_path: Path) -> None:
    (tmp_path / "draft.gguf").write_bytes(b"GGUF" + bytes(40))
    with pytest.raises(UnsupportedModel, match="not read back"):
        read_head(tmp_path / "draft.gguf", READING)


def test_files_of_no_layout_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="no known layout"):
        read_head(put(tmp_path, {"model_type": "bert"}, {"pooler.weight": normal(2, 2)}))


def test_a_whole_model_is_no_head_and_says_how_it_drafts(tmp_path: Path) -> None:
    names = ("model.embed_tokens.weight", "model.norm.weight", "model.layers.0.mlp.down_proj.weight")
    folder = put(tmp_path, {"model_type": "llama"}, {name: normal(2, 2) for name in names})
    with pytest.raises(UnsupportedModel, match=r"is a model and not a draft head; .* beside --draft draft_model"):
        read_head(folder)


def test_sglang_is_only_given_what_it_computes(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="fc_norm"):
        save_head(random_head(OURS["eagle3.1"]), tmp_path, layout="sglang")
    with pytest.raises(InvalidParameter, match="cannot hold a medusa head"):
        save_head(random_head(OURS["medusa"]), tmp_path, layout="sglang")
