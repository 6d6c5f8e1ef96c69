"""A target's own layer for multi-token prediction: found in its files, and computed as transformers computes it."""

import shutil

import numpy as np
import pytest
import torch

from paceline.models.files.safetensors_folder import SafetensorsCheckpoint
from paceline.models.heads.build import make_net
from paceline.models.heads.prediction import head_in
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource
from paceline.models.rows import Part, build_rows
from paceline.models.torch_executor import TorchModel
from tests.fakes import ByteTokenizer

from ..tiny import random_tokens
from .prediction import DEEPSEEK, QWEN, with_prediction_layer

pytestmark = pytest.mark.usefixtures("own_weight_cache")
PAGES, TOKENS = (3, 0, 5, 1), random_tokens(40)


@pytest.fixture(scope="module", params=(*QWEN, *DEEPSEEK))
def predicting(request, tiny_models, tmp_path_factory):
    """(folder of a model with such a layer, its reference)."""
    torch.manual_seed(len(request.param))
    folder = tmp_path_factory.mktemp("predicting") / request.param
    shutil.copytree(tiny_models[request.param][0], folder)
    return folder, with_prediction_layer(request.param, folder, tiny_models[request.param][1])


def loaded_from(folder, executor=NumbaModel, dtype="float32"):
    source = ModelSource("tiny", SafetensorsCheckpoint(folder), ByteTokenizer())  # type: ignore[arg-type]
    return LoadedModel(source, executor(source.checkpoint, dtype=dtype))


@pytest.fixture(scope="module", params=[NumbaModel, TorchModel])
def net(request, predicting):
    target = loaded_from(predicting[0], request.param)
    return make_net(head_in(target.source), target), predicting[1]


def test_logits_and_states_are_those_of_transformers(net):
    ours, reference = net
    hidden = np.random.default_rng(0).normal(size=(len(TOKENS), 64)).astype(np.float32)
    logits, states = reference(TOKENS, torch.from_numpy(hidden))
    found = ours.forward(build_rows([Part(PAGES, 0, TOKENS)]), hidden, ours.new_cache(6))
    np.testing.assert_allclose(found.hidden, states, atol=1e-4)
    np.testing.assert_allclose(found.logits, logits, atol=1e-4)
