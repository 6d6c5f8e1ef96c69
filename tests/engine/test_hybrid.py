"""The hybrid in an engine: greedy and coupled text stay the plain text, alone and in a batch, whoever drafted."""

from itertools import count

import pytest

from paceline.drafters.base import BaseDrafter
from paceline.engine.setup import build
from paceline.errors import InvalidParameter
from paceline.models.architecture.size import num_parameters
from paceline.sampling import TokenTree
from paceline.speculation import DrafterTraits
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
    ticks = count(0, 1e-3).__next__  # what is drafted must not depend on how busy the machine is
    drafted = run_all(engine_for({"method": "hybrid", "policy": "fixed"} | PAIRS[pair], clock=ticks), params=params)
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


def shorter(scored: int | None = None, num_layers: int | None = None) -> float:
    """Weights that a pass over a part of the target reads, over all."""
    config = small_config()
    layers, head = config.num_hidden_layers, config.vocab_size * config.hidden_size
    assert config.tie_word_embeddings
    of_layers = num_parameters(config) - head - config.hidden_size  # the norm before the head
    kept = of_layers * (num_layers or layers) / layers + config.hidden_size
    return (kept + head * (scored or config.vocab_size) / config.vocab_size) / num_parameters(config)


@pytest.mark.parametrize(
    ("child", "price"),
    [
        ({"method": "draft_model", "model": "random-1", "dtype": "float32"}, 2.0),
        ({"method": "draft_model", "model": "random-1", "dtype": "int8"}, 0.5),
        ({"method": "sparse_cache"}, 1.0),
        ({"method": "sparse_cache", "draft_vocab_size": 31}, shorter(scored=31)),
        ({"method": "layer_skip", "exit_layer": 1}, shorter(num_layers=1)),
        ({"method": "layer_skip", "exit_layer": 1, "draft_vocab_size": 31}, shorter(scored=31, num_layers=1)),
        ({"method": "layer_skip", "exit_layer": 1, "cost_ratio": 0.4}, 0.4),
    ],
    ids=str,
)
def test_what_a_drafted_token_costs_is_known_of_every_drafter(engine_for, child, price):
    config = {"method": "hybrid", "options": {"drafters": ["suffix", child]}}
    hybrid = engine_for(config, dtype="bfloat16").drafter
    assert [each.traits.cost_ratio for each in hybrid._children] == [0.0, pytest.approx(price, rel=1e-4)]


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


class Reader(BaseDrafter):
    """Chooses to read for 50 s at its first three drafts, by a clock that goes on by a second whenever it is read.

    Args:
        tells: whether it says what it has chosen.
    """

    name = "reader"
    traits = DrafterTraits(estimates=True, chooses=True, cost_ratio=0.1)

    def __init__(self, tells: bool) -> None:
        self._tells, self.now, self.num_asked, self.chosen_seconds = tells, 0.0, 0, 0.0

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    def propose(self, contexts):
        self.num_asked += 1
        spent = 50.0 if self.num_asked <= 3 else 0.0
        self.now += spent
        self.chosen_seconds = spent * self._tells
        return [TokenTree((7,), (-1,), chances=(0.01,)) for _ in contexts]


@pytest.mark.parametrize(("tells", "is_asked"), [(True, True), (False, False)])
def test_what_a_drafter_chose_to_spend_once_keeps_nobody_from_asking_it(engine_for, tells, is_asked):
    reader = Reader(tells)
    engine = engine_for({"method": "ngram"}, drafter=reader, clock=reader.clock)
    run_all(engine, ["a chat"], SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
    before = reader.num_asked
    run_all(engine, ["a text that repeats itself"], SamplingParams(temperature=0, max_tokens=60, ignore_eos=True))
    assert (reader.num_asked - before > 3) == is_asked
