"""Prompt lookup against hand-worked cases and against a plain search of the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafters.lookup.ngram import FIRST_RATES, NGram
from paceline.errors import InvalidParameter
from tests.drafters.contexts import context, propose
from tests.fakes import tell

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def search(token_ids: list[int], longest: int, shortest: int, occurrence: str, budget: int) -> tuple[int, ...]:
    """The slow twin: look at every position."""
    for size in range(longest, shortest - 1, -1):
        suffix = token_ids[-size:]
        ends = [end for end in range(size, len(token_ids)) if token_ids[end - size : end] == suffix]
        if ends and size < len(token_ids):
            end = ends[-1] if occurrence == "latest" else ends[0]
            return tuple(token_ids[end : end + budget])
    return ()


def test_the_published_example():
    tree = propose(NGram(), [1, 2, 3, 4, 5, 1, 2, 3])
    assert tree.tokens == (4, 5, 1, 2, 3) and tree.is_chain and tree.draw == "one_hot"


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([7], ()),
        ([1, 2, 3], ()),
        ([1, 1], (1,)),
        ([1, 2, 1, 3, 1], (3, 1)),
        ([1, 2, 9, 2, 5, 1, 2], (9, 2, 5, 1, 2)),
        ([4, 1, 2, 3, 8, 1, 2, 3], (8, 1, 2, 3)),
    ],
)
def test_hand_worked_matches(tokens, expected):
    assert propose(NGram(), tokens).tokens == expected


def test_which_occurrence_is_continued_is_a_choice():
    tokens = [1, 2, 5, 1, 2, 6, 1, 2]
    assert propose(NGram(), tokens, budget=1).tokens == (6,)
    assert propose(NGram(occurrence="earliest"), tokens, budget=1).tokens == (5,)


def test_a_shortest_match_can_be_demanded():
    assert propose(NGram(prompt_lookup_min=2), [1, 5, 6, 1]).tokens == ()
    assert propose(NGram(prompt_lookup_min=1), [1, 5, 6, 1]).tokens == (5, 6, 1)


@given(texts, st.integers(1, 4), st.integers(0, 3), st.sampled_from(["latest", "earliest"]), st.integers(1, 6))
def test_equals_a_plain_search_at_every_length_of_a_growing_text(tokens, shortest, more, occurrence, budget):
    longest = shortest + more
    drafter = NGram(longest, shortest, occurrence)
    for length in range(1, len(tokens) + 1, 1 + more):
        text = tokens[:length]
        assert propose(drafter, text, budget).tokens == search(text, longest, shortest, occurrence, budget)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=16), texts, st.booleans())
def test_an_id_that_comes_back_with_another_text_is_served_from_that_text(first, second, observed):
    drafter = NGram()
    propose(drafter, first)
    if observed:
        tell(drafter, "r", first, finished=False)
    assert propose(drafter, second).tokens == search(second, 3, 1, "latest", 10)


@given(texts, texts)
def test_a_released_id_comes_back_as_a_new_request(first, second):
    drafter = NGram()
    propose(drafter, first)
    drafter.release("r")
    assert propose(drafter, second).tokens == search(second, 3, 1, "latest", 10)


@given(texts, st.integers(1, 39))
def test_a_text_that_is_replayed_from_an_earlier_point_gives_the_same_proposals(tokens, cut):
    drafter, fresh = NGram(), NGram()
    propose(drafter, tokens)
    replayed = tokens[:cut]
    assert propose(drafter, replayed).tokens == propose(fresh, replayed).tokens


def test_requests_do_not_see_each_other():
    drafter = NGram()
    one, other = context([1, 2, 3, 1], request_id="a"), context([4, 5, 6, 1], request_id="b")
    first, second = drafter.propose([one, other])
    assert first.tokens == (2, 3, 1) and second.tokens == ()


def test_what_was_observed_can_be_found():
    drafter = NGram()
    propose(drafter, [1, 2])
    tell(drafter, "r", [1, 2, 3, 4], finished=False)
    assert propose(drafter, [1, 2, 3, 4, 1]).tokens == (2, 3, 4, 1)


def test_a_finished_request_leaves_nothing_behind():
    drafter = NGram()
    propose(drafter, [1, 2, 1])
    tell(drafter, "r", [1, 2, 1, 2], finished=True)
    assert not drafter._texts


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"prompt_lookup_min": 0}, "prompt_lookup_min"),
        ({"prompt_lookup_max": 2, "prompt_lookup_min": 3}, "prompt_lookup_max"),
        ({"occurrence": "first"}, "occurrence"),
    ],
)
def test_impossible_options_are_refused(options, field):
    with pytest.raises(InvalidParameter, match=field):
        NGram(**options)


def test_chances_are_the_rates_of_repetitions_as_long_as_the_one_before():
    tree = propose(NGram(), [1, 2, 3, 4, 5, 9, 1, 2, 3, 4])
    first, second = FIRST_RATES[3], FIRST_RATES[4]
    assert tree.tokens[:2] == (5, 9) and tree.chances is not None
    assert tree.chances[:2] == pytest.approx((first, first * second))


def test_repetitions_are_counted_beyond_the_tokens_looked_up_and_no_further_than_rates_reach():
    period = list(range(40))
    tree = propose(NGram(), period + period, budget=1)
    assert tree.chances == pytest.approx((FIRST_RATES[-1],))


@pytest.mark.parametrize(("goes_on", "sign"), [(True, 1), (False, -1)])
def test_rates_follow_what_texts_do(goes_on, sign):
    drafter, text = NGram(), [1, 2]
    propose(drafter, text)
    for i in range(60):
        text += [1, 2] if goes_on else [1, 100 + i]
        tell(drafter, "r", text, num_new=2)
    fresh = propose(NGram(), text).chances
    learned = propose(drafter, text).chances
    if goes_on:
        assert fresh is not None and learned is not None and learned[0] > fresh[0] == FIRST_RATES[-1]
    else:
        assert propose(drafter, [*text, 1]).chances[0] < FIRST_RATES[0] / 2


@given(st.lists(st.integers(0, 2), min_size=2, max_size=60), st.booleans())
def test_what_is_learned_is_how_often_a_plain_search_would_have_been_right(tokens, asked):
    drafter = NGram()
    propose(drafter, tokens[:1])
    if asked:
        propose(drafter, tokens)
    else:
        tell(drafter, "r", tokens, finished=True)
    rates, weights = list(FIRST_RATES), [20] * len(FIRST_RATES)
    for end in range(1, len(tokens)):
        text = tokens[:end]
        for size in (3, 2, 1):
            ends = [at for at in range(size, end) if text[at - size : at] == text[-size:]] if size < end else []
            if ends:
                at = ends[-1]
                matched = size
                while matched < min(at, len(FIRST_RATES)) and text[at - matched - 1] == text[-matched - 1]:
                    matched += 1
                weights[matched - 1] += 1
                rates[matched - 1] += ((tokens[at] == tokens[end]) - rates[matched - 1]) / weights[matched - 1]
                break
    assert [drafter.rates.reaching(m, 1)[0] for m in range(1, 17)] == pytest.approx(rates)
