"""Folders of 8 bits: the numbers of PyTorch's own types, times scales of a matrix, of rows and of blocks."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from paceline.errors import CorruptWeights, UnsupportedModel
from paceline.models.dtypes import choose_dtype
from paceline.models.files.byte_tensors import ByteScheme
from paceline.models.files.safetensors_folder import SafetensorsCheckpoint
from tests.fakes import RandomCheckpoint

from .test_int4_tensors import CONFIG, HF

CT = {"quant_method": "compressed-tensors", "format": "float-quantized"}
WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel"}
FORMS = {
    "matrix": ({"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}, "weight_scale_inv"),
    "blocks": ({"quant_method": "fp8", "weight_block_size": [32, 48]}, "weight_scale_inv"),
    "rows": (CT | {"config_groups": {"group_0": {"weights": WEIGHTS}}}, "weight_scale"),
    "integers": (
        CT | {"format": "int-quantized", "config_groups": {"a": {"weights": {"num_bits": 8, "type": "int"}}}},
        "weight_scale",
    ),
}
NAME = "model.layers.0.mlp.up_proj.weight"


def write(folder, form, change=None):
    """A folder whose linear layers are 8-bit floats, and the values that they hold."""
    quantization, part = FORMS[form]
    checkpoint, tensors, expected = RandomCheckpoint(CONFIG), {}, {}
    make = torch.Generator().manual_seed(0)
    for name in checkpoint.names():
        values = torch.from_numpy(checkpoint.tensor(name))
        if "_proj." not in name:
            tensors[name] = values
            continue
        kind, (rows, columns) = torch.int8 if form == "integers" else torch.float8_e4m3fn, values.shape
        codes = (20 * values).to(kind)
        shape = {"matrix": (), "blocks": (-(-rows // 32), -(-columns // 48))}.get(form, (rows, 1))
        scale = torch.rand(shape, generator=make) / 20
        wide = (
            scale.repeat_interleave(32, 0)[:rows].repeat_interleave(48, 1)[:, :columns] if form == "blocks" else scale
        )
        tensors[name], tensors[name.removesuffix("weight") + part] = codes, scale
        expected[name] = (codes.float() * wide).numpy()
    if change is not None:
        change(tensors)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(HF | {"quantization_config": quantization}))
    return expected


def test_every_byte_is_pytorchs_number():
    codes = np.arange(256, dtype=np.uint8)[None]
    want = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(ByteScheme().widened("x", codes, np.ones(1, np.float32)), want)


@pytest.mark.parametrize("form", FORMS)
def test_layers_are_widened_with_their_scales(form, tmp_path):
    expected, checkpoint = write(tmp_path, form), SafetensorsCheckpoint(tmp_path)
    assert len(expected) == 21
    for name, values in expected.items():
        np.testing.assert_allclose(checkpoint.tensor(name), values, rtol=1e-6)
        assert checkpoint.blocks(name) is None
    assert checkpoint.storage == ("I8" if form == "integers" else "F8_E4M3")
    assert choose_dtype("auto", checkpoint, "numba", "cpu").name == "bfloat16"


@pytest.mark.parametrize(
    ("form", "change", "match"),
    [
        ("blocks", lambda t: t.pop(NAME + "_scale_inv"), "up_proj.weight_scale_inv"),
        ("blocks", lambda t: t.update({NAME + "_scale_inv": torch.ones(2, 2)}), r"scale of shape \(2, 2\)"),
        ("rows", lambda t: t.update({NAME + "_scale": torch.full((96, 1), torch.inf)}), "not finite"),
        ("matrix", lambda t: t[NAME].view(torch.uint8)[0].fill_(127), "not finite"),
    ],
)
def test_damaged_layers_are_named(form, change, match, tmp_path):
    write(tmp_path, form, change)
    with pytest.raises(CorruptWeights, match=match):
        SafetensorsCheckpoint(tmp_path).tensor(NAME)


def test_without_a_scheme_they_are_refused(tmp_path):
    write(tmp_path, "matrix")
    (tmp_path / "config.json").write_text(json.dumps(HF))
    with pytest.raises(UnsupportedModel, match="F8_E4M3"):
        SafetensorsCheckpoint(tmp_path).tensor(NAME)
    turned = FORMS["rows"][0] | {"transform_config": {"config_groups": {}}}
    shifted = CT | {"config_groups": {"a": {"weights": WEIGHTS | {"symmetric": False}}}}
    for unknown in (CT, turned, shifted):
        (tmp_path / "config.json").write_text(json.dumps(HF | {"quantization_config": unknown}))
        with pytest.raises(UnsupportedModel, match=r"compressed-tensors.*float-quantized"):
            SafetensorsCheckpoint(tmp_path)
