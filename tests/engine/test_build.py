"""Which executor runs what, and what is refused with which way out."""

import pytest

from paceline.config import EngineConfig
from paceline.engine.build import load_executor, silent
from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.numba_executor.executor import NumbaModel
from tests.fakes import RandomCheckpoint, small_config

GPT2 = small_config("gpt2", norm="layer", mlp="gelu_tanh", position_embedding="learned", num_key_value_heads=6)


def test_auto_takes_the_fast_executor_where_it_can(tiny):
    model = load_executor(RandomCheckpoint(small_config(), 0), EngineConfig(dtype="float32"), "small", silent)
    assert isinstance(model, NumbaModel)


def test_auto_falls_back_to_torch_for_other_families():
    torch_executor = pytest.importorskip("paceline.models.torch_executor")
    model = load_executor(RandomCheckpoint(GPT2), EngineConfig(dtype="float32"), "gpt2", silent)
    assert isinstance(model, torch_executor.TorchModel)


def test_numba_by_name_says_what_runs_the_model_instead():
    with pytest.raises(UnsupportedModel, match="torch"):
        load_executor(RandomCheckpoint(GPT2), EngineConfig(executor="numba"), "gpt2", silent)


@pytest.mark.parametrize("field", [{"dtype": "int8"}, {"dtype": "w8a8"}, {"kv_cache_dtype": "float16"}])
def test_torch_refuses_what_only_the_kernels_know(field):
    pytest.importorskip("torch")
    with pytest.raises(InvalidParameter, match=next(iter(field))):
        load_executor(RandomCheckpoint(GPT2), EngineConfig(executor="torch", **field), "gpt2", silent)
