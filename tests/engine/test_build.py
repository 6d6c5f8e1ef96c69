"""Which executor runs what, and what is refused with which way out."""

import pytest

from paceline.config import EngineConfig
from paceline.engine.build import load_executor, silent
from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.numba_executor.executor import NumbaModel
from tests.fakes import RandomCheckpoint, small_config

ODD = small_config(intermediate_size=100)
"""A width that the kernels do not cover."""


def test_auto_takes_the_fast_executor_where_it_can(tiny):
    model = load_executor(RandomCheckpoint(small_config(), 0), EngineConfig(dtype="float32"), "small", silent)
    assert isinstance(model, NumbaModel)


def test_auto_falls_back_to_torch_for_widths_that_the_kernels_do_not_cover():
    torch_executor = pytest.importorskip("paceline.models.torch_executor")
    model = load_executor(RandomCheckpoint(ODD), EngineConfig(dtype="float32"), "odd", silent)
    assert isinstance(model, torch_executor.TorchModel)


def test_numba_by_name_says_what_runs_the_model_instead():
    with pytest.raises(UnsupportedModel, match="torch"):
        load_executor(RandomCheckpoint(ODD), EngineConfig(executor="numba"), "odd", silent)


@pytest.mark.parametrize("field", [{"dtype": "int8"}, {"dtype": "w8a8"}, {"kv_cache_dtype": "float16"}])
def test_torch_refuses_what_only_the_kernels_know(field):
    pytest.importorskip("torch")
    with pytest.raises(InvalidParameter, match=next(iter(field))):
        load_executor(RandomCheckpoint(ODD), EngineConfig(executor="torch", **field), "odd", silent)


def test_the_cuda_executor_warns_where_it_runs_on_the_cpu():
    pytest.importorskip("paceline.models.cuda_executor")
    with pytest.warns(UserWarning, match="the cuda executor runs on the CPU"):
        load_executor(RandomCheckpoint(small_config()), EngineConfig(executor="cuda", dtype="float32"), "small", silent)


@pytest.mark.parametrize(
    ("dtype", "says"), [("auto", "converting tiny (once)"), ("int8", "converting tiny to int8 (once)")]
)
def test_a_conversion_names_the_dtype_that_was_asked_for(dtype, says, tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.models.numba_executor.weights.cache_dir", lambda: tmp_path)
    told: list[str] = []
    checkpoint, config = RandomCheckpoint(small_config()), EngineConfig(dtype=dtype, num_threads=1)
    load_executor(checkpoint, config, "tiny", lambda what, *_: told.append(what))
    assert says in told
