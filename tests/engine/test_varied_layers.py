"""Layers of different sizes in the engine: drafts, trees and skipped layers change nothing a model says."""

import pytest

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.engine.setup.build import build_engine
from paceline.models.loaded import LoadedModel
from paceline.models.numba_executor import weights
from paceline.models.numba_executor.executor import NumbaModel
from paceline.models.resolve import ModelSource
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all
from tests.fakes import ByteTokenizer, RandomCheckpoint, varied_config

LONG = "the cat sat on the mat, and the hat, and the cat sat on the hat. " * 2
PARAMS = [SamplingParams(temperature=t, seed=1, max_tokens=30, ignore_eos=True) for t in (0, 0.9, 0, 0, 0, 0.9)]
DRAFTERS = {
    "ngram": {"method": "ngram", "num_draft_tokens": 4},
    "trees": {"method": "suffix", "num_draft_tokens": 8, "options": {"mode": "tree"}},
    "skipped layers": {"method": "layer_skip", "num_draft_tokens": 3, "options": {"skip_layers": [2, 3]}},
    "fewer layers": {"method": "layer_skip", "num_draft_tokens": 3, "options": {"exit_layer": 2}},
}


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "cache_dir", lambda: folder)
        checkpoint = RandomCheckpoint(varied_config())
        source = ModelSource("varied", checkpoint, ByteTokenizer())  # type: ignore[arg-type]
        yield LoadedModel(source, NumbaModel(checkpoint, "float32", num_threads=2))


def answers(varied, speculative, prompts):
    """What is said to `prompts`, and how many drafted tokens were taken; the second prompt shares a prefix of pages."""
    config = EngineConfig(kv_cache_memory_bytes=1 << 22, profile="none")
    engine = build_engine(varied, config, SpeculativeConfig.of(speculative))
    outputs = run_all(engine, prompts, PARAMS[: len(prompts)])
    return [output.token_ids for output in outputs], sum(output.stats.num_accepted_tokens for output in outputs)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_drafts_change_nothing_such_a_model_says(varied, drafter):
    prompts = [LONG, LONG + "x", *PROMPTS]
    plain, _ = answers(varied, None, prompts)
    drafted, accepted = answers(varied, {"policy": "fixed"} | DRAFTERS[drafter], prompts)
    assert drafted == plain and accepted > 0
    alone = [answers(varied, None, [prompt])[0][0] for prompt in (prompts[0], prompts[2])]
    assert alone == [plain[0], plain[2]]
