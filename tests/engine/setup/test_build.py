"""Which executor runs what, what is refused with which way out, and the default size of a step."""

from dataclasses import replace
from math import inf

import pytest

from paceline.config import EngineConfig
from paceline.engine.setup.build import build_engine
from paceline.engine.setup.load import load_executor
from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.architecture.experts import Experts
from paceline.models.architecture.size import balanced_context, num_parameters
from paceline.models.numba_executor.executor import NumbaModel
from paceline.types import silent
from tests.fakes import RandomCheckpoint, mixture_config, small_config

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


@pytest.mark.parametrize(("seats", "budget"), [(64, 128), (100, 200), (1000, 512)])
def test_the_default_budget_prefills_at_the_best_rate_and_leaves_half_to_prompts(engine_for, seats, budget):
    assert engine_for(max_num_seqs=seats).scheduler.config.max_num_batched_tokens == budget


@pytest.mark.parametrize(("experts", "rows"), [(Experts(8, 2, True), 128), (Experts(64, 4, True), 512)])
def test_every_expert_gets_enough_rows(experts, rows, tmp_path, monkeypatch):
    monkeypatch.setattr("paceline.models.numba_executor.weights.cache_dir", lambda: tmp_path)
    config = mixture_config("qwen3_moe", experts=experts, num_hidden_layers=1)
    assert NumbaModel(RandomCheckpoint(config), "float32", num_threads=1).saturating_rows == rows


def test_attention_counts_by_its_share_of_the_work(engine_for, tiny):
    config = tiny.model.config
    tables = 1 if config.tie_word_embeddings else 2
    weights = num_parameters(config) - tables * config.vocab_size * config.hidden_size
    per_token = 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim
    assert engine_for().scheduler.config.balanced_context == pytest.approx(weights / per_token)
    windows = replace(config, windows=(8,) * config.num_hidden_layers)
    assert balanced_context(windows) == inf


def test_other_executors_keep_the_default_budget(tiny):
    torch_executor = pytest.importorskip("paceline.models.torch_executor")
    loaded = replace(tiny, model=torch_executor.TorchModel(tiny.source.checkpoint, dtype="float32"))
    engine = build_engine(loaded, EngineConfig(dtype="float32", kv_cache_memory_bytes=1 << 20), None)
    assert engine.scheduler.config.max_num_batched_tokens == 512
    assert engine.scheduler.config.balanced_context == inf
