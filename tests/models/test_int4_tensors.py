"""4-bit safetensors: every way of packing gives the weights it was packed from, in float32 and in blocks."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from paceline.errors import CorruptWeights, InvalidParameter, UnsupportedModel
from paceline.models.dtypes import choose_dtype
from paceline.models.files.int4_tensors import scheme_of
from paceline.models.files.safetensors_folder import SafetensorsCheckpoint
from paceline.models.numba_executor.blocks.formats import FORMATS
from paceline.models.numba_executor.blocks.unpack import unpack
from tests.fakes import RandomCheckpoint, small_config

GROUP = 32
CONFIG = small_config(hidden_size=64, intermediate_size=96, num_attention_heads=2, num_key_value_heads=2, head_dim=32)
HF = {
    "model_type": "llama", "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512, "tie_word_embeddings": True,
}  # fmt: skip
CT = {
    "quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": GROUP}}},
}  # fmt: skip


def word(codes):
    """Eight codes in a 32-bit number, the first in the lowest bits."""
    total = 0
    for place, code in enumerate(codes):
        total |= int(code) << 4 * place
    return np.uint32(total).astype(np.int32)


def packed(codes, axis, order=(0, 1, 2, 3, 4, 5, 6, 7)):
    """Codes packed by eight along an axis, one word at a time."""
    codes = codes if axis == 1 else codes.T
    words = [[word([row[i + o] for o in order]) for i in range(0, len(row), 8)] for row in codes]
    return np.array(words if axis == 1 else np.array(words).T, np.int32)


def gptq(codes, scales, zeros, offset=1):
    groups = np.arange(codes.shape[1], dtype=np.int32) // GROUP
    return {
        "qweight": packed(codes.T, 0), "scales": np.ascontiguousarray(scales.T), "g_idx": groups,
        "qzeros": packed(zeros.T - offset, 1),
    }  # fmt: skip


def awq(codes, scales, zeros):
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {
        "qweight": packed(codes.T, 1, order), "scales": np.ascontiguousarray(scales.T),
        "qzeros": packed(zeros.T, 1, order),
    }  # fmt: skip


def compressed(codes, scales, zeros):
    parts = {
        "weight_packed": packed(codes, 1), "weight_scale": scales, "weight_shape": np.array(codes.shape, np.int64),
    }  # fmt: skip
    return parts if (zeros == 8).all() else parts | {"weight_zero_point": packed(zeros, 0)}


SCHEMES = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP}, gptq, False),
    "gptq-symmetric": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP}, gptq, True),
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, awq, False),
    "compressed-symmetric": (CT, compressed, True),
    "compressed": (CT, compressed, False),
}


def write(folder, scheme, change=lambda tensors: None):
    """A folder with all linear layers in 4 bits; returns their weights by name."""
    quantization, pack, symmetric = SCHEMES[scheme]
    checkpoint, tensors, weights = RandomCheckpoint(CONFIG), {}, {}
    rng = np.random.default_rng(0)
    for name in checkpoint.names():
        values = checkpoint.tensor(name)
        if values.ndim == 1 or "embed" in name:
            tensors[name] = values.astype(np.float16)
            continue
        n, groups = len(values), values.shape[1] // GROUP
        codes = rng.integers(0, 16, values.shape)
        zeros = np.full((n, groups), 8) if symmetric else rng.integers(1, 16, (n, groups))
        scales = rng.uniform(0.01, 0.02, (n, groups)).astype(np.float16)
        parts = pack(codes, scales, zeros)
        tensors |= {f"{name.removesuffix('weight')}{part}": np.ascontiguousarray(x) for part, x in parts.items()}
        spread = [np.repeat(x, GROUP, axis=1).astype(np.float32) for x in (scales, zeros)]
        weights[name] = spread[0] * (codes - spread[1])
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(HF | {"quantization_config": quantization}))
    return weights


@pytest.mark.parametrize("scheme", SCHEMES)
def test_codes_come_back_as_they_were_packed(scheme, tmp_path):
    expected = write(tmp_path, scheme)
    checkpoint = SafetensorsCheckpoint(tmp_path)
    assert len(expected) == 7 * 3
    for name, weights in expected.items():
        np.testing.assert_allclose(checkpoint.tensor(name), weights, rtol=1e-6)
        stored = checkpoint.blocks(name)
        assert stored is not None
        assert stored.storage == ("Q4_0" if "symmetric" in scheme else "INT4")
        form = FORMATS[stored.storage]
        np.testing.assert_allclose(unpack(stored.rows, form, stored.block_bytes).values(form), weights, rtol=1e-5)
    assert checkpoint.blocks("model.norm.weight") is None
    assert choose_dtype("auto", checkpoint, "numba", "cpu").name == "gguf"


def test_other_quantisations_are_refused_by_name():
    assert scheme_of({}) is None
    for quantization, words in [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "gptq", "bits": 3}, "gptq.*bits 3"),
        ({"quant_method": "fbgemm_fp8"}, "fbgemm_fp8"),
        (CT | {"format": "float-quantized"}, "float-quantized"),
        ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"}, "gptq.*marlin"),
        ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, "gptq"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "awq.*gemv"),
        (CT | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        (CT | {"transform_config": {"config_groups": {"u": {"type": "hadamard"}}}}, "transform_config"),
        ("quanto", "quanto"),
    ]:
        with pytest.raises(UnsupportedModel, match=f"quantization_config.*{words}"):
            scheme_of({"quantization_config": quantization})


def test_the_tools_spellings_of_one_format():
    plain = {"quant_method": "compressed-tensors"} | CT | {"sparsity_config": {"format": "dense"}}
    upper = {"quant_method": "awq", "bits": 4, "version": "GEMM"}
    for quantization in (plain, upper, {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq"}):
        assert scheme_of({"quantization_config": quantization})


def test_a_zero_point_of_0_borrows_from_its_neighbour_in_the_first_format_of_gptq(tmp_path):
    """Tools take 1 from all eight zero points of a word at once, as one whole number."""
    name, zeros = "model.layers.0.mlp.up_proj", np.tile(np.array([0, 5, 0, 0, 15, 1, 8, 0]), 12)
    words = np.tile(packed(zeros[None], 1).view(np.uint32) - np.uint32(0x11111111), (2, 1)).view(np.int32)
    write(tmp_path, "gptq", lambda tensors: tensors.update({f"{name}.qzeros": words}))
    found = SafetensorsCheckpoint(tmp_path)._int4_matrix(f"{name}.weight").zeros
    np.testing.assert_array_equal(found, np.repeat(zeros[:, None], 2, axis=1))


def test_an_order_that_was_never_filled_in_is_none(tmp_path):
    name = "model.layers.0.mlp.up_proj"
    expected = write(tmp_path, "gptq", lambda tensors: tensors[f"{name}.g_idx"].fill(0))
    checkpoint = SafetensorsCheckpoint(tmp_path)
    np.testing.assert_allclose(checkpoint.tensor(f"{name}.weight"), expected[f"{name}.weight"], rtol=1e-6)
    assert checkpoint.blocks(f"{name}.weight") is not None and checkpoint.storage == "INT4"


@pytest.mark.parametrize(("scheme", "part"), [("gptq", "scales"), ("awq", "scales"), ("compressed", "weight_scale")])
def test_scales_that_float16_rounds_are_rounded_in_blocks_only(scheme, part, tmp_path):
    """Stored as float32, and one far below what float16 can hold."""
    name, small = "model.layers.0.mlp.up_proj", np.float32(1e-9)

    def widen(tensors):
        scales = tensors[f"{name}.{part}"].astype(np.float32) * np.float32(1.0001)
        scales.reshape(-1)[0] = small
        tensors[f"{name}.{part}"] = scales

    write(tmp_path, scheme, widen)
    checkpoint = SafetensorsCheckpoint(tmp_path)
    matrix = checkpoint._int4_matrix(f"{name}.weight")
    spread = [np.repeat(x.astype(np.float32), GROUP, axis=1) for x in (matrix.scales, matrix.zeros)]
    expected = spread[0] * (matrix.codes - spread[1])
    assert matrix.scales[0, 0] == small and expected[0, :GROUP].any()
    np.testing.assert_array_equal(checkpoint.tensor(f"{name}.weight"), expected)
    stored = checkpoint.blocks(f"{name}.weight")
    assert stored is not None
    form = FORMATS[stored.storage]
    np.testing.assert_allclose(
        unpack(stored.rows, form, stored.block_bytes).values(form), expected, rtol=6e-4, atol=3e-7
    )


@pytest.mark.parametrize(("scheme", "part"), [("gptq", "scales"), ("awq", "scales"), ("compressed", "weight_scale")])
def test_scales_beyond_float16_have_values_and_blocks_say_why_not(scheme, part, tmp_path):
    name = "model.layers.0.mlp.up_proj"

    def enlarge(tensors, to):
        scales = tensors[f"{name}.{part}"].astype(np.float32)
        scales.reshape(-1)[0] = to
        tensors[f"{name}.{part}"] = scales

    write(tmp_path, scheme, lambda tensors: enlarge(tensors, 65519))
    assert SafetensorsCheckpoint(tmp_path).blocks(f"{name}.weight")
    write(tmp_path, scheme, lambda tensors: enlarge(tensors, -1e6))
    checkpoint = SafetensorsCheckpoint(tmp_path)
    assert np.abs(checkpoint.tensor(f"{name}.weight")).max() > 1e6
    with pytest.raises(InvalidParameter, match=r"dtype: .*65504.*layers\.0\.mlp\.up_proj.* 1e\+06.*use bfloat16"):
        checkpoint.blocks(f"{name}.weight")


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize(("scheme", "part"), [("gptq", "scales"), ("awq", "scales"), ("compressed", "weight_scale")])
def test_scales_that_are_not_finite_are_refused_in_blocks_too(scheme, part, wrong, tmp_path):
    name = "model.layers.0.mlp.up_proj"
    write(tmp_path, scheme, lambda tensors: tensors[f"{name}.{part}"].reshape(-1).put(3, wrong))
    checkpoint = SafetensorsCheckpoint(tmp_path)
    for read in (checkpoint.blocks, checkpoint.tensor):
        with pytest.raises(CorruptWeights, match=r"up_proj.*not finite"):
            read(f"{name}.weight")


@pytest.mark.parametrize(("scheme", "stored"), [("gptq", "g_idx"), ("compressed", "weight_g_idx")])
def test_inputs_sorted_by_importance_have_values_and_no_blocks(scheme, stored, tmp_path):
    """Each input looks its group up (act-order): weight = scale[group] * (code - zero[group])."""
    name, rng = "model.layers.0.mlp.up_proj", np.random.default_rng(5)
    order = rng.permutation(np.arange(64) // GROUP).astype(np.int32)
    in_runs = write(tmp_path, scheme)
    before = SafetensorsCheckpoint(tmp_path)._int4_matrix(f"{name}.weight")
    write(tmp_path, scheme, lambda tensors: tensors.update({f"{name}.{stored}": order}))
    checkpoint = SafetensorsCheckpoint(tmp_path)
    expected = np.empty_like(in_runs[f"{name}.weight"])
    for column, group in enumerate(order):
        scale = before.scales[:, group].astype(np.float32)
        expected[:, column] = scale * (before.codes[:, column].astype(np.float32) - before.zeros[:, group])
    np.testing.assert_allclose(checkpoint.tensor(f"{name}.weight"), expected, rtol=1e-6)
    assert checkpoint.blocks(f"{name}.weight") is None
    assert checkpoint.storage == "F32" and "INT4" not in checkpoint.storages
    assert choose_dtype("auto", checkpoint, "numba", "cpu").name == "float32"


def test_orders_and_parts_that_do_not_fit_are_named(tmp_path):
    name = "model.layers.0.mlp.up_proj"
    changes = [
        {f"{name}.g_idx": np.full(64, 2, np.int32)}, {f"{name}.g_idx": np.full(64, -1, np.int32)},
        {f"{name}.g_idx": np.zeros(40, np.int32)}, {f"{name}.g_idx": np.zeros(0, np.int32)},
        {f"{name}.g_idx": np.full(64, np.nan, np.float32)}, {f"{name}.g_idx": np.zeros((64, 1), np.int32)},
        {f"{name}.qweight": np.ones((8, 96), np.float32)}, {f"{name}.scales": np.ones((2, 95), np.float16)},
        {f"{name}.scales": np.ones((2, 96), np.int32)}, {f"{name}.qzeros": np.ones((2, 6, 2), np.int32)},
    ]  # fmt: skip
    for change in changes:
        write(tmp_path, "gptq", lambda tensors, change=change: tensors.update(change))
        checkpoint = SafetensorsCheckpoint(tmp_path)
        assert checkpoint.storage in ("INT4", "F32")
        with pytest.raises(CorruptWeights, match=r"up_proj.*do not fit"):
            checkpoint.tensor(f"{name}.weight")


@pytest.mark.parametrize("shape", [[np.inf, 64.0], [np.nan, 64.0], [96.0, 64.0], [96], [-96, 64], [0, 64], [95, 64]])
def test_shapes_that_no_layer_has_are_named(shape, tmp_path):
    name = "model.layers.0.mlp.up_proj"
    stored = np.array(shape, np.float32 if isinstance(shape[0], float) else np.int64)
    write(tmp_path, "compressed", lambda tensors: tensors.update({f"{name}.weight_shape": stored}))
    with pytest.raises(CorruptWeights, match=r"up_proj.*do not fit"):
        SafetensorsCheckpoint(tmp_path).tensor(f"{name}.weight")
