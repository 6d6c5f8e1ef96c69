"""Reading GGUF: tensors, configuration, and every way a file can be wrong. Files come from the format's own writer."""

import dataclasses
import struct
import subprocess
import sys

import gguf
import numpy as np
import pytest

from paceline.errors import CorruptWeights, ModelNotFound, PacelineError, UnsupportedModel
from paceline.models.architecture.config import ModelConfig
from paceline.models.architecture.tensor_names import tensor_shapes
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.files.gguf_header import BLOCKS
from paceline.models.files.safetensors_folder import SafetensorsCheckpoint
from paceline.models.numba_executor import weights
from paceline.models.text.tokenizer import Tokenizer
from tests.fakes import RandomCheckpoint, small_config

from .tiny import add_pair, as_gguf, gguf_metadata, gguf_name, header_bytes, write_gguf
from .vocabularies import byte_level_gguf, sentencepiece_gguf

WIDE = ModelConfig("qwen2", 8, 256, 256, 1, 2, 1, 128, 1e-5, 32, tie_word_embeddings=True, attention_bias=True)
"""Rows of 256 values, so that every storage type has whole blocks."""


@pytest.fixture(scope="module")
def llama(tiny_models):
    return SafetensorsCheckpoint(tiny_models["llama"][0])


@pytest.fixture(scope="module")
def llama_file(llama, tmp_path_factory):
    return as_gguf(tmp_path_factory.mktemp("gguf") / "llama.gguf", llama)


def wide_tensors(replaced: dict[str, np.ndarray | None] | None = None) -> dict[str, np.ndarray]:
    tensors = {gguf_name(WIDE, name): np.ones(shape, np.float32) for name, shape in tensor_shapes(WIDE).items()}
    return {name: values for name, values in (tensors | (replaced or {})).items() if values is not None}


@pytest.mark.parametrize("family", ["llama", "llama-biased", "qwen2", "qwen3"])
def test_a_converted_model_is_the_same_model(family, tiny_models, tmp_path):
    original = SafetensorsCheckpoint(tiny_models[family][0])
    ours = GGUFCheckpoint(as_gguf(tmp_path / "model.gguf", original))
    assert ours.names() == original.names()
    for name in ours.names():
        np.testing.assert_array_equal(ours.tensor(name), original.tensor(name), err_msg=name)
    unknown_to_gguf = {"bos_token_id": None, "eos_token_ids": (), "norm_eps": ours.config.norm_eps}
    assert dataclasses.replace(original.config, **unknown_to_gguf) == ours.config
    assert ours.config.norm_eps == pytest.approx(original.config.norm_eps)


def test_quantised_tensors_come_back_close(llama, tmp_path):
    name = "model.layers.0.mlp.up_proj.weight"
    path = as_gguf(
        tmp_path / "q8.gguf", llama, storage={"blk.0.ffn_up.weight": "Q8_0", "blk.0.ffn_gate.weight": "BF16"}
    )
    ours, want = GGUFCheckpoint(path).tensor(name), llama.tensor(name)
    largest = np.abs(want).max(axis=1, keepdims=True)
    assert (np.abs(ours - want) <= largest / 127).all() and not np.array_equal(ours, want)


