"""A mixture of experts in the engine: drafts change nothing it says, under any company and policy."""

import pytest

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.setup.build import build_engine
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor import weights
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all
from tests.fakes import ByteTokenizer, RandomCheckpoint, mixture_config

GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "cache_dir", lambda: folder)
        checkpoint = RandomCheckpoint(mixture_config())
        source = ModelSource("mixture", checkpoint, ByteTokenizer())  # type: ignore[arg-type]
        yield LoadedModel(source, NumbaModel(checkpoint, "float32", num_threads=2))


def answers(mixture, speculative, prompts=PROMPTS):
    config = EngineConfig(kv_cache_memory_bytes=1 << 22, profile="none")
    engine = build_engine(mixture, config, SpeculativeConfig.of(speculative))
    return [output.token_ids for output in run_all(engine, prompts, GREEDY)]


@pytest.mark.parametrize("policy", ["fixed", "goodput", "cascade"])
def test_drafts_change_nothing_a_mixture_says(mixture, policy):
    alone = [answers(mixture, None, [prompt])[0] for prompt in PROMPTS]
    assert answers(mixture, {"method": "ngram", "num_draft_tokens": 4, "policy": policy}) == alone
