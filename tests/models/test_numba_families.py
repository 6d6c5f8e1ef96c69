"""Every family on the fast executor: transformers' logits from files of both formats, rows independent of company."""

import dataclasses

import numpy as np
import pytest
import torch

from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.files.safetensors_folder import SafetensorsCheckpoint
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor import TorchModel

from .converter import ARCHITECTURES, convert
from .test_torch_executor import FAMILIES
from .tiny import random_tokens

pytestmark = pytest.mark.usefixtures("own_weight_cache")
PAGES, TOKENS = (3, 0, 5, 1), random_tokens(50)
TILED = ("qwen3_5_text", "qwen3_5_text-even", "qwen3_5_moe_text", "qwen3_next")
UNKNOWN_TO_GGUF = ("bos_token_id", "eos_token_ids")


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tiny_models):
    folder, theirs = tiny_models[request.param]
    return NumbaModel(SafetensorsCheckpoint(folder), "float32", num_threads=2), theirs


def run(model, cache, *parts):
    return model.forward(build_rows(list(parts)), cache).logits.copy()


def test_logits_are_those_of_transformers(family):
    model, theirs = family
    with torch.no_grad():
        want = theirs(torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(run(model, model.new_cache(6), Part(PAGES, 0, TOKENS)), want, atol=1e-4)


def test_a_row_is_bitwise_the_same_alone_in_chunks_and_in_company(family):
    model, _ = family
    whole, cache, others = run(model, model.new_cache(6), Part(PAGES, 0, TOKENS)), model.new_cache(12), (9, 6, 8, 7)
    rows = []
    for first, last in ((0, 1), (1, 2), (2, 9), (9, 31), (31, 50)):
        company = Part(others, first, TOKENS[::-1][first:last], logits="none")
        rows.append(run(model, cache, company, Part(PAGES, first, TOKENS[first:last])))
    assert np.array_equal(whole, np.concatenate(rows))


def test_every_branch_of_a_tree_is_bitwise_the_path_run_alone(family):
    model, _ = family
    tokens, parents, cache = [5, 9, 9, 3, 8, 1], [-1, -1, 0, 0, 1, 3], model.new_cache(6)
    run(model, cache, Part(PAGES, 0, TOKENS[:29]))
    branched = run(model, cache, Part(PAGES, 29, tokens, parents))
    for row, parent in enumerate(parents):
        path, node = [tokens[row]], parent
        while node >= 0:
            path.insert(0, tokens[node])
            node = parents[node]
        alone = run(model, model.new_cache(6), Part(PAGES, 0, TOKENS[:29] + path, logits="last"))
        assert np.array_equal(alone[0], branched[row])


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in TILED])
def test_a_converted_model_is_the_same_model(name, tiny_models, tmp_path):
    original = SafetensorsCheckpoint(tiny_models[name][0])
    ours = GGUFCheckpoint(convert(tmp_path / "model.gguf", tiny_models[name][0]))
    assert ours.names() == original.names()
    for tensor in ours.names():
        far = 1e-5 if "A_log" in tensor else 0  # GGUF has -e^x of it
        np.testing.assert_allclose(ours.tensor(tensor), original.tensor(tensor), far, far, err_msg=tensor)
    assert_same_but_for_rounding(ours.config, original.config)


@pytest.mark.parametrize("executor", [NumbaModel, TorchModel])
@pytest.mark.parametrize("name", TILED)
def test_a_converted_model_with_its_heads_in_another_order_has_the_same_logits(name, executor, tiny_models, tmp_path):
    checkpoint = GGUFCheckpoint(convert(tmp_path / "model.gguf", tiny_models[name][0]))
    assert checkpoint.config.recurrence.tiled == (name != "qwen3_next")
    model = executor(checkpoint, dtype="float32")
    with torch.no_grad():
        want = tiny_models[name][1](torch.tensor([TOKENS])).logits[0].numpy()
    np.testing.assert_allclose(run(model, model.new_cache(6), Part(PAGES, 0, TOKENS)), want, atol=2e-4)


def assert_same_but_for_rounding(ours, want):
    """Settings are 32-bit floats in GGUF, whose Llama is Mistral too; it lacks some windows, and Gemma's scale."""
    unsaid = {
        "qwen2": "windows",
        "starcoder2": "windows",
        "dots1": "windows",
        "gemma2": "attention_scale",
        "gemma3_text": "attention_scale",
    }
    for field in dataclasses.fields(want):
        if field.name in (*UNKNOWN_TO_GGUF, "model_type", unsaid.get(want.model_type)):
            continue
        found, expected = getattr(ours, field.name), getattr(want, field.name)
        numeric = isinstance(expected, float) or (field.name == "rope_inv_freq_scale" and expected is not None)
        assert found == (pytest.approx(expected, rel=1e-6) if numeric else expected), field.name
    if want.model_type != "granitemoehybrid" or want.recurrence:  # Granite 4 with attention alone is Granite there
        assert ARCHITECTURES[ours.model_type] == ARCHITECTURES[want.model_type]


@pytest.mark.parametrize("name", ["phi3", "gpt2", "qwen2_moe", "llama", "glm4", "qwen3_5_text", "gemma4_text-mixture"])
def test_blocks_of_stacked_tensors_are_the_rows_of_their_part(name, tiny_models, tmp_path):
    import gguf

    checkpoint = GGUFCheckpoint(convert(tmp_path / "model.gguf", tiny_models[name][0], storage="Q8_0"))
    seen = 0
    for tensor in checkpoint.names():
        stored = checkpoint.blocks(tensor)
        if stored is not None and stored.storage == "Q8_0":
            values = gguf.quants.dequantize(stored.rows, gguf.GGMLQuantizationType.Q8_0)
            np.testing.assert_array_equal(values, checkpoint.tensor(tensor))
            seen += 1
    assert seen >= 8
