"""Rehearsed rounds: prices and predictions by hand, and a rehearsal of real engines on a tiny model."""

from dataclasses import replace

import pytest

from paceline.config import EngineConfig
from paceline.engine.llm import LLM
from paceline.evaluation.advise.predict import predict
from paceline.evaluation.advise.prices import MeasuredPrices, RehearsedPrices, stands_of
from paceline.evaluation.advise.rehearsal import (
    PLAIN,
    SCRIPTED,
    Opening,
    Rehearsal,
    Timed,
    expected_turns,
    joined,
    known_lengths,
    rehearse,
)
from paceline.evaluation.advise.replay import Rounds, Text, expected_rounds
from paceline.scheduling.profile import Profile
from paceline.types import SamplingParams

FLAT = Profile("m", "f", "float32", "x", 1, "here", {0: {1: 1.0, 64: 1.0}}, {0: {1: 1.0, 64: 1.0}})
SLOPED = Profile("m", "f", "float32", "x", 1, "here", {0: {1: 1.0, 64: 1.0}, 100: {1: 2.0, 64: 2.0}}, FLAT.seconds)
TEXTS = [Text((1,) * 10, (2,) * 41) for _ in range(8)]


def rehearsal(plain: float = 1.0, drafted: float = 2.0, opening: float = 0.0, context: float = 30) -> Rehearsal:
    """A round takes 1 s and 0.1 s for each drafted token, alone; twice that for four requests."""
    known, rounds = [], {PLAIN: [], "x": []}
    for size in (1, 4):
        scale = 1 if size == 1 else 2
        known += [Timed(scale * (1 + 0.1 * nodes / size), size, nodes, context) for nodes in range(0, 8 * size + 1)]
        rounds[PLAIN] += [Timed(scale * plain, size, 0, context)] * 5
        rounds["x"] += [Timed(scale * drafted, size, 3 * size, context)] * 5
    openings = {name: [Opening(own[0].seconds + 100 * opening, 1, 100)] for name, own in rounds.items()}
    for name, own in rounds.items():
        openings[name].append(Opening(own[-1].seconds + 400 * opening, 4, 400))
    return Rehearsal(rounds | {SCRIPTED: known}, openings | {SCRIPTED: []})


def prices(has_model: bool = False, profile: Profile = FLAT, **how) -> RehearsedPrices:
    return RehearsedPrices(stands_of(rehearsal(**how), profile), "x", has_model)


def in_threes(text: Text, kept: int = 3) -> Rounds:
    return expected_rounds(text.num_decoded, lambda place: (3, [1.0] * kept + [0.0] * (3 - kept)))


def test_a_round_costs_what_its_draft_and_everything_besides_take():
    own = prices()
    assert own.plain(1, 30) == pytest.approx(1.0)
    assert own.round(1, 3, 30) == pytest.approx(2.0), "as it was timed"
    assert own.round(1, 5, 30) == pytest.approx(2.2), "two more drafted tokens"
    assert own.round(1, 0, 30) == pytest.approx(1.7), "a lookup that finds nothing has looked"
    assert prices(has_model=True).round(1, 0, 30) == pytest.approx(1.0), "a model that is not asked costs nothing"
    assert own.round(4, 12, 30) == pytest.approx(4.0)
    assert own.round(2, 6, 30) == pytest.approx(2 + 2 / 3), "between one and four requests"


def test_a_round_that_drafts_nothing_costs_what_such_rounds_took():
    rounds = rehearsal().rounds
    idle = {"x": [*rounds["x"], *[Timed(1.1, 1, 0, 30)] * 20]}  # most rounds of this lookup find nothing
    found = RehearsedPrices(stands_of(Rehearsal({**rounds, **idle}, rehearsal().openings), FLAT), "x")
    assert found.round(1, 0, 30) == pytest.approx(1.1)
    assert found.round(1, 3, 30) == pytest.approx(2.0), "as the rounds that draft"


def test_a_turn_that_was_disturbed_does_not_count():
    quiet = [Timed(1.0, 1, 0, 30, turn) for turn in range(10) for _ in range(3)]
    busy = [Timed(9.0, 1, 0, 30, 10) for _ in range(3)]
    known = [replace(one, num_nodes=nodes) for one in quiet + busy for nodes in (0, 1)]
    found = Rehearsal({PLAIN: quiet + busy, SCRIPTED: known}, {PLAIN: [Opening(1.0, 1, 100)], SCRIPTED: []})
    assert RehearsedPrices(stands_of(found, FLAT)).plain(1, 30) == pytest.approx(1.0)


def test_no_round_takes_less_than_a_plain_step():
    own = prices(drafted=0.4)  # timed while the machine was faster
    assert own.round(1, 3, 30) == pytest.approx(1.0)
    assert own.round(1, 0, 30) == pytest.approx(1.0)


def test_longer_contexts_cost_what_the_profile_says():
    own = prices(profile=SLOPED)
    assert own.plain(1, 80) == pytest.approx(1.5)
    assert own.round(1, 3, 80) == pytest.approx(2.5)


