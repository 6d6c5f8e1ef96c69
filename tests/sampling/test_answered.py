"""Verdicts over answers to questions: a chain that is followed at once is judged as by the rules themselves."""

from itertools import product
from math import inf, nan

import pytest

from paceline.errors import InvalidParameter
from paceline.sampling import CounterRandomness, TokenTree
from paceline.sampling.answered import Answer, verify_answered
from paceline.sampling.rules import resolve

POSITION, NOISE = 7, CounterRandomness(0)


def outcome(rule, tree, answers):
    """The verdict, or the error in its place."""
    try:
        return verify_answered(resolve(rule), tree, answers, NOISE, POSITION)
    except InvalidParameter as error:
        return type(error), str(error)


@pytest.mark.parametrize("rule", ["auto", "coupled", "sample_and_match"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_chains_are_followed_as_the_rules_do(rule, size):
    kinds = set()
    for tokens, picks in product(product((3, 4), repeat=size), product((3, 4, 5), repeat=size + 1)):
        tree, answers = TokenTree.chain(tokens), [Answer(pick, (), 1.0, pick, pick) for pick in picks]
        verdict = outcome(rule, tree, answers)
        assert verdict == outcome(rule, tree, tuple(answers))  # judged by the rule, answer by answer
        assert verdict.token == picks[len(verdict.path)]
        kinds.add((verdict.kind, len(verdict.path)))
        for place, peak in product(range(size + 1), (nan, inf, -inf)):
            broken = [*answers[:place], answers[place]._replace(peak=peak), *answers[place + 1 :]]
            assert outcome(rule, tree, broken) == outcome(rule, tree, tuple(broken))
    assert kinds == {("recovered", accepted) for accepted in range(size)} | {("bonus", size)}
