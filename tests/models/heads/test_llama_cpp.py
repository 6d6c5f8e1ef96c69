"""GGUF drafts: names, keys and shapes that llama.cpp's loaders ask for, and refusals of what they would pass over."""

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.models.heads.llama_cpp import write_gguf
from tests.models.heads.tiny_heads import LAYER, OURS, QWEN, THEIRS, WIDTH, random_head, random_tables
from tests.models.tiny import interleaved
from tests.models.vocabularies import byte_level_gguf

VOCABULARY = byte_level_gguf("smollm")
BLOCK = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
EAGLE3 = replace(OURS["eagle3.1"], fc_norm=False, norm_output=False, norm_before_fc=True)
DSPARK = OURS["dspark"]


def read(path: Path) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """Keys and float32 (or int64) tensors of a GGUF file, by the format's own reader."""
    reader = gguf.GGUFReader(path)
    tensors = {}
    for tensor in reader.tensors:
        plain = tensor.tensor_type in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.I64)
        tensors[tensor.name] = tensor.data if plain else gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return {name: field.contents() for name, field in reader.fields.items()}, tensors


def test_eagle3(tmp_path: Path) -> None:
    record, tables = random_head(EAGLE3), random_tables()
    keys, tensors = read(write_gguf(record, tmp_path / "draft.gguf", VOCABULARY, tables, "F32"))
    expected = {f"blk.0.{name}.weight" for name in (*BLOCK, "attn_norm_2")}
    tops = {"fc.weight", "enc.output_norm.weight", "output_norm.weight", "output.weight", "d2t"}
    assert set(tensors) == expected | tops
    np.testing.assert_array_equal(tensors["d2t"], record.draft_ids)
    np.testing.assert_array_equal(tensors["output.weight"], tables.head[record.draft_ids])
    np.testing.assert_array_equal(
        tensors["blk.0.attn_q.weight"], interleaved(record.tensors["layers.0.self_attn.q_proj.weight"], 4)
    )
    np.testing.assert_array_equal(tensors["enc.output_norm.weight"], record.tensors["input_norm.weight"])
    assert keys["general.architecture"] == "eagle3" and keys["eagle3.target_layers"] == [2, 3, 3]
    assert keys["eagle3.norm_before_fc"] is True and keys["eagle3.norm_before_residual"] is False
    assert keys["eagle3.target_hidden_size"] == WIDTH and keys["eagle3.rope.freq_base"] == 5000.0
    assert keys["tokenizer.ggml.tokens"] == list(VOCABULARY["tokenizer.ggml.tokens"])


def test_dspark_is_dflash_with_more(tmp_path: Path) -> None:
    record, tables = random_head(DSPARK), random_tables()
    keys, tensors = read(write_gguf(record, tmp_path / "draft.gguf", VOCABULARY, tables))
    blocks = {f"blk.{i}.{name}.weight" for i in range(2) for name in (*BLOCK, "attn_q_norm", "attn_k_norm")}
    more = {"markov_w1.weight", "markov_w2.weight", "conf_proj.weight", "conf_proj.bias", "output.weight", "d2t"}
    assert set(tensors) == blocks | more | {"fc.weight", "enc.output_norm.weight", "output_norm.weight"}
    assert tensors["markov_w1.weight"].shape == (40, 4) and tensors["markov_w2.weight"].shape == (20, 4)
    np.testing.assert_allclose(
        tensors["blk.1.attn_q.weight"], record.tensors["layers.1.self_attn.q_proj.weight"], rtol=1e-2
    )
    assert keys["general.architecture"] == "dflash" and keys["dflash.block_size"] == 4
    assert keys["dflash.sample_from_anchor"] is True and keys["dflash.has_confidence_head"] is True
    assert keys["dflash.target_layers"] == [1, 4] and keys["tokenizer.ggml.mask_token_id"] == 39
    assert "dflash.attention.causal" not in keys, "two-way is what it assumes of such drafts"


def test_a_full_vocabulary_shares_the_targets_head(tmp_path: Path) -> None:
    _, tensors = read(write_gguf(random_head(OURS["dflash"]), tmp_path / "d.gguf", VOCABULARY, random_tables()))
    assert not {"output.weight", "d2t", "token_embd.weight"} & set(tensors)


def test_scaled_positions_go_in_as_divisors(tmp_path: Path) -> None:
    scaled = replace(EAGLE3, layer=replace(LAYER, rope_inv_freq_scale=(1.0, 0.25)))
    _, tensors = read(write_gguf(random_head(scaled), tmp_path / "d.gguf", VOCABULARY, random_tables()))
    np.testing.assert_array_equal(tensors["rope_freqs.weight"], [1.0, 4.0])


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (OURS["eagle3.1"], "fc_norm"),
        (replace(EAGLE3, norm_output=True), "norm_output"),
        (replace(EAGLE3, taps=(2, 3)), "taps"),
        (replace(EAGLE3, layer=QWEN), "qk_norm"),
        (replace(EAGLE3, fc_bias=True), "bias"),
        (replace(DSPARK, layer=LAYER), "qk_norm"),
        (replace(DSPARK, variant="gated"), "markov_head_type"),
        (replace(DSPARK, confidence_markov=False), "confidence"),
        (OURS["medusa"], "family"),
        (THEIRS["eagle"][0], "family"),
    ],
)
def test_what_llama_cpp_would_pass_over_is_refused(tmp_path: Path, config, field: str) -> None:
    with pytest.raises(InvalidParameter) as error:
        write_gguf(random_head(config), tmp_path / "draft.gguf", VOCABULARY, random_tables())
    assert error.value.field == field and not (tmp_path / "draft.gguf").exists()


def test_a_target_without_a_gguf_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="GGUF file"):
        write_gguf(random_head(EAGLE3), tmp_path / "draft.gguf", {}, random_tables())
