"""What an engine says of its own steps: right by a clock that its passes move, and without a trace in the engine."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from paceline.config import EngineConfig
from paceline.engine.setup.pass_costs import pass_costs
from paceline.errors import EngineDead
from paceline.placement.tokens import TokenProfile


class Timed:
    """A model whose passes take a millisecond per row and two more, by its own clock."""

    def __init__(self, model, fails=False, more=None):
        self._model, self._fails, self._more, self.now = model, fails, more or {}, 0.0

    def __getattr__(self, name):
        return getattr(self._model, name)

    def clock(self):
        return self.now

    def forward(self, rows, cache, taps=()):
        if self._fails:
            raise ValueError("no such rows")
        self.now += 0.002 + 0.001 * len(rows.token_ids) + self._more.get(len(rows.token_ids), 0.0)
        return self._model.forward(rows, cache, taps)


def test_steps_are_timed_and_the_engine_is_left_alone(tiny, engine_for):
    engine, model = engine_for(max_num_seqs=16), Timed(tiny.model)
    config = EngineConfig(max_num_seqs=16, profile="none")
    profile = TokenProfile(**pass_costs(engine, replace(tiny, model=model), config, model.clock))
    assert profile.seats == 16 and profile.kv_tokens == engine.scheduler.pool.num_pages * 16
    for requests in (1, 4, 10, 16):
        assert profile.pass_seconds(requests, requests) == pytest.approx(0.002 + 0.001 * requests)
    for rows in (1, 8, 16, 40):
        assert profile.pass_seconds(0, 1, 0, rows) == pytest.approx(0.002 + 0.001 * rows)
    assert not engine.has_unfinished_requests and engine.metrics.num_passes == 0


def test_few_rows_may_take_longer_than_more_of_them(tiny, engine_for):
    """As two rows do in torch, whose products of four are others."""
    engine, model = engine_for(max_num_seqs=16), Timed(tiny.model, more={2: 0.004})
    config = EngineConfig(max_num_seqs=16, profile="none")
    seconds = pass_costs(engine, replace(tiny, model=model), config, model.clock)["seconds"][0]
    assert [seconds[requests] for requests in (1, 2, 4, 8)] == pytest.approx([0.003, 0.008, 0.006, 0.010])


def test_a_model_that_cannot_run_says_why(tiny, engine_for):
    model = Timed(tiny.model, fails=True)
    with pytest.raises(EngineDead, match="no such rows"):
        pass_costs(engine_for(), replace(tiny, model=model), EngineConfig(profile="none"), model.clock)


def test_what_was_tuned_goes_first(tiny, engine_for, monkeypatch):
    tuned = SimpleNamespace(seconds={0: {1: 0.5}}, prefill_seconds={}, segment_seconds={}, step_overhead=None)
    monkeypatch.setattr("paceline.engine.setup.pass_costs.find_profile", lambda loaded, config: tuned)
    assert pass_costs(engine_for(), tiny, EngineConfig())["seconds"] == {0: {1: 0.5}}
