"""Under the coupled rule and sample-and-match the text is the plain text, token for token, whatever was drafted."""

from fractions import Fraction as F

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sampling import (
    CounterRandomness,
    Law,
    TokenTree,
    judge,
    match_probability,
    resolve,
    verify_coupled,
    verify_sample_and_match,
)

from .tables import drawn, law, no_draft, step, table_model

TABLE = table_model(1, 4, order=3)


def target(prefix: tuple[int, ...]) -> Law:
    exact = TABLE(prefix)
    return Law(exact.tokens, exact.probs.astype(float))


def plain_text(seed: int, num_tokens: int) -> tuple[int, ...]:
    prefix = (0, 1)
    while len(prefix) < num_tokens + 2:
        prefix += step(prefix, target, no_draft, verify_coupled, CounterRandomness(seed))
    return prefix[2:]


@pytest.mark.parametrize("rule", [verify_coupled, verify_sample_and_match])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), data=st.data())
def test_text_is_the_plain_text_for_any_draft(rule, seed: int, data: st.DataObject) -> None:
    def draft(prefix, randomness, position) -> TokenTree:
        return TokenTree.trie(data.draw(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=3)))

    prefix = (0, 1)
    while len(prefix) < 10:
        prefix += step(prefix, target, draft, rule, CounterRandomness(seed))
    assert prefix[2:10] == plain_text(seed, 8)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**64 - 1), number=st.integers(0, 10**6), data=st.data())
def test_under_auto_a_request_with_a_seed_says_plain_samplings_text(
    seed: int, number: int, data: st.DataObject
) -> None:
    """Whatever is drafted, chosen or drawn, and whichever request of its engine it is."""
    how = judge("auto", resolve("auto"), seed, number)
    shapes = st.lists(st.integers(1, 2), max_size=3)

    def draft(prefix, randomness, position) -> TokenTree:
        if data.draw(st.booleans()):
            return drawn(target, data.draw(shapes))(prefix, randomness, position)
        return TokenTree.trie(data.draw(st.lists(st.lists(st.integers(0, 3), max_size=4), max_size=3)))

    prefix = (0, 1)
    while len(prefix) < 10:
        prefix += step(prefix, target, draft, how.verify, how.randomness)
    assert prefix[2:10] == plain_text(seed, 8)
    assert how.coupled


def test_a_coupled_draft_from_the_target_itself_is_accepted_whole() -> None:
    for seed in range(50):
        tokens = plain_text(seed, 5)
        tree = TokenTree.chain(tokens[:4], [target((0, 1, *tokens[:i])) for i in range(4)])
        verdict = verify_coupled(
            tree, lambda node, tree=tree: target((0, 1, *tree.tokens_to(node))), CounterRandomness(seed), 2
        )
        assert (len(verdict.path), verdict.token, verdict.kind) == (4, tokens[4], "bonus")


def test_match_probability_exactly() -> None:
    p, q = law(5, 3, 2), law(2, 3, 5)
    assert match_probability(p, q) == F(41, 65)
    assert match_probability(p, p) == 1
    assert match_probability(law(1, 0), law(0, 1)) == 0
    assert match_probability(law(1, 1, 0), law(0, 1, 1)) == F(1, 3)


weights = st.lists(st.integers(0, 9), min_size=4, max_size=4).filter(any)


@given(weights, weights)
def test_match_probability_lies_between_its_bound_and_the_overlap(first, second) -> None:
    p, q = law(*first), law(*second)
    distance = 1 - p.overlap(q)
    assert (1 - distance) / (1 + distance) <= match_probability(p, q) <= p.overlap(q)
    by_definition = sum(
        1 / sum(max(p.prob(y) / p.prob(x), q.prob(y) / q.prob(x)) for y in range(4))
        for x in range(4)
        if p.prob(x) and q.prob(x)
    )
    assert match_probability(p, q) == by_definition


def test_shared_noise_matches_as_often_as_the_formula_says() -> None:
    p, q = (Law(np.arange(3), np.array(row)) for row in ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]))
    trials = 5_000
    randomness = CounterRandomness(2024)
    matches = sum(randomness.draw(p, i, "target") == randomness.draw(q, i, "target") for i in range(trials))
    spread = (41 / 65 * 24 / 65 / trials) ** 0.5
    assert abs(matches / trials - 41 / 65) < 4 * spread
    apart = sum(randomness.draw(p, i, "target") == randomness.draw(q, i, "draft") for i in range(trials))
    assert abs(apart / trials - 0.29) < 4 * (0.29 * 0.71 / trials) ** 0.5
