"""A target's own layer for multi-token prediction: found in its files, and computed as transformers computes it."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from paceline.errors import CorruptWeights
from paceline.models.cuda_executor.model import CudaModel
from paceline.models.files.gguf_file import GGUFCheckpoint
from paceline.models.files.safetensors_folder import SafetensorsCheckpoint
from paceline.models.heads.build import make_net
from paceline.models.heads.prediction import head_in
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor import TorchModel
from tests.fakes import ByteTokenizer

from ..converter import convert
from ..tiny import random_tokens
from .prediction import DEEPSEEK, MIMO, QWEN, with_prediction_layer

pytestmark = pytest.mark.usefixtures("own_weight_cache")
PAGES, TOKENS = (3, 0, 5, 1), random_tokens(40)


def made(name, tiny_models, parent):
    """(folder of a model with a layer for multi-token prediction, its reference)."""
    folder, theirs = tiny_models[name]
    torch.manual_seed(len(name))
    return shutil.copytree(folder, parent / name), with_prediction_layer(name, parent / name, theirs)


@pytest.fixture(scope="module", params=(*QWEN, *DEEPSEEK, *MIMO))
def predicting(request, tiny_models, tmp_path_factory):
    return made(request.param, tiny_models, tmp_path_factory.mktemp("predicting"))


def loaded(checkpoint, executor=NumbaModel, dtype="float32"):
    source = ModelSource("tiny", checkpoint, ByteTokenizer())  # type: ignore[arg-type]
    return LoadedModel(source, executor(checkpoint, dtype=dtype))


def net_of(checkpoint, executor=NumbaModel, dtype="float32"):
    target = loaded(checkpoint, executor, dtype)
    return make_net(head_in(target.source), target)


def states(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 64)).astype(np.float32)


def cuda_model(checkpoint, dtype):
    return CudaModel(checkpoint, "cpu", dtype, attention="by_position")


@pytest.fixture(scope="module", params=[NumbaModel, TorchModel, cuda_model])
def net(request, predicting):
    checkpoint = SafetensorsCheckpoint(predicting[0])
    if request.param is cuda_model and checkpoint.config.recurrence:
        pytest.skip("recurrent layers have no kernels without Triton")
    return net_of(checkpoint, request.param), predicting[1]


def test_logits_and_states_are_those_of_transformers(net):
    ours, reference = net
    hidden = states(len(TOKENS))
    logits, fed_on = reference(TOKENS, torch.from_numpy(hidden))
    found = ours.forward(build_rows([Part(PAGES, 0, TOKENS)]), hidden, ours.new_cache(6))
    np.testing.assert_allclose(found.hidden, fed_on, atol=1e-4)
    np.testing.assert_allclose(found.logits, logits, atol=1e-4)


def test_chains_are_those_of_passes_one_after_the_other(net):
    ours, _ = net
    others, cache, twin = (9, 6, 8, 7), ours.new_cache(12), ours.new_cache(12)
    parts = [Part(PAGES, 0, TOKENS[:30], logits="last"), Part(others, 0, TOKENS[10:25], logits="last")]
    hidden = states(45)
    drafted = ours.draft_chains(build_rows(parts), hidden, cache, 4)
    texts = (PAGES, TOKENS[:30], hidden[:30]), (others, TOKENS[10:25], hidden[30:])
    for request, (pages, tokens, fed) in enumerate(texts):
        text, given = list(tokens), fed
        for level in range(4):
            rows = build_rows([Part(pages, len(text) - len(given), text[len(text) - len(given) :], logits="last")])
            found = ours.forward(rows, given, twin)
            likeliest, given = int(found.logits[0].argmax()), found.hidden[-1:].copy()
            chances = np.exp(found.logits[0] - found.logits[0].max())
            assert drafted.tokens[request, level] == likeliest
            assert drafted.top_probs[request, level] == pytest.approx(1 / chances.sum(), rel=1e-4)
            text.append(likeliest)


@pytest.mark.parametrize("name", ["qwen3_5_text-even", "qwen3_next", "glm4_moe", "glm4_moe-large"])
def test_a_layer_in_a_gguf_file_is_the_same_layer(name, tiny_models, tmp_path):
    folder = made(name, tiny_models, tmp_path)[0]
    ours, original = (
        checkpoint.prediction_layer()
        for checkpoint in (GGUFCheckpoint(convert(tmp_path / "model.gguf", folder)), SafetensorsCheckpoint(folder))
    )
    assert ours.names() == original.names()
    for tensor in ours.names():
        np.testing.assert_array_equal(ours.tensor(tensor), original.tensor(tensor), err_msg=tensor)


def test_a_model_without_such_a_layer_has_no_head_in_it(tiny_models):
    assert head_in(loaded(SafetensorsCheckpoint(tiny_models["qwen3_5_text"][0])).source) is None


def test_the_layer_is_stored_as_its_target_is(tiny_models, tmp_path):
    """Rounded, the layer's logits are near those that are not, and the target's tables are not stored twice."""
    folder, reference = made("qwen3_5_text", tiny_models, tmp_path)
    target = loaded(SafetensorsCheckpoint(folder), NumbaModel, "w8a8")
    net = make_net(head_in(target.source), target)
    own, shared = (model.shared_weights for model in (net._layer, target.model))
    assert own.head is shared.head and own.embedding is shared.embedding
    hidden = states(len(TOKENS))
    logits, _ = reference(TOKENS, torch.from_numpy(hidden))
    found = net.forward(build_rows([Part(PAGES, 0, TOKENS)]), hidden, net.new_cache(6)).logits
    assert np.abs(found - logits).max() < 0.1 * np.abs(logits).max()
    assert np.abs(found - logits).max() > 1e-4


def test_a_damaged_layer_is_named(tiny_models, tmp_path):
    folder, _ = made("glm4_moe", tiny_models, tmp_path)
    [path] = folder.glob("*.safetensors")
    save_file({n: x for n, x in load_file(path).items() if not n.endswith("layers.2.hnorm.weight")}, path)
    with pytest.raises(CorruptWeights, match=r"tensors are missing, first model.layers.2.hnorm.weight"):
        head_in(loaded(SafetensorsCheckpoint(folder)).source)
