"""One tiny random model for all engine tests, and a way to build engines around it."""

import time

import pytest

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.setup import build
from paceline.engine.setup.build import build_engine
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor import weights
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource
from paceline.types import SamplingParams
from tests.fakes import ByteTokenizer, RandomCheckpoint, run_to_end, small_config

PROMPTS = ["the cat sat on the mat, the cat", "abcabcabc", "x", "one two three two one two three"]


def load_random(seed: int) -> LoadedModel:
    checkpoint = RandomCheckpoint(small_config(), seed)
    source = ModelSource(f"random-{seed}", checkpoint, ByteTokenizer())  # type: ignore[arg-type]
    return LoadedModel(source, NumbaModel(checkpoint, "float32", num_threads=2))


@pytest.fixture(scope="package")
def tiny(tmp_path_factory):
    """A loaded random model; the name ``random-N`` loads another one as draft model."""
    folder = tmp_path_factory.mktemp("converted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "cache_dir", lambda: folder)
        patch.setattr(build, "load", lambda name, config, progress: load_random(int(name.removeprefix("random-"))))
        yield load_random(0)


@pytest.fixture
def engine_for(tiny):
    """(speculative, drafter, clock, **engine config) -> an engine; `drafter` replaces the one the config names."""

    def make(speculative=None, drafter=None, clock=time.perf_counter, **config):
        spec = SpeculativeConfig.of(speculative)
        settings = EngineConfig(**({"kv_cache_memory_bytes": 1 << 22} | config))
        return build_engine(tiny, settings, spec, drafter=drafter, clock=clock)

    return make


@pytest.fixture(scope="package")
def plain_answers(tiny):
    """(prompts, params) -> what `run_all` gives without drafts; each is computed once."""
    known = {}

    def answers(prompts=PROMPTS, params=None):
        if (key := repr((prompts, params))) not in known:
            engine = build_engine(tiny, EngineConfig(kv_cache_memory_bytes=1 << 22), None)
            known[key] = run_all(engine, prompts, params)
        return known[key]

    return answers


def run_all(engine, prompts=PROMPTS, params=None):
    """Answers in the order of the prompts, all requests in flight together."""
    params = params or SamplingParams(temperature=0, max_tokens=40)
    each = params if isinstance(params, list) else [params] * len(prompts)
    for number, (prompt, own) in enumerate(zip(prompts, each, strict=True)):
        ids = list(prompt.encode()) if isinstance(prompt, str) else prompt
        engine.add_request(str(number), ids, own)
    finished = run_to_end(engine)
    return [finished[str(number)] for number in range(len(prompts))]
