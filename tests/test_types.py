"""What a request may ask for: the field and the remedy are named at the door."""

import inspect
import pickle
import reprlib
from dataclasses import fields, replace
from itertools import count

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.limits import LIMITS
from paceline.types import SamplingParams
from paceline.vllm_names import SAMPLING

NAN, INFINITY, HUGE = float("nan"), float("inf"), 10**5000
NUMBERS = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
WHOLE = ("n", "top_k", "min_tokens", "max_tokens", "seed")
WRONG_KIND = [
    *((name, value) for name in NUMBERS for value in (NAN, INFINITY, -INFINITY, HUGE, True, "0.5", None, 1j, [1.0])),
    *((name, value) for name in WHOLE for value in (True, "2", 1.5, 1.0, HUGE, -HUGE, NAN, [1])),
    *((name, None) for name in WHOLE if name not in ("seed", "max_tokens")),
]
OUT_OF_RANGE = [
    ("n", 0), ("n", 17), ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 2**31),
    ("temperature", -1e-300), ("temperature", 100.1), ("top_p", 0), ("top_p", 1.1), ("top_k", -2), ("top_k", 2**31),
    ("min_p", 2), ("min_p", -0.1), ("repetition_penalty", 0), ("repetition_penalty", 1e-310),
    ("repetition_penalty", 0.009), ("repetition_penalty", 1e308), ("presence_penalty", -1e308),
    ("presence_penalty", 2.1), ("frequency_penalty", -1e308), ("frequency_penalty", -2.1), ("min_tokens", 999),
    ("min_tokens", -1), ("seed", 2**64), ("seed", -(2**63) - 1), ("ignore_eos", 1), ("ignore_eos", "no"),
    ("ignore_eos", None), ("stop", [""]), ("stop", ""), ("stop", [3]), ("stop", 3), ("stop", ["a"] * 17),
    ("stop", "a" * 129), ("stop", "a" * 10**6), ("stop", count()), ("stop", "\ud800"), ("bad_words", [None]),
    ("bad_words", [""]), ("bad_words", ["x"] * 1025), ("bad_words", ["x" * 129]), ("bad_words", b"abc"),
    ("stop_token_ids", 5), ("stop_token_ids", ["a"]), ("stop_token_ids", "12"), ("stop_token_ids", [-1]),
    ("stop_token_ids", [True]), ("stop_token_ids", [2**31]), ("stop_token_ids", range(1025)), ("logit_bias", [1]),
    ("logit_bias", {"1": 2.0}), ("logit_bias", {True: 2.0}), ("logit_bias", {-1: 2.0}), ("logit_bias", {1: NAN}),
    ("logit_bias", {1: -INFINITY}), ("logit_bias", {1: 100.5}), ("logit_bias", {1: "2"}), ("logit_bias", {1: True}),
    ("logit_bias", dict.fromkeys(range(1025), 1.0)), ("allowed_token_ids", []), ("allowed_token_ids", [-1]),
    ("allowed_token_ids", range(65537)), ("include_stop_str_in_output", 1),
]  # fmt: skip


def test_every_field_has_a_limit():
    assert set(LIMITS) == {field.name for field in fields(SamplingParams)}


@pytest.mark.parametrize(
    ("field", "value"),
    WRONG_KIND + OUT_OF_RANGE,
    ids=lambda value: "int" if isinstance(value, int) else reprlib.repr(value),
)
def test_what_cannot_be_used_is_refused_by_name(field, value):
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field and caught.value.remedy
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("n", [1, 16]), ("temperature", [0, 5e-324, 100]), ("top_p", [5e-324, 1]), ("top_k", [0, 10**9]),
        ("min_p", [0, 1]), ("repetition_penalty", [0.01, 100]), ("presence_penalty", [-2, 2]),
        ("frequency_penalty", [-2, 2]), ("seed", [None, -(2**63), 2**64 - 1]), ("stop", [["a" * 128] * 16]),
        ("logit_bias", [dict.fromkeys(range(1024), -100.0), {5: 100}]), ("max_tokens", [1, 2**31 - 1]),
    ],
)  # fmt: skip
def test_the_limits_themselves_are_allowed(field, values):
    for value in values:
        kept = getattr(SamplingParams(**{field: value}), field)
        assert kept == (tuple(value) if isinstance(value, list) else value)


def test_an_iterator_is_read_once_and_kept():
    params = SamplingParams(stop=(word for word in ("a", "b")), stop_token_ids=iter([7]))  # type: ignore[arg-type]
    assert params.stop == ("a", "b") and params.stop_token_ids == (7,)


def test_what_the_caller_changes_later_changes_nothing():
    bias, stop = {1: 2.0}, ["a"]
    params = SamplingParams(logit_bias=bias, stop=stop)
    bias[2] = float("nan")
    stop.append("")
    assert params.logit_bias == {1: 2.0} and params.stop == ("a",)


@pytest.mark.parametrize(
    "grammar",
    [{"choice": ["yes", "no"]}, {"choice": "yes"}, {"json": {"type": "object"}}, {"json_object": True},
     {"regex": "[0-9]+"}, {"grammar": 'root ::= "x"'}],
)  # fmt: skip
def test_a_copy_has_the_same_grammar(grammar):
    params = SamplingParams(structured_outputs=grammar)
    assert replace(params, n=2).structured_outputs == params.structured_outputs
    assert pickle.loads(pickle.dumps(params)) == params


def test_one_string_is_one_string():
    params = SamplingParams(stop="abc", bad_words="def")
    assert params.stop == ("abc",) and params.bad_words == ("def",)


def test_none_is_nothing():
    params = SamplingParams(stop=None, bad_words=None, stop_token_ids=None, logit_bias=None)  # type: ignore[arg-type]
    assert params == SamplingParams()


def test_numbers_of_numpy_will_do():
    params = SamplingParams(n=np.int64(2), temperature=np.float32(0.5), seed=np.int32(3), stop_token_ids=np.array([7]))  # type: ignore[arg-type]
    assert params.sample(1).seed == 4
    assert [type(each) for each in (params.n, params.temperature, params.stop_token_ids[0])] == [int, float, int]


def test_samples_of_the_largest_seed_go_on_from_nought():
    assert [SamplingParams(seed=2**64 - 1, n=2).sample(i).seed for i in range(2)] == [2**64 - 1, 0]


def test_vllms_spellings_of_no_limit():
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)
    assert SamplingParams(max_tokens=None).max_tokens == 2**31 - 1  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match="top_k"):
        SamplingParams(top_k=-1.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "remedy"), SAMPLING.items())
def test_a_field_of_vllms_that_is_not_known_is_refused_with_its_remedy(name, remedy):
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**{name: 1})
    assert caught.value.field == name and caught.value.remedy == remedy
    with pytest.raises(TypeError, match="no_such_field"):
        SamplingParams(no_such_field=1)  # type: ignore[call-arg]


def test_the_names_of_fields_can_still_be_asked_for():
    assert list(inspect.signature(SamplingParams).parameters) == [field.name for field in fields(SamplingParams)]
    assert pickle.loads(pickle.dumps(SamplingParams(seed=3))) == SamplingParams(seed=3)
