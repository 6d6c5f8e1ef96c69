"""Lossy rules do what they say, and names resolve to rules."""

import math

import numpy as np
import pytest

from paceline.errors import InvalidParameter
from paceline.sampling import (
    RULES,
    CounterRandomness,
    Law,
    TokenTree,
    Warper,
    resolve,
    rules,
    verify,
    verify_block,
)
from paceline.sampling.coupled import verify_coupled
from paceline.sampling.lossy import typical_threshold, verify_lenient_greedy, verify_typical
from paceline.sampling.rules import option_names
from paceline.types import SamplingParams

RANDOMNESS = CounterRandomness(0)
ROW = Law(np.arange(4), np.array([0.5, 0.3, 0.15, 0.05]))


def judge(rule, tree: TokenTree, laws=lambda node: ROW, **options):
    return rule(tree, laws, RANDOMNESS, 0, **options)


@pytest.mark.parametrize(
    ("probs", "threshold"),
    [([1.0], 0.09), ([0.7, 0.1, 0.1, 0.1], 0.09), ([0.25] * 4, 0.075), ([0.1] * 10, 0.03), ([0.01] * 100, 0.003)],
)
def test_typical_thresholds(probs: list[float], threshold: float) -> None:
    assert typical_threshold(Law(np.arange(len(probs)), np.array(probs))) == pytest.approx(threshold)


def test_typical_threshold_switches_at_the_published_entropy() -> None:
    """A law with a spike of 1 - s and n equal others; its entropy crosses ln(10/3) as s grows."""
    for spread in (0.2, 0.3, 0.35, 0.4):
        probs = np.array([1 - spread] + [spread / 20] * 20)
        entropy = -(probs * np.log(probs)).sum()
        assert (typical_threshold(Law(np.arange(21), probs)) == 0.09) == (entropy <= math.log(10 / 3))


@pytest.mark.parametrize("size", [2, 4, 30, 1000])
def test_a_uniform_law_accepts_its_whole_support(size: int) -> None:
    uniform = Law(np.arange(size), np.full(size, 1 / size))
    assert judge(verify_typical, TokenTree.chain((size - 1,)), lambda _: uniform).path == (0,)


def test_typical_takes_the_longest_path_then_the_likelier() -> None:
    tree = TokenTree((0, 1, 2, 1, 0), (-1, -1, 1, 1, 0))
    verdict = judge(verify_typical, tree)
    assert verdict.path == (0, 4)
    assert (verdict.token, verdict.kind, verdict.num_rejected) == (0, "bonus", 0)
    longer = judge(verify_typical, TokenTree((0, 1, 2), (-1, -1, 1)))
    assert longer.path == (1, 2)
    refused = judge(verify_typical, TokenTree.chain((3,)))
    assert (refused.path, refused.token, refused.kind, refused.num_rejected) == ((), 0, "recovered", 1)


def test_typical_at_temperature_zero_is_exact_match() -> None:
    def greedy(_: int) -> Law:
        return Law.one_hot(2)

    assert judge(verify_typical, TokenTree.chain((2, 1)), greedy).path == (0,)
    assert judge(verify_typical, TokenTree.chain((2, 1)), greedy).token == 2


def test_greedy_lenience_accepts_at_or_above_the_share() -> None:
    """0.3 >= l * 0.5 up to l = 0.6: the inequality as it must be, not as it is printed."""
    second_best = TokenTree.chain((1,))
    assert judge(verify_lenient_greedy, second_best, lenience=0.59).path == (0,)
    assert judge(verify_lenient_greedy, second_best, lenience=0.61).path == ()
    assert judge(verify_lenient_greedy, second_best, lenience=1).path == ()
    assert judge(verify_lenient_greedy, TokenTree.chain((0,)), lenience=1).path == (0,)
    best = judge(verify_lenient_greedy, TokenTree((2, 1, 3), (-1, -1, -1)), lenience=0.1)
    assert (best.path, best.token, best.num_rejected) == ((1,), 0, 0)


def test_lossy_rules_say_so() -> None:
    assert {name for name, rule in RULES.items() if rule.is_lossy} == {
        "lenient", "lenient_greedy", "uniform_coin", "typical", "top_k", "distance",
    }  # fmt: skip
    for rule in RULES.values():
        assert (rule.verify.__doc__ or "").startswith("Lossy") == rule.is_lossy


def test_which_rules_may_change_a_text() -> None:
    for name, rule in RULES.items():
        assert rule.may_change(is_greedy=False) == rule.is_lossy
        assert rule.may_change(is_greedy=True) == (name in ("lenient", "lenient_greedy", "top_k", "distance"))
        assert not rule.may_change(is_greedy=True, has_drafts=False)
        draws_nothing = ("lenient_greedy", "typical", "top_k", "distance")
        assert rule.may_change(is_greedy=False, has_drafts=False) == (name in draws_nothing)
        assert rule.keeps_seeds == (name in ("auto", "coupled", "sample_and_match"))


