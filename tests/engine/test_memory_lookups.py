"""A memory of answers: the text is plain decoding's, and passes are saved where the model says what it said before."""

import numpy as np
import pytest

from paceline.drafters.lookup.memory import MemoryInfo, write_memory
from paceline.errors import InvalidParameter
from paceline.training.memory import build_memory
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all
from tests.fakes import ByteTokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=40)
SEEDED = SamplingParams(temperature=0.7, seed=3, max_tokens=40)


@pytest.fixture
def fingerprint(monkeypatch):
    monkeypatch.setattr(ByteTokenizer, "vocabulary_fingerprint", lambda self: "bytes", raising=False)


def remembered(path, answers, fingerprint="bytes"):
    """The options of a drafter that remembers `answers`."""
    texts = [np.array(answer) for answer in answers for _ in range(2)]
    write_memory(path, build_memory(texts, MemoryInfo(fingerprint, 131, 5, 1)))
    return {"memory": str(path), "max_cached_tokens": 0}


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("mode", ["path", "tree"])
def test_the_text_is_plain_decodings(engine_for, plain_answers, tmp_path, fingerprint, params, mode):
    plain = plain_answers(params=params)
    answers = [[*prompt.encode()[-3:], *output.token_ids] for prompt, output in zip(PROMPTS, plain, strict=True)]
    options = remembered(tmp_path / "m", answers) | {"mode": mode}
    engine = engine_for({"method": "suffix", "options": options, "policy": "fixed"})
    drafted = run_all(engine, params=params)
    assert [output.token_ids for output in drafted] == [output.token_ids for output in plain]
    passes = [sum(output.stats.num_target_passes for output in outputs) for outputs in (drafted, plain)]
    assert passes[0] < passes[1] / 2


def test_a_hybrid_reads_it_too(engine_for, plain_answers, tmp_path, fingerprint):
    plain = plain_answers()
    answers = [[*prompt.encode()[-3:], *output.token_ids] for prompt, output in zip(PROMPTS, plain, strict=True)]
    child = {"method": "suffix", **remembered(tmp_path / "m", answers)}
    model = {"method": "draft_model", "model": "random-1", "cost_ratio": 0.3}
    drafted = run_all(engine_for({"method": "hybrid", "options": {"drafters": [child, model]}, "policy": "fixed"}))
    assert [output.token_ids for output in drafted] == [output.token_ids for output in plain]


def test_a_memory_of_another_model_is_refused_when_the_engine_is_made(engine_for, tmp_path, fingerprint):
    options = remembered(tmp_path / "m", [[1, 2, 3]], fingerprint="others")
    with pytest.raises(InvalidParameter, match="another vocabulary"):
        engine_for({"method": "suffix", "options": options})