@pytest.mark.parametrize("storage", BLOCKS)
def test_every_storage_type_is_read_as_the_gguf_package_reads_it(storage, tmp_path):
    kind = gguf.GGMLQuantizationType[storage]
    assert BLOCKS[storage] == (int(kind), *gguf.GGML_QUANT_SIZES[kind])
    row_bytes = 256 // BLOCKS[storage][1] * BLOCKS[storage][2]
    raw = np.random.default_rng(0).integers(0, 60, (256, row_bytes), dtype=np.uint8)  # as float16: finite
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "qwen2")
    for key, value in gguf_metadata(WIDE).items():
        add_pair(writer, key, value)
    for name, values in wide_tensors({"blk.0.ffn_up.weight": None}).items():
        writer.add_tensor(name, values)
    writer.add_tensor("blk.0.ffn_up.weight", raw, raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    ours = GGUFCheckpoint(tmp_path / "model.gguf").tensor("model.layers.0.mlp.up_proj.weight")
    np.testing.assert_array_equal(ours, gguf.quants.dequantize(raw, kind))
    assert np.isfinite(ours).all() and ours.shape == (256, 256) and ours.dtype == np.float32


def test_types_that_cannot_be_dequantised_are_not_in_the_table():
    def readable(kind):
        try:
            gguf.quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError:
            return False
        return True

    assert {kind.name for kind in gguf.GGMLQuantizationType if readable(kind)} == set(BLOCKS)


def test_llama3_factors_are_in_the_file(tiny_models, tmp_path):
    config = SafetensorsCheckpoint(tiny_models["llama3"][0]).config
    assert config.rope_inv_freq_scale is not None
    tensors = {gguf_name(config, n): np.ones(s, np.float32) for n, s in tensor_shapes(config).items()}
    tensors["rope_freqs.weight"] = (1 / np.array(config.rope_inv_freq_scale)).astype(np.float32)
    ours = GGUFCheckpoint(write_gguf(tmp_path / "model.gguf", gguf_metadata(config), tensors))
    assert ours.config.rope_inv_freq_scale == pytest.approx(config.rope_inv_freq_scale)


def test_fingerprint_follows_the_file(llama_file, llama, tmp_path):
    first = GGUFCheckpoint(llama_file).fingerprint
    assert first == GGUFCheckpoint(llama_file).fingerprint
    other = as_gguf(tmp_path / "model.gguf", llama)
    before = GGUFCheckpoint(other).fingerprint
    as_gguf(other, llama, storage={"blk.0.ffn_up.weight": "Q8_0"})
    assert len({first, before, GGUFCheckpoint(other).fingerprint}) == 3


def test_opening_a_file_loads_no_heavy_package(llama_file):
    code = (
        "import sys; from paceline.models.files.gguf_file import GGUFCheckpoint; GGUFCheckpoint(sys.argv[1]); "
        "sys.exit(', '.join({'torch', 'transformers', 'gguf', 'huggingface_hub'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(llama_file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_wherever_a_file_is_cut_it_is_refused(llama_file, tmp_path):
    whole, cut = llama_file.read_bytes(), tmp_path / "cut.gguf"
    for length in [*range(0, 400, 7), len(whole) // 2, len(whole) - 1]:
        cut.write_bytes(whole[:length])
        with pytest.raises(CorruptWeights, match=r"cut\.gguf"):
            GGUFCheckpoint(cut)


@pytest.mark.parametrize("vocabulary", [byte_level_gguf(), sentencepiece_gguf()], ids=["byte-level", "sentencepiece"])
def test_a_damaged_header_never_escapes_as_another_error(vocabulary, llama, tmp_path):
    whole = as_gguf(tmp_path / "whole.gguf", llama, vocabulary).read_bytes()
    broken, header_size = tmp_path / "broken.gguf", whole.rindex(b"blk.")
    rng, refused = np.random.default_rng(0), 0
    for _ in range(500):
        damaged = bytearray(whole)
        damaged[rng.integers(0, header_size)] = rng.integers(0, 256)
        broken.write_bytes(damaged)
        try:
            Tokenizer.from_gguf(GGUFCheckpoint(broken).metadata).encode("the cat")
        except PacelineError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        (b"", CorruptWeights, "empty"),
        (b"PK\x03\x04 something else", CorruptWeights, "no GGUF file"),
        (header_bytes(b"", 0, version=1), UnsupportedModel, "version 1"),
        (header_bytes(b"", 0, version=3 << 24), UnsupportedModel, "big-endian"),
        (header_bytes(b"", 0), UnsupportedModel, "general.architecture"),
        (header_bytes(struct.pack("<Q", 1) + b"k" + struct.pack("<I", 77), 1), CorruptWeights, "type 77"),
        (header_bytes(struct.pack("<Q", 1 << 60), 1), CorruptWeights, "ends after"),
        (header_bytes(struct.pack("<Q1sIB", 1, b"k", 0, 7) * 2, 2), CorruptWeights, "'k' stands twice"),
        (header_bytes(struct.pack("<Q", 2) + b"\xff\xfe" + bytes(12), 1), CorruptWeights, "UTF-8"),
        (header_bytes(struct.pack("<Q1sIIQ", 1, b"k", 9, 8, 1 << 50), 1), CorruptWeights, "ends after"),
        (header_bytes(struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 1 << 50), 1), CorruptWeights, "ends after"),
        (header_bytes(struct.pack("<Q1sIQII", 1, b"t", 1, 256, 15, 0) + bytes(8), 0, 1), UnsupportedModel, "type 15"),
        (header_bytes(struct.pack("<Q1sIQII", 1, b"t", 1, 100, 8, 0) + bytes(8), 0, 1), CorruptWeights, "blocks of 32"),
        (header_bytes(struct.pack("<Q1sI", 1, b"t", 9), 0, 1), CorruptWeights, "9 dimensions"),
    ],
)
def test_files_no_writer_would_write(content, error, says, tmp_path):
    (tmp_path / "odd.gguf").write_bytes(content)
    with pytest.raises(error, match=says) as caught:
        GGUFCheckpoint(tmp_path / "odd.gguf")
    assert "odd.gguf" in str(caught.value) or "general.architecture" in says


