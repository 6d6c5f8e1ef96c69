"""Traces of real answers in the simulator: what is recorded is what happens, at any length."""

import json

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.placement.acceptance import SameRate, Trace
from paceline.placement.serving_simulator import ServingModel, TokenRequest, simulate_serving
from paceline.speculation import CostProfile, Fixed

RNG = np.random.default_rng(0)


def always(places, size, run):
    return [(size, [1.0] * run + [0.0] * (size - run)) for _ in range(places)]


def serve(trace, k, num_output=13):
    cost = CostProfile({1: 0.01, 2: 0.02})
    return simulate_serving([TokenRequest(0.0, 8, num_output)], ServingModel(cost, length=Fixed(k), acceptance=trace))


@pytest.mark.parametrize(("k", "tokens", "rows"), [(1, 2, 2), (2, 3, 3), (3, 3, 4), (8, 3, 5)])
def test_a_trace_serves_every_length(k, tokens, rows):
    result = serve(Trace([always(12, 4, 2)]), k)
    assert result.num_passes == 1 + 12 // tokens
    assert result.tbt[0] == pytest.approx(0.01 * rows), "what is not drafted is not priced"


def test_requests_take_answers_in_turns_and_begin_anew_where_they_end():
    trace = Trace([always(3, 2, 2), always(3, 2, 0)])
    assert [trace.draft(request, said, 8, RNG) for request in (0, 1, 2) for said in (1, 9)] == [
        (2, 2), (2, 2), (2, 0), (2, 0), (2, 2), (2, 2)
    ]  # fmt: skip


def test_chances_are_chances():
    trace = Trace([[(2, [0.5, 1.0])]])
    stood = [trace.draft(0, 1, 2, RNG)[1] for _ in range(4000)]
    assert set(stood) == {0, 2}
    assert np.mean(stood) == pytest.approx(1.0, abs=0.07)
    assert SameRate(0.0).draft(0, 1, 3, RNG) == (3, 0)


def test_files_of_an_advice(tmp_path):
    path = tmp_path / "speculation_profile.json"
    one = {"draft": "ngram", "trace": [always(2, 1, 1), []]}
    path.write_text(json.dumps({"profiles": [{"draft": "x", "trace": None}, one]}))
    assert Trace.read(path).draft(0, 1, 4, RNG) == (1, 1)
    assert Trace.read(path, "ngram").answers == [[(1, [1.0]), (1, [1.0])]]
    with pytest.raises(InvalidParameter, match="no trace of 'suffix'"):
        Trace.read(path, "suffix")
    path.write_text("{}")
    with pytest.raises(InvalidParameter, match="advise --export"):
        Trace.read(path)
    with pytest.raises(InvalidParameter, match="without a place"):
        Trace([])
