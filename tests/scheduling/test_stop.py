"""Stop rules, token by token."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.scheduling import RequestState, StopChecker
from paceline.types import SamplingParams

EOS = 2


def reasons(tokens: list[int], checker: StopChecker | None = None, find=None, **params: Any) -> list[str | None]:
    """What the checker says after each output token, up to the first stop; `find` looks for stop strings."""
    checker = checker or StopChecker([EOS])
    request = RequestState("r", [9, 9], SamplingParams(**{"max_tokens": 5, **params}), completes_stop=find)
    said: list[str | None] = []
    for token in tokens:
        request.token_ids.append(token)
        said.append(checker.check(request, token))
        if said[-1]:
            break
    return said


@pytest.mark.parametrize(
    ("tokens", "params", "expected"),
    [
        ([1, 1, EOS], {}, [None, None, "stop"]),
        ([1, EOS, 1, 1, 1], {"ignore_eos": True}, [None, None, None, None, "length"]),
        ([7, 8], {"stop_token_ids": [8]}, [None, "stop"]),
        ([8, EOS, 1, 8], {"stop_token_ids": [8], "min_tokens": 3}, [None, None, None, "stop"]),
        ([1, 1, 1, 1, 1], {}, [None, None, None, None, "length"]),
        ([1, EOS], {"max_tokens": 2}, [None, "stop"]),
        ([EOS, EOS], {"max_tokens": 2, "min_tokens": 2}, [None, "length"]),
    ],
)
def test_rules(tokens, params, expected):
    assert reasons(tokens, **params) == expected


def test_stop_strings_are_asked_of_the_request_once_per_token_in_order():
    heard = []

    def find(token):
        heard.append(token)
        return token == 6

    assert reasons([5, 6, 7], find=find, stop=["x"]) == [None, "stop"]
    assert heard == [5, 6]


def test_the_request_hears_every_token_and_decides_for_itself():
    """It knows of `min_tokens`, and that a complete grammar ends a text however short it is."""
    heard = []

    def find(token):
        heard.append(token)
        return len(heard) == 2

    assert reasons([5, 6, 7], StopChecker([]), find, stop=["x"], min_tokens=3) == [None, "stop"]
    assert heard == [5, 6]
    grammar = {"structured_outputs": {"regex": "ab"}}
    assert reasons([5, 6, 7], StopChecker([]), lambda token: token == 5, min_tokens=3, **grammar) == ["stop"]


def test_requests_without_stop_strings_are_never_asked_for_them():
    def find(_token):
        raise AssertionError("asked without need")

    assert reasons([5, EOS], find=find) == [None, "stop"]


def test_stop_strings_of_a_request_whose_text_nobody_reads_stop_nothing():
    assert reasons([5, EOS], stop=["x"]) == [None, "stop"]


def test_a_span_is_heard_up_to_the_token_that_completes_a_stop_string():
    heard = []

    def find(token):
        heard.append(token)
        return token == 6

    request = RequestState("r", [9, 9], SamplingParams(max_tokens=9, stop=["x"]), completes_stop=find)
    assert StopChecker([EOS]).commit(request, (5, 6, 7, 8)) == (2, "stop")
    assert heard == request.output_token_ids == [5, 6]


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.integers(1, 6),
    st.integers(0, 2),
    st.booleans(),
    st.lists(st.integers(0, 4), max_size=1),
)
def test_committing_a_span_stops_where_asking_token_by_token_does(tokens, max_tokens, min_tokens, ignore_eos, stop_ids):
    params = {
        "max_tokens": max_tokens, "min_tokens": min(min_tokens, max_tokens), "ignore_eos": ignore_eos,
        "stop_token_ids": stop_ids,
    }  # fmt: skip
    said = reasons(tokens, **params)
    request = RequestState("r", [9, 9], SamplingParams(**params))
    assert StopChecker([EOS]).commit(request, tokens) == (len(said), said[-1])
    assert request.output_token_ids == tokens[: len(said)]