def test_missing_tensors_are_named(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", gguf_metadata(WIDE), wide_tensors({"blk.0.ffn_up.weight": None}))
    with pytest.raises(CorruptWeights, match=r"m\.gguf: tensors are missing, first blk\.0\.ffn_up\.weight"):
        GGUFCheckpoint(path)


def test_layers_that_the_metadata_leaves_out_are_refused(tmp_path):
    more = {name.replace("blk.0.", "blk.1."): values for name, values in wide_tensors().items() if "blk.0." in name}
    path = write_gguf(tmp_path / "m.gguf", gguf_metadata(WIDE), wide_tensors(more))
    with pytest.raises(
        CorruptWeights, match=r"qwen2\.block_count: the configuration says 1, the weights have 2 layers"
    ):
        GGUFCheckpoint(path)


def test_layers_for_multi_token_prediction_are_left_out(tmp_path):
    """As in files of EXAONE 4.5, where they are the last layers and are counted."""
    more = {name.replace("blk.0.", "blk.1."): values for name, values in wide_tensors().items() if "blk.0." in name}
    tensors = wide_tensors(more | {"blk.1.nextn.eh_proj.weight": np.ones((256, 512), np.float32)})
    counted = gguf_metadata(WIDE) | {"qwen2.block_count": 2, "qwen2.nextn_predict_layers": 1}
    ours = GGUFCheckpoint(write_gguf(tmp_path / "m.gguf", counted, tensors))
    assert ours.config.num_hidden_layers == 1 and not any("layers.1." in name for name in ours.names())


def test_wrong_shapes_are_named(tmp_path):
    tensors = wide_tensors({"blk.0.ffn_up.weight": np.ones((128, 256), np.float32)})
    with pytest.raises(CorruptWeights, match=r"ffn_up\.weight has shape \(128, 256\)"):
        GGUFCheckpoint(write_gguf(tmp_path / "m.gguf", gguf_metadata(WIDE), tensors))


def test_unknown_names_and_missing_files(llama_file, tmp_path):
    with pytest.raises(CorruptWeights, match=r"no tensor lm_head\.weight"):
        GGUFCheckpoint(llama_file).tensor("lm_head.weight")
    with pytest.raises(ModelNotFound, match="no such file"):
        GGUFCheckpoint(tmp_path / "nowhere.gguf")


def offset_of(name, data):
    """Where a file's table says where a tensor of two dimensions begins."""
    at = data.index(struct.pack("<Q", len(name)) + name.encode()) + 8 + len(name)
    return at + 4 + 2 * 8 + 4


@pytest.mark.parametrize(("by", "says"), [(4, "not aligned"), (-32, "overlap")])
def test_tensors_that_lie_where_none_may_are_refused(by, says, llama_file, tmp_path):
    data = bytearray(llama_file.read_bytes())
    at = offset_of("blk.1.ffn_up.weight", data)
    data[at : at + 8] = struct.pack("<Q", struct.unpack_from("<Q", data, at)[0] + by)
    (tmp_path / "moved.gguf").write_bytes(data)
    with pytest.raises(CorruptWeights, match=says):
        GGUFCheckpoint(tmp_path / "moved.gguf")


def test_weights_that_are_no_numbers_are_named(tmp_path):
    spoiled = np.ones((256, 256), np.float32)
    spoiled[3, 5] = np.nan
    path = write_gguf(tmp_path / "nan.gguf", gguf_metadata(WIDE), wide_tensors({"blk.0.ffn_up.weight": spoiled}))
    with pytest.raises(CorruptWeights, match=r"blk\.0\.ffn_up\.weight holds numbers that are not finite"):
        GGUFCheckpoint(path).tensor("model.layers.0.mlp.up_proj.weight")


@pytest.mark.parametrize("storage", ["Q4_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q6_K", "IQ4_XS"])
def test_blocks_with_scales_that_are_no_numbers_are_named(storage, tmp_path):
    """Every place where a block's dequantised values would not be finite if its bits were those of an infinity."""
    kind = gguf.GGMLQuantizationType[storage]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    scales = []
    for at in range(size - 1):
        raw = np.full((1, size), 17, np.uint8)
        raw[0, at : at + 2] = 0x00, 0x7C
        if not np.isfinite(gguf.quants.dequantize(raw, kind)).all():
            scales.append(at)
    raw = np.full((256, 256 // block * size), 17, np.uint8)
    for at in scales:
        spoiled = raw.copy()
        spoiled[200, at : at + 2] = 0x00, 0x7C
        tensors = wide_tensors({"blk.0.ffn_up.weight": spoiled})
        path = write_gguf(tmp_path / f"{at}.gguf", gguf_metadata(WIDE), tensors, {"blk.0.ffn_up.weight": storage})
        with pytest.raises(CorruptWeights, match=r"blk\.0\.ffn_up\.weight holds scales that are not finite"):
            GGUFCheckpoint(path).blocks("model.layers.0.mlp.up_proj.weight")
    assert scales


def test_blocks_with_exponents_beyond_floats_are_named(tmp_path):
    for exponent in (252, 253, 255):
        raw = np.full((256, 8 * 17), 17, np.uint8)
        raw[200, 17] = exponent
        tensors = wide_tensors({"blk.0.ffn_up.weight": raw})
        path = write_gguf(tmp_path / "m.gguf", gguf_metadata(WIDE), tensors, {"blk.0.ffn_up.weight": "MXFP4"})
        if exponent == 252:
            assert GGUFCheckpoint(path).blocks("model.layers.0.mlp.up_proj.weight")
            continue
        with pytest.raises(CorruptWeights, match=r"blk\.0\.ffn_up\.weight holds scales that are not finite"):
            GGUFCheckpoint(path).blocks("model.layers.0.mlp.up_proj.weight")


def test_a_file_is_let_go_of_while_it_is_repacked(tmp_path, monkeypatch):
    """A first start must not have the file and what becomes of it in memory; what was let go of can be read again."""
    path = as_gguf(tmp_path / "model.gguf", RandomCheckpoint(small_config()))
    checkpoint, released = GGUFCheckpoint(path), []
    before = checkpoint.tensor("model.embed_tokens.weight")
    let_go = GGUFCheckpoint.let_go
    monkeypatch.setattr(GGUFCheckpoint, "let_go", lambda self: released.append(1) or let_go(self))
    (tmp_path / "out").mkdir()
    weights.convert(tmp_path / "out", checkpoint, "bfloat16")
    assert len(released) >= small_config().num_hidden_layers
    np.testing.assert_array_equal(checkpoint.tensor("model.embed_tokens.weight"), before)
