"""Options of wrong types are refused by name, for drafters and for policies."""

import math

import pytest

from paceline.drafters.registry import make_drafter
from paceline.errors import InvalidParameter
from paceline.option_types import check_types
from paceline.speculation import DrafterTraits, FixedPrices, make_policy


def takes(whole: int, number: float | None, flag: bool = False, text: str = "", other: list[int] | None = None) -> None:
    """Something with options."""


@pytest.mark.parametrize(
    "options",
    [
        {"whole": 3},
        {"number": 2},
        {"number": 2.5},
        {"number": None},
        {"flag": True},
        {"text": "a"},
        {"other": 5},
        {"x": 1},
    ],
)
def test_values_of_their_types_and_types_that_are_not_plain_pass(options):
    check_types(takes, options)


@pytest.mark.parametrize(
    "options",
    [{"whole": 2.0}, {"whole": True}, {"whole": "3"}, {"whole": math.inf}, {"number": math.nan}, {"number": math.inf},
     {"number": "x"}, {"flag": 1}, {"text": 3}],
)  # fmt: skip
def test_other_values_are_refused_by_name(options):
    with pytest.raises(InvalidParameter, match=next(iter(options))):
        check_types(takes, options)


@pytest.mark.parametrize(
    ("name", "options"),
    [("ngram", {"prompt_lookup_max": math.inf}), ("ngram", {"prompt_lookup_max": 2.5}),
     ("suffix", {"max_cached_tokens": 2.5})],
)  # fmt: skip
def test_drafters_refuse_options_of_wrong_types(name, options):
    with pytest.raises(InvalidParameter, match=next(iter(options)).partition(".")[0]):
        make_drafter(name, **options)


@pytest.mark.parametrize("options", [{"most_back_off": "x"}, {"tie": math.nan}])
def test_policies_refuse_options_of_wrong_types(options):
    with pytest.raises(InvalidParameter, match=next(iter(options))):
        make_policy("cascade", options, 8, DrafterTraits(), FixedPrices(lambda rows, _: 1.0))


@pytest.mark.parametrize("ratio", [-1.0, math.nan])
def test_a_cost_that_is_no_number_of_0_or_more_is_refused(ratio):
    with pytest.raises(InvalidParameter, match="cost_ratio"):
        DrafterTraits(cost_ratio=ratio)
