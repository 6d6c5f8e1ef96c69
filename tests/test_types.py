"""What a request may ask for: the field and the remedy are named at the door."""

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.types import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0), ("n", 1.5), ("n", "2"), ("n", True), ("temperature", -1), ("temperature", "0.5"),
        ("temperature", float("nan")), ("temperature", float("inf")), ("temperature", None), ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -1), ("top_k", 2.5), ("min_p", 2), ("repetition_penalty", 0), ("presence_penalty", float("nan")),
        ("frequency_penalty", "1"), ("max_tokens", 0), ("max_tokens", None), ("max_tokens", 2.5), ("min_tokens", 999),
        ("seed", "x"), ("seed", 1.0), ("stop", [""]), ("stop", ""), ("stop", [3]), ("stop", 3), ("bad_words", [None]),
        ("stop_token_ids", 5), ("stop_token_ids", ["a"]), ("logit_bias", {"1": 2.0}), ("logit_bias", [1]),
        ("logit_bias", {1: float("nan")}),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_by_name(field, value):
    with pytest.raises(InvalidParameter) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field and caught.value.remedy


def test_one_string_is_one_string():
    params = SamplingParams(stop="abc", bad_words="def")
    assert params.stop == ("abc",) and params.bad_words == ("def",)


def test_none_is_nothing():
    params = SamplingParams(stop=None, bad_words=None, stop_token_ids=None, logit_bias=None)  # type: ignore[arg-type]
    assert params == SamplingParams()


def test_numbers_of_numpy_will_do():
    params = SamplingParams(n=np.int64(2), temperature=np.float32(0.5), seed=np.int32(3), stop_token_ids=np.array([7]))  # type: ignore[arg-type]
    assert params.sample(1, 3).seed == 4