def test_the_prompt_is_read_once():
    own = prices(opening=0.01)
    assert own.opening(1, 50) == pytest.approx(0.5)
    assert own.opening(4, 200) == pytest.approx(2.0)
    assert own.plain_opening(2, 10) == pytest.approx(0.1)


def test_a_rehearsed_prediction_by_hand():
    found = predict("x", 3, "float32", TEXTS, [in_threes(text) for text in TEXTS], prices())
    assert found.predicted == pytest.approx(40 / (10 * 2.0))
    assert found.break_even == pytest.approx(2.0)


def test_in_company_the_last_rounds_are_for_those_who_go_on():
    texts = [Text((1,) * 10, (2,) * 41, family=str(i // 2)) for i in range(8)]
    rounds = [in_threes(text, kept=3 if i % 2 else 0) for i, text in enumerate(texts)]
    found = predict("x", 3, "float32", texts, rounds, prices(), batch=2)
    assert rounds[0].count == 40
    plain, both, alone = 40 * (4 / 3), 10 * (8 / 3), 30 * 2.0
    assert found.predicted == pytest.approx(plain / (both + alone), rel=1e-3)
    assert found.low is not None and found.high is not None
    assert found.low < found.predicted < found.high


def test_rounds_are_remembered_in_order_where_they_are_sure():
    rounds = Rounds(6)
    for size, kept in ((3, 2), (1, 0), (0, 0), (3, 0)):
        rounds.add(size, kept, True)
    assert rounds.in_order() == [(3, 2), (1, 0), (0, 0), (3, 0)]
    likely = expected_rounds(40, lambda place: (1, [0.5]))
    assert len(likely.in_order()) == pytest.approx(40 / 1.5, abs=1)
    assert likely.in_order()[0] == pytest.approx((1, 0.5), abs=0.02)


def test_lengths_go_from_none_to_the_longest():
    assert known_lengths(1, 4) == [0, 1, 2, 3, 4]
    assert known_lengths(3, 8) == list(range(25)), "every step of a pass, wherever its tiles end"
    assert known_lengths(16, 8)[32:] == [32, 48, 64, 96, 128]


def test_a_step_between_even_lengths_is_not_a_line():
    def seconds(nodes: int) -> float:
        return float(1 + (nodes + 3) // 4)  # tiles of four rows

    known = [Timed(seconds(nodes), 3, nodes, 30) for nodes in known_lengths(3, 8)]
    plain = [Timed(seconds(0), 3, 0, 30)]
    openings = {PLAIN: [Opening(1.0, 3, 100)], SCRIPTED: []}
    stand = stands_of(Rehearsal({PLAIN: plain, SCRIPTED: known}, openings), FLAT)[3]
    assert [stand.known(nodes, 30) for nodes in range(25)] == [seconds(nodes) for nodes in range(25)]


def test_real_engines_are_rehearsed(tiny):
    llm = LLM.from_loaded(tiny, EngineConfig(dtype="float32", kv_cache_memory_bytes=1 << 21, profile="none"))
    texts = [Text(tuple(b"abcabcabc"), (2,) * 41)] * 4
    specs = {"x": {"method": "ngram", "num_draft_tokens": 3, "policy": "fixed"}}
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    found = rehearse(llm, specs, texts, params, [2], 3, turns=3)
    assert set(found.rounds) == {PLAIN, SCRIPTED, "x"}
    assert {one.num_requests for one in found.rounds["x"]} == {1, 2}
    assert {one.num_nodes for one in found.rounds[SCRIPTED] if one.num_requests == 2} == set(known_lengths(2, 3))
    assert {one.num_nodes for one in found.rounds[PLAIN]} == {0}
    assert all(one.seconds > 0 for rounds in found.rounds.values() for one in rounds)
    assert len(found.openings["x"]) == 6
    own = RehearsedPrices(stands_of(found, FLAT), "x")
    assert min(own.round(2, 3, 20), own.plain(1, 20)) > 0, "more is not said of times on a busy machine"
    longer = joined(found, rehearse(llm, specs, texts, params, [2], 3, turns=1, first_turn=3))
    assert {one.turn for one in longer.rounds["x"]} == {0, 1, 2, 3}
    assert len(longer.openings["x"]) == 8


def test_profiles_price_what_was_not_rehearsed():
    assert MeasuredPrices(FLAT).round(1, 3, 0) == MeasuredPrices(FLAT).plain(1, 0) == 1.0


@pytest.mark.parametrize(
    ("done", "elapsed", "seconds", "turns"),
    [(0, 0.0, 120, 16), (0.5, 60.0, 120, 4), (1, 10.0, 120, 12), (2, 2.0, 120, 16), (8.2, 200.0, 120, 9)],
)
def test_the_time_left_is_that_of_the_turns_that_still_begin(done, elapsed, seconds, turns):
    assert expected_turns(16, done, elapsed, seconds) == turns
