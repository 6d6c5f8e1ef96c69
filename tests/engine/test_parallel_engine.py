"""A parallel run in the engine: it says what one process says, drafted or not, and ends when it is told to."""

import os

import pytest

from paceline import LLM
from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine import llm as llm_module
from paceline.engine.setup.build import build_engine
from paceline.engine.setup.load import load_executor
from paceline.errors import EngineDead, InvalidParameter
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource
from paceline.types import SamplingParams, silent
from tests.fakes import ByteTokenizer, RandomCheckpoint, small_config

from .conftest import PROMPTS, run_all

pytest.importorskip("torch")

GREEDY = SamplingParams(temperature=0, max_tokens=40)
SAMPLED = [SamplingParams(temperature=0.7, seed=seed, max_tokens=30) for seed in range(len(PROMPTS))]
SPECULATIVE = [
    None,
    {"method": "ngram", "policy": "fixed"},
    {"method": "suffix", "options": {"mode": "tree", "min_token_prob": 0.1}, "policy": "fixed"},
]


def loaded(**config) -> LoadedModel:
    checkpoint = RandomCheckpoint(small_config(), seed=1)
    source = ModelSource("random", checkpoint, ByteTokenizer())  # type: ignore[arg-type]
    engine = EngineConfig(dtype="float32", kv_cache_memory_bytes=1 << 22, **config)
    return LoadedModel(source, load_executor(checkpoint, engine, "random", silent))


@pytest.fixture(scope="module")
def stages():
    model = loaded(pipeline_parallel_size=2)
    yield model
    model.close()


def test_layers_are_shared_by_what_the_head_counts():
    checkpoint = RandomCheckpoint(small_config(num_hidden_layers=6, vocab_size=2000), seed=1)
    for share, layers in ((1.0, [4, 2]), (0.0, [3, 3])):
        config = EngineConfig(dtype="float32", pipeline_parallel_size=2, pipeline_head_share=share)
        with load_executor(checkpoint, config, "random", silent) as model:
            assert [len(stage) for stage in model.layout.stages] == layers


def answers(model, speculative, params):
    config = EngineConfig(kv_cache_memory_bytes=1 << 22)
    outputs = run_all(build_engine(model, config, SpeculativeConfig.of(speculative)), params=params)
    return [output.token_ids for output in outputs], sum(output.stats.num_accepted_tokens for output in outputs)


@pytest.mark.parametrize("speculative", SPECULATIVE, ids=["plain", "ngram", "tree"])
def test_greedy_text_is_one_process_s(stages, speculative):
    ours, accepted = answers(stages, speculative, GREEDY)
    plain, _ = answers(loaded(executor="torch"), None, GREEDY)
    assert ours == plain
    assert bool(accepted) == bool(speculative)


@pytest.mark.parametrize("rule", ["auto", "coupled"])
def test_a_seed_means_the_same_on_any_number_of_processes(stages, rule):
    """Draws are counted by seed and position and made by rank 0 alone; the other ranks only hold keys and values."""
    drafted = {"method": "ngram", "rule": rule, "policy": "fixed"}
    assert answers(stages, drafted, SAMPLED)[0] == answers(loaded(executor="torch"), drafted, SAMPLED)[0]


def test_an_llm_ends_its_processes(monkeypatch):
    monkeypatch.setattr(llm_module, "load", lambda name, config, progress: loaded(pipeline_parallel_size=2))
    with LLM("random", speculative=None, kv_cache_memory_bytes=1 << 22) as llm:
        pids = llm._loaded.model.workers.pids
        text = llm.generate(list(b"abc"), GREEDY)[0].token_ids
    assert len(text) == 40 or text[-1] == 130
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    with pytest.raises(EngineDead, match="closed"):
        llm.generate(list(b"abc"), GREEDY)


@pytest.mark.parametrize(
    "wrong",
    [{"tensor_parallel_size": 0}, {"pipeline_parallel_size": 2, "executor": "numba"}, {"tensor_parallel_size": 5}],
)
def test_what_cannot_run_in_parallel_is_refused(wrong):
    with pytest.raises(InvalidParameter, match=r"tensor_parallel_size|executor"):
        loaded(**wrong)
