"""The hybrid in an engine: greedy and coupled text stay the plain text, alone and in a batch, whoever drafted."""

import pytest

from paceline.engine import build
from paceline.errors import InvalidParameter
from paceline.models.size import num_parameters
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all
from tests.fakes import small_config

PAIRS = {
    "suffix and a model, one at a time": {
        "model": "random-0",
        "options": {"drafters": ["suffix", {"method": "draft_model", "cost_ratio": 0.3}], "unite": False},
    },
    "suffix and a cheap model": {
        "model": "random-0",
        "options": {"drafters": ["suffix", {"method": "draft_model", "cost_ratio": 0.01}]},
    },
    "ngram, suffix and two models": {
        "options": {
            "drafters": [
                "ngram",
                {"method": "suffix", "mode": "tree"},
                {"method": "draft_model", "model": "random-1", "cost_ratio": 0.1},
                {"method": "draft_model", "model": "random-0", "cost_ratio": 0.2},
            ],
        },
        "num_draft_tokens": 12,
    },
}


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_text_is_the_plain_text(engine_for, pair, temperature):
    params = [SamplingParams(temperature=temperature, seed=i, max_tokens=40) for i in range(len(PROMPTS))]
    plain = run_all(engine_for({"method": "plain", "num_draft_tokens": 0}), params=params)
    drafted = run_all(engine_for({"method": "hybrid"} | PAIRS[pair]), params=params)
    assert [o.token_ids for o in drafted] == [o.token_ids for o in plain]
    assert sum(o.stats.num_accepted_tokens for o in drafted) > 0


def test_a_childs_model_may_be_stored_otherwise(engine_for, monkeypatch):
    asked, load = [], build.load

    def watched(name, config, progress):
        asked.append(config.dtype)
        return load(name, config, progress)

    monkeypatch.setattr(build, "load", watched)
    children = ["suffix", {"method": "draft_model", "model": "random-1", "dtype": "int8"}]
    engine_for({"method": "hybrid", "options": {"drafters": children}})
    engine_for({"method": "hybrid", "model": "random-1", "options": {"dtype": "int8"}})
    assert asked == ["int8", "int8"]


def test_a_model_costs_what_its_size_says(engine_for):
    hybrid = engine_for({"method": "hybrid", "model": "random-1"}).drafter
    assert [child.traits.cost_ratio for child in hybrid._children] == [0.0, 1.0]
    config = small_config()
    head = config.vocab_size * config.hidden_size
    assert num_parameters(small_config(tie_word_embeddings=False)) == num_parameters(config) + head


@pytest.mark.parametrize(
    ("child", "price"),
    [
        ({"method": "draft_model", "model": "random-1", "dtype": "float32"}, 2.0),
        ({"method": "draft_model", "model": "random-1", "dtype": "int8"}, 0.5),
        ({"method": "sparse_cache"}, 1.0),
        ({"method": "layer_skip", "exit_layer": 1}, 1 / small_config().num_hidden_layers),
        ({"method": "layer_skip", "exit_layer": 1, "cost_ratio": 0.4}, 0.4),
    ],
    ids=str,
)
def test_what_a_drafted_token_costs_is_known_of_every_drafter(engine_for, child, price):
    config = {"method": "hybrid", "options": {"drafters": ["suffix", child]}}
    hybrid = engine_for(config, dtype="bfloat16").drafter
    assert [each.traits.cost_ratio for each in hybrid._children] == [0.0, pytest.approx(price)]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"drafters": ["suffix", "draft_model"]}, "model"),
        ({"drafters": ["suffix", "nothing"]}, "drafter"),
        ({"drafters": ["suffix", "lookahead"]}, "drafters"),
        ({"drafters": ["suffix"]}, "drafters"),
    ],
)
def test_bad_options_are_refused_when_the_engine_is_built(engine_for, options, field):
    with pytest.raises(InvalidParameter, match=field):
        engine_for({"method": "hybrid", "options": options})
