"""Drafts of a layer for multi-token prediction in the target's own files: found by name, and no text changes."""

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from paceline.config import EngineConfig
from paceline.engine.llm import LLM
from paceline.errors import InvalidParameter, ModelNotFound, UnsupportedModel
from paceline.models.files.safetensors_folder import SafetensorsCheckpoint
from paceline.models.heads.files import read_head
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor import weights
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource
from paceline.types import SamplingParams
from tests.fakes import ByteTokenizer, no_drafter_fails
from tests.models.conftest import configs, random_model
from tests.models.heads.prediction import with_prediction_layer

TEXT = list(range(5, 45))
PROMPTS = [TEXT, TEXT[:25], [*TEXT, 7, 8, 9], TEXT[::-1]]
EACH = [SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
        SamplingParams(temperature=0.9, top_p=0.95, seed=3, max_tokens=24, ignore_eos=True)] * 2  # fmt: skip


@pytest.fixture(scope="module", params=["qwen3_5_text", "glm4_moe"])
def folder(request, tmp_path_factory):
    """A model with such a layer: with recurrent layers, or with experts."""
    parent = tmp_path_factory.mktemp("predicting")
    model = random_model(request.param, configs()[request.param], 1)
    model.save_pretrained(parent / request.param)
    with_prediction_layer(request.param, parent / request.param, model)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "cache_dir", lambda: parent / "converted")
        yield parent / request.param


def loaded_from(folder):
    checkpoint = SafetensorsCheckpoint(folder)
    source = ModelSource("tiny", checkpoint, ByteTokenizer())  # type: ignore[arg-type]
    return LoadedModel(source, NumbaModel(checkpoint, dtype="float32"))


@pytest.fixture(scope="module")
def loaded(folder):
    return loaded_from(folder)


def llm_of(loaded, speculative=None, **config):
    return LLM.from_loaded(loaded, EngineConfig(kv_cache_memory_bytes=1 << 22, **config), speculative)


def texts(outputs):
    return [output.token_ids for output in outputs]


@pytest.fixture(scope="module")
def plain(loaded):
    return texts(llm_of(loaded).generate(PROMPTS, EACH))


@pytest.mark.parametrize("method", ["mtp", "head"])
@pytest.mark.parametrize("tree", ["chain", "dynamic"])
def test_texts_are_plain_decodings_after_hits_in_the_prefix_cache_too(loaded, plain, method, tree):
    spec = {"method": method, "num_speculative_tokens": 3, "policy": "fixed", "options": {"tree": tree}}
    llm = llm_of(loaded, spec)
    with no_drafter_fails():
        for _ in range(3):
            outputs = llm.generate(PROMPTS, EACH)
            assert texts(outputs) == plain
            assert all(output.stats.num_draft_tokens > 20 for output in outputs)
    assert max(output.metrics.num_cached_tokens for output in outputs) > 0


def test_drafts_of_common_tokens_change_no_text(loaded, plain):
    spec = {"method": "mtp", "num_speculative_tokens": 3, "policy": "fixed", "options": {"draft_vocab_size": 40}}
    llm, drafted = llm_of(loaded, spec), []
    propose = llm.engine.drafter.propose

    def noted(contexts):
        trees = propose(contexts)
        drafted.extend(token for tree in trees for token in tree.tokens)
        return trees

    llm.engine.drafter.propose = noted
    assert texts(llm.generate(PROMPTS, EACH)) == plain
    assert len(drafted) > 20
    assert max(drafted) < 40


def test_only_a_prediction_layer_has_its_number_of_tokens_chosen(loaded):
    spec = {"method": "mtp", "options": {"draft_vocab_size": 0}}
    with pytest.raises(InvalidParameter, match="draft_vocab_size: 0 is not 1 or more"):
        llm_of(loaded, spec)


def test_long_prompts_are_read_along_in_chunks(loaded, plain):
    llm = llm_of(loaded, {"method": "mtp", "policy": "goodput"}, max_num_batched_tokens=16)
    assert texts(llm.generate(PROMPTS, EACH)) == plain


def test_a_layer_that_knows_the_next_token_has_its_drafts_accepted(tmp_path, monkeypatch):
    """Where the next token depends on the last one alone, a layer that hands its embedding on predicts all others."""
    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path / "converted")
    model = random_model("qwen3_5_text", configs()["qwen3_5_text"], 1)
    model.save_pretrained(tmp_path / "model")
    with_prediction_layer("qwen3_5_text", tmp_path / "model", model)
    [path] = (tmp_path / "model").glob("*.safetensors")
    tensors = load_file(path)
    for name, values in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight")):
            values *= 0.001
    size = len(tensors["model.norm.weight"])
    tensors["mtp.fc.weight"] = np.concatenate([np.eye(size), np.zeros((size, size))], axis=1).astype(np.float32)
    tensors["mtp.pre_fc_norm_embedding.weight"] *= 0  # norm weights less one
    tensors["mtp.norm.weight"] = tensors["model.norm.weight"].copy()
    save_file(tensors, path)
    llm = llm_of(loaded_from(tmp_path / "model"), {"method": "mtp", "num_speculative_tokens": 3, "policy": "fixed"})
    stats = [output.stats for output in llm.generate(PROMPTS, EACH[0])]
    assert sum(one.num_accepted_tokens for one in stats) > 0.9 * sum(one.num_draft_tokens for one in stats)
    assert min(one.acceptance_length for one in stats) > 3


def test_the_targets_own_path_names_its_layer_and_no_other_command_reads_it_as_a_head(loaded, plain, folder):
    spec = {"method": "mtp", "model": str(folder), "num_speculative_tokens": 2, "policy": "fixed"}
    assert texts(llm_of(loaded, spec).generate(PROMPTS, EACH)) == plain
    with pytest.raises(UnsupportedModel, match="is a model"):
        read_head(folder)


def test_a_model_without_such_a_layer_says_so(folder, tmp_path):
    name = folder.name
    random_model(name, configs()[name], 1).save_pretrained(tmp_path / name)
    with pytest.raises(ModelNotFound, match="no mtp head is known for tiny"):
        llm_of(loaded_from(tmp_path / name), "mtp")
