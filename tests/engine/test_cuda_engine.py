"""An engine on the cuda executor, on CPU tensors: the torch executor's tokens, with picks drawn where logits are."""

import pytest

pytest.importorskip("torch")

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.setup.build import build_engine
from paceline.engine.setup.load import load_executor
from paceline.errors import InvalidParameter
from paceline.models.base import DrawsLaws
from paceline.models.cuda_executor import CudaModel, parallel
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource
from paceline.models.torch_executor import TorchModel
from paceline.speculation.policies import WhereFaster
from paceline.types import SamplingParams, silent
from tests.fakes import ByteTokenizer, RandomCheckpoint, small_config

from .conftest import PROMPTS, run_all

CHECKPOINT = RandomCheckpoint(small_config())
MIXED = [
    SamplingParams(temperature=0, max_tokens=24),
    SamplingParams(temperature=0.8, top_p=0.9, seed=5, max_tokens=24),
    SamplingParams(temperature=1.0, seed=6, max_tokens=24, repetition_penalty=1.2, frequency_penalty=0.1),
    SamplingParams(temperature=0.9, top_k=20, seed=7, max_tokens=24, logprobs=1),
]
"""The last one wants log-probabilities, so that its rows come to the host."""


@pytest.fixture(scope="module")
def models():
    ours, theirs = CudaModel(CHECKPOINT, "cpu", "float32", attention="by_position"), TorchModel(CHECKPOINT)
    return {model: LoadedModel(_source(), model) for model in (ours, theirs)}


def _source():
    return ModelSource("random", CHECKPOINT, ByteTokenizer())  # type: ignore[arg-type]


def answers(loaded, speculative, params):
    config = EngineConfig(kv_cache_memory_bytes=1 << 22, profile="none")
    engine = build_engine(loaded, config, SpeculativeConfig.of(speculative))
    found = run_all(engine, PROMPTS, params)
    return [(each.token_ids, each.outputs[0].finish_reason) for each in found], found


@pytest.mark.parametrize("speculative", [
    None,
    {"method": "ngram", "policy": "fixed", "num_draft_tokens": 4},
    {"method": "lookahead", "policy": "fixed", "num_draft_tokens": 6},
])  # fmt: skip
def test_greedy_and_seeded_text_is_the_torch_executors(models, speculative):
    (ours, _), (theirs, _) = (answers(loaded, speculative, MIXED) for loaded in models.values())
    assert ours == theirs


def test_p_over_q_by_name_is_judged_with_the_same_coins(models, monkeypatch):
    monkeypatch.setattr("paceline.engine.loop.engine.fresh_seed", lambda: 0)  # else each engine has coins of its own
    speculative = {"method": "ngram", "policy": "fixed", "num_draft_tokens": 4, "rule": "p/q"}
    (ours, _), (theirs, _) = (answers(loaded, speculative, MIXED) for loaded in models.values())
    assert ours == theirs


def test_only_requests_that_want_logits_get_them(models, monkeypatch):
    model, loaded = next(iter(models.items()))
    asked, draw = [], model.begin_drawn
    monkeypatch.setattr(model, "begin_drawn", lambda *given: asked.append(given[3]) or draw(*given))
    _, found = answers(loaded, None, MIXED)
    assert found[3].outputs[0].logprobs is not None
    wanted = [sum(each is None for each in questions) for questions in asked]
    assert max(wanted) == 1
    assert max(len(questions) for questions in asked) == 4


def test_a_broken_row_ends_its_request_alone(models, monkeypatch):
    model, loaded = next(iter(models.items()))
    launch, calls = model.launch, []

    def spoiled(rows, cache, taps=(), **how):
        launched = launch(rows, cache, taps, **how)
        if len(rows.logit_rows) == 2:
            launched.peaks[0, 1] = float("nan")
            calls.append(rows)
        return launched

    monkeypatch.setattr(model, "launch", spoiled)
    engine = build_engine(loaded, EngineConfig(kv_cache_memory_bytes=1 << 22, profile="none"), None)
    first, second = run_all(engine, PROMPTS[:2], SamplingParams(temperature=0, max_tokens=6, ignore_eos=True))
    assert calls
    assert first.outputs[0].finish_reason == "error"
    assert second.outputs[0].finish_reason == "length"


def test_the_device_chooses_the_executor():
    assert EngineConfig(device="cuda:0").chosen_executor == "cuda"
    assert EngineConfig(device="cuda", executor="torch").chosen_executor == "torch"
    assert EngineConfig(device="cuda", tensor_parallel_size=2).chosen_executor == "cuda"
    assert EngineConfig(device="cuda", pipeline_parallel_size=2).chosen_executor == "cuda"
    assert EngineConfig(tensor_parallel_size=2).chosen_executor == "torch"
    assert EngineConfig().chosen_executor == "auto"
    model = load_executor(CHECKPOINT, EngineConfig(executor="cuda", dtype="float32"), "small", silent)
    assert isinstance(model, CudaModel)
    assert isinstance(model, DrawsLaws)
    assert not isinstance(TorchModel(CHECKPOINT), DrawsLaws)


def test_several_processes_have_this_executor_each(monkeypatch):
    started = []
    monkeypatch.setattr(parallel, "launch_model", lambda *given, **options: started.append((given, options)))
    how = {"dtype": "float32", "tensor_parallel_size": 2, "deterministic": True}
    stages = {"pipeline_parallel_size": 2, "pipeline_layer_partition": (1, 2), "pipeline_head_share": 0.5}
    load_executor(CHECKPOINT, EngineConfig(executor="cuda", **how), "small", silent)
    load_executor(CHECKPOINT, EngineConfig(executor="cuda", **how, **stages), "small", silent)
    options = {"device": "cpu", "dtype": "float32", "num_threads": None, "deterministic": True}
    assert started == [
        ((CHECKPOINT, 2, 1), options | {"layer_partition": None, "head_share": 1.0}),
        ((CHECKPOINT, 2, 2), options | {"layer_partition": (1, 2), "head_share": 0.5}),
    ]
    with pytest.raises(InvalidParameter, match="deterministic"):
        load_executor(CHECKPOINT, EngineConfig(**how), "small", silent)


@pytest.mark.parametrize("field", [{"dtype": "int8"}, {"kv_cache_dtype": "float16"}])
def test_what_the_executor_does_not_know_is_refused_by_name(field):
    with pytest.raises(InvalidParameter, match="cuda executor"):
        load_executor(CHECKPOINT, EngineConfig(executor="cuda", **field), "small", silent)


def test_only_an_executor_that_hides_the_host_compares_both_ways_of_decoding(models):
    def policy_of(loaded, policy):
        config = EngineConfig(kv_cache_memory_bytes=1 << 22, profile="none")
        engine = build_engine(loaded, config, SpeculativeConfig("suffix", policy=policy))
        return engine.scheduler.length_policy.inner

    ours, theirs = models.values()
    assert isinstance(policy_of(ours, "auto"), WhereFaster) == ours.model.records_passes
    assert not isinstance(policy_of(ours, "fixed"), WhereFaster)
    assert not isinstance(policy_of(theirs, "auto"), WhereFaster)
