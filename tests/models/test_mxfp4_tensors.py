"""Folders of gpt-oss with experts in 4-bit floats: the blocks of a GGUF file with the same weights, and its logits."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from paceline.errors import CorruptWeights
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.files.safetensors_folder import SafetensorsCheckpoint
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor import TorchModel

from .converter import convert
from .tiny import SIZES, random_tokens

pytestmark = pytest.mark.usefixtures("own_weight_cache")
TOKENS = random_tokens(40)
KIND = gguf.GGMLQuantizationType.MXFP4
PARTS = ("gate_up_proj", "down_proj")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder with heads of 32, which products of blocks need, in floats."""
    import torch
    import transformers as t

    config = t.GptOssConfig(
        **SIZES | {"num_attention_heads": 2, "num_key_value_heads": 1}, head_dim=32, num_local_experts=6,
        num_experts_per_tok=3, sliding_window=9, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(5)
    model = t.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
    folder = tmp_path_factory.mktemp("whole")
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def packed(whole, tmp_path_factory):
    """The same model with its experts in 4 bits, and a folder of floats with the values that these then hold."""
    folder, rounded = tmp_path_factory.mktemp("packed"), tmp_path_factory.mktemp("rounded")
    tensors, values = {}, load_file(whole / "model.safetensors")
    for name, stored in values.items():
        if not name.endswith(PARTS):
            tensors[name] = stored
            continue
        rows = gguf.quants.quantize(np.ascontiguousarray(stored.swapaxes(1, 2)), KIND)
        values[name] = np.ascontiguousarray(gguf.quants.dequantize(rows, KIND).swapaxes(1, 2))
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = neighbours(rows)
    save_file(tensors, folder / "model.safetensors")
    save_file(values, rounded / "model.safetensors")
    config = json.loads((whole / "config.json").read_text())
    quantization = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}
    (folder / "config.json").write_text(json.dumps(config | quantization))
    (rounded / "config.json").write_text(json.dumps(config))
    return folder, rounded


def neighbours(rows):
    """GGUF's rows [experts, out, bytes] as blocks with neighbouring codes in a byte, and scales."""
    blocks = rows.reshape(*rows.shape[:2], -1, 17)
    low, high = blocks[..., 1:] & 15, blocks[..., 1:] >> 4
    codes = np.concatenate([low, high], axis=-1)
    return np.ascontiguousarray(codes[..., ::2] | codes[..., 1::2] << 4), np.ascontiguousarray(blocks[..., 0])


def logits(model):
    return model.forward(build_rows([Part(range(4), 0, TOKENS)]), model.new_cache(4)).logits.copy()


def test_values_and_blocks_are_those_of_gguf(packed, tmp_path):
    folder, rounded = packed
    ours, floats = SafetensorsCheckpoint(folder), SafetensorsCheckpoint(rounded)
    theirs = GGUFCheckpoint(mixed_gguf(tmp_path / "model.gguf", rounded))
    assert ours.storage == "MXFP4" and ours.names() == floats.names() == theirs.names()
    seen = 0
    for name in ours.names():
        np.testing.assert_array_equal(ours.tensor(name), floats.tensor(name))
        blocks = ours.blocks(name)
        if blocks is not None:
            np.testing.assert_array_equal(blocks.rows, theirs.blocks(name).rows)
            assert blocks.storage == theirs.blocks(name).storage
            seen += 1
    assert seen == 2 * 6 * 3


def mixed_gguf(path: Path, folder: Path) -> Path:
    """The model as a GGUF file with its experts as MXFP4, the rest in floats, as converters write it."""
    return convert(path, folder, storage=lambda name: "MXFP4" if "_exps" in name else "F32")


def test_a_folder_says_what_a_gguf_file_says(packed, tmp_path):
    folder, rounded = packed
    ours = NumbaModel(SafetensorsCheckpoint(folder), "auto", num_threads=1)
    theirs = NumbaModel(GGUFCheckpoint(mixed_gguf(tmp_path / "model.gguf", rounded)), "auto", num_threads=1)
    assert ours.dtype_choice.name == theirs.dtype_choice.name == "gguf"
    assert np.array_equal(logits(ours), logits(theirs))
    exact = logits(TorchModel(SafetensorsCheckpoint(rounded)))
    assert np.array_equal(logits(TorchModel(SafetensorsCheckpoint(folder))), exact)
    assert np.median((logits(ours) - exact).std(axis=1) / exact.std(axis=1)) < 0.06


@pytest.mark.parametrize("damage", ["scales", "shape", "kind", "exponent"])
def test_parts_that_do_not_fit_are_refused(damage, packed, tmp_path):
    tensors = load_file(packed[0] / "model.safetensors")
    name = next(name for name in tensors if name.endswith("down_proj_scales"))
    if damage == "scales":
        del tensors[name]
    elif damage == "exponent":
        tensors[name][0, 0, 0] = 255
    else:
        tensors[name] = tensors[name][:, :-1] if damage == "shape" else tensors[name].astype(np.float32)
    save_file({key: np.ascontiguousarray(value) for key, value in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((packed[0] / "config.json").read_text())
    with pytest.raises(CorruptWeights, match="finite" if damage == "exponent" else "do not fit"):
        checkpoint = SafetensorsCheckpoint(tmp_path)
        checkpoint.tensor("model.layers.0.mlp.experts.0.down_proj.weight")