def test_greedy_lenience_judges_by_logits() -> None:
    """exp(2.0 - 2.5) = 0.61 of the largest; the target's own token stays the largest."""
    row = np.array([2.5, 2.0, 0.0], np.float32)
    law = Warper(SamplingParams(temperature=0)).law(row)
    for name in ("lenient", "lenient_greedy"):
        assert judge(resolve(name, lenience=0.6), TokenTree.chain((1, 2)), lambda _: law).path == (0,)
        refused = judge(resolve(name, lenience=0.62), TokenTree.chain((1, 2)), lambda _: law)
        assert (refused.path, refused.token) == ((), 0)


def test_resolve_binds_options() -> None:
    assert resolve("p/q") is verify
    assert option_names("typical") == ("epsilon", "delta")
    assert judge(resolve("lenient_greedy", lenience=0.59), TokenTree.chain((1,))).path == (0,)


@pytest.mark.parametrize(
    ("field", "name", "options"),
    [
        ("rule", "rejection", {}),
        ("lenience", "p/q", {"lenience": 0.5}),
        ("epsilon", "lenient", {"epsilon": 0.5}),
        ("lenience", "lenient", {"lenience": 0}),
        ("bound", "uniform_coin", {"bound": 1.5}),
        ("delta", "typical", {"delta": math.nan}),
        ("lenience", "lenient", {"lenience": "0.5"}),
        ("k", "top_k", {"k": None}),
    ],
)
def test_resolve_refuses(field: str, name: str, options: dict) -> None:
    with pytest.raises(InvalidParameter) as caught:
        resolve(name, **options)
    assert caught.value.field == field


def test_block_refuses_trees_that_branch() -> None:
    with pytest.raises(InvalidParameter, match="use the rule 'p/q'"):
        judge(verify_block, TokenTree((0, 1), (-1, -1)))


@pytest.mark.parametrize("name", ["auto", "p/q", "block", "coupled", "sample_and_match", "rejection_sampling"])
def test_greedy_targets_give_the_greedy_text_under_every_exact_rule(name: str) -> None:
    draft = Law(np.arange(3), np.full(3, 1 / 3))
    for seed in range(30):
        randomness = CounterRandomness(seed)
        tokens = [randomness.draw(draft, position, "draft", position) for position in range(3)]
        tree = TokenTree.chain(tokens, [draft] * 3)
        verdict = resolve(name)(tree, lambda node: Law.one_hot((node + 2) % 3), randomness, 0)
        text = [*tokens[: len(verdict.path)], verdict.token]
        assert text == [1, 2, 0, 1][: len(text)]
        assert len(text) == 4 or tokens[len(verdict.path)] != verdict.token


def test_float_verification_visits_only_the_nodes_it_needs() -> None:
    visited = []

    def laws(node: int) -> Law:
        visited.append(node)
        return Law.one_hot(9)

    verify(TokenTree((1, 2, 3), (-1, 0, 1)), laws, RANDOMNESS, 0)
    assert visited == [-1]


def noise_of(name: str, seed: int | None, number: int) -> float:
    return rules.judge(name, resolve(name), seed, number).randomness.uniform(0, 0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", RULES)
def test_only_requests_without_a_seed_or_with_coins_have_noise_of_their_own(name: str) -> None:
    """Rules that toss coins read another stream for every request; the others, and auto, read the seed's own."""
    noises = {noise_of(name, 5, number) for number in range(4)}
    if name in ("p/q", "block", "rejection_sampling", "lenient", "uniform_coin"):
        assert len(noises) == 4
        assert CounterRandomness(5).uniform(0, 0) not in noises
    else:
        assert noises == {CounterRandomness(5).uniform(0, 0)}
    assert noise_of(name, 5, 2) == noise_of(name, 5, 2)
    assert len({noise_of(name, None, 0) for _ in range(4)}) == 4


def test_drafts_share_the_targets_noise_where_its_pick_decides_a_seeded_text() -> None:
    coupled = {
        (name, seed) for name in RULES for seed in (None, 5) if rules.judge(name, resolve(name), seed, 0).coupled
    }
    assert coupled == {("coupled", None), ("coupled", 5), ("auto", 5)}
    assert rules.judge("auto", resolve("auto"), 5, 0).verify is verify_coupled
    assert rules.judge("auto", resolve("auto"), None, 0).verify is rules.verify_auto


@pytest.mark.parametrize(
    ("rule", "option"), [("top_k", {"k": 0}), ("top_k", {"k": 1.5}), ("distance", {"distance": -1})]
)
def test_criteria_of_blockwise_decoding_are_whole_numbers(rule: str, option: dict) -> None:
    with pytest.raises(InvalidParameter, match="whole number"):
        resolve(rule, **option)


@pytest.mark.parametrize("temperature", [0, 1])
def test_distance_never_emits_what_is_forbidden(temperature: float) -> None:
    """Token 2 is an end of the text, before its least length."""
    params = SamplingParams(temperature=temperature, min_tokens=5)
    warper = Warper(params, token_ids=[7], num_prompt_tokens=1, eos_token_ids=(2,))
    law = warper.law(np.array([1.0, 2.5, 2.0, 1.5], np.float32))
    assert judge(resolve("distance", distance=2), TokenTree.chain((3,)), lambda _: law).path == (0,)
    assert judge(resolve("distance", distance=2), TokenTree.chain((2,)), lambda _: law).path == ()
