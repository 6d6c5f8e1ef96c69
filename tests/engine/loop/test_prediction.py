"""Predictions and wishes about drafts: they change how many passes an answer takes, never the answer."""

import pytest

from paceline.engine.loop.prediction import Prediction
from paceline.errors import InvalidParameter
from paceline.types import SamplingParams
from tests.engine.conftest import PROMPTS, run_all


def asked(**changes):
    return SamplingParams(**({"temperature": 0, "max_tokens": 30, "ignore_eos": True} | changes))


def predicting(engine_for, answers, change):
    return [asked(prediction=change(list(answer.token_ids))) for answer in answers]


@pytest.mark.parametrize("speculative", [None, "ngram", "suffix", {"method": "hybrid", "model": "random-1"}])
def test_a_right_prediction_saves_passes_and_changes_nothing(engine_for, speculative):
    plain = run_all(engine_for(), params=asked())
    params = predicting(engine_for, plain, list)
    outputs = run_all(engine_for(speculative), params=params)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]
    for output in outputs:
        sample = output.outputs[0]
        assert output.stats.num_target_passes <= 6
        assert sample.num_predicted_tokens == sample.num_accepted_predictions >= 20
        assert output.provenance.count("drafted") >= 20


def test_a_half_right_one_is_left_and_found_again(engine_for):
    plain = run_all(engine_for(), params=asked())
    params = predicting(engine_for, plain, lambda ids: [*ids[:8], 1, 2, 3, 4, *ids[10:]])
    outputs = run_all(engine_for(), params=params)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]
    for output in outputs:
        sample = output.outputs[0]
        assert 0 < sample.num_accepted_predictions < sample.num_predicted_tokens


def test_it_teaches_the_drafters_records_nothing(engine_for):
    engine = engine_for("ngram")
    before = engine.scheduler.draft_rates.rates(3)
    plain = run_all(engine_for(), PROMPTS[2:3], asked(max_tokens=8))
    run_all(engine, PROMPTS[2:3], predicting(engine_for, plain, lambda ids: [*ids[:2], *[1] * 9]))
    assert engine.scheduler.draft_rates.asked >= 0
    wrong = run_all(engine_for("ngram"), PROMPTS[2:3], asked(prediction=[1] * 20, max_tokens=2))
    assert wrong[0].outputs[0].num_accepted_predictions == 0
    assert engine.scheduler.draft_rates.rates(3)[0] == pytest.approx(before[0], abs=0.3)


def test_where_an_answer_stands_in_its_prediction():
    prediction = Prediction([1, 2, 3, 4, 5, 6, 7, 8])
    assert prediction.draft(3) == (1, 2, 3)
    prediction.follow([1, 2])
    assert prediction.draft(2) == (3, 4)
    prediction.follow([9])
    assert prediction.wanted == 0
    prediction.follow([4, 5, 6])
    assert prediction.draft(9) == (7, 8)
    prediction.judge(2, 0)
    prediction.judge(4, 1)
    prediction.judge(2, 1)
    assert prediction.wanted == 1
    prediction.follow([7, 8])
    assert prediction.wanted == 0


def test_a_request_chooses_how_it_is_drafted_for(engine_for):
    wishes = [False, {"method": "none"}, {"num_draft_tokens": 2}, {"num_draft_tokens": 3, "policy": "fixed"}]
    engine = engine_for({"method": "ngram", "num_draft_tokens": 6, "policy": "fixed"})
    prompts = ["abcabcabcabcabcabc"] * 4
    outputs = run_all(engine, prompts, [asked(speculative=wish) for wish in wishes])
    assert len({o.token_ids for o in outputs}) == 1
    assert [o.stats.num_draft_tokens for o in outputs[:2]] == [0, 0]
    assert 0 < len(outputs[2].stats.drafted_per_level) <= 2
    assert 0 < len(outputs[3].stats.drafted_per_level) <= 3


def test_rules_by_request(engine_for):
    engine = engine_for({"method": "ngram", "num_draft_tokens": 4, "policy": "fixed"})
    each = [asked(temperature=0.8, seed=3, speculative={"rule": rule}) for rule in ("auto", "coupled", "p/q")]
    outputs = run_all(engine, PROMPTS[1:2] * 3, each)
    plain = run_all(engine_for(), PROMPTS[1:2], asked(temperature=0.8, seed=3))
    assert outputs[0].token_ids == outputs[1].token_ids == plain[0].token_ids


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"rule": "typical"}, "speculative.rule"),
        ({"rule": "nonsense"}, "speculative.rule"),
        ({"method": "suffix"}, "speculative.method"),
        ({"policy": "goodput"}, "speculative.policy"),
        ({"num_draft_tokens": 65}, "speculative.num_draft_tokens"),
        ({"depth": 3}, "speculative.depth"),
        (3, "speculative"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused(engine_for, wish, field):
    with pytest.raises(InvalidParameter) as caught:
        run_all(engine_for("ngram"), PROMPTS[:1], asked(speculative=wish))
    assert caught.value.field == field
