"""Passes recorded before the first request: those that requests then need, where passes are recorded."""

import pytest

pytest.importorskip("torch")

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.setup.build import build_engine
from paceline.engine.setup.warm_up import warm_up
from paceline.models.cuda_executor import CudaModel
from paceline.models.cuda_executor.graphs import EagerGraphs
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all
from tests.fakes import ByteTokenizer, RandomCheckpoint, small_config

CHECKPOINT = RandomCheckpoint(small_config())
NGRAM = SpeculativeConfig("ngram", policy="fixed", num_draft_tokens=3)


def engine_of(capture, attention="by_position"):
    model = CudaModel(CHECKPOINT, "cpu", "float32", attention=attention, capture=capture)
    source = ModelSource("random", CHECKPOINT, ByteTokenizer())  # type: ignore[arg-type]
    config = EngineConfig(kv_cache_memory_bytes=1 << 22, max_num_seqs=6, profile="none")
    return model, build_engine(LoadedModel(source, model), config, NGRAM)


def said(engine):
    params = [SamplingParams(temperature=t, seed=5, max_tokens=12, ignore_eos=True) for t in (0, 0.8, 0, 1, 0, 0.7)]
    prompts = (PROMPTS * 6)[: len(params)]
    return [output.token_ids for output in run_all(engine, prompts, params)]


def test_requests_find_their_passes_recorded_and_say_what_they_say_without():
    _, cold = engine_of(EagerGraphs())
    wanted, capture, told = said(cold), EagerGraphs(), []
    model, engine = engine_of(capture)
    warm_up(model, engine, lambda *progress: told.append(progress))
    recorded = capture.num_captured
    assert recorded == len(engine.cache.graphs) > 20
    assert told[0][1] == 0 and told[-1][1] == told[-1][2]
    assert said(engine) == wanted
    assert capture.num_captured == recorded
    assert engine.scheduler.pool.num_free == engine.scheduler.pool.num_pages


def test_nothing_is_run_where_passes_are_not_recorded(tiny):
    model, engine = engine_of(EagerGraphs(), "sdpa")
    before = model.passes.num_launched
    for one in (model, tiny.model):
        warm_up(one, engine, lambda *_: pytest.fail("there is nothing to tell of"))
    assert model.passes.num_launched == before
