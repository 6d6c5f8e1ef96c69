"""Acceptance numbers and laws that follow from the papers' definitions, worked out by hand as fractions."""

from fractions import Fraction as F

import pytest

from paceline.sampling import (
    Law,
    Randomness,
    TokenTree,
    resolve,
    verify,
    verify_rejection_sampling,
    verify_sample_and_match,
)
from paceline.sampling.tree import Draw

from .tables import accepted_share, drawn, first_token, law, top_tokens, verdicts
from .wrong_rules import (
    envelope_over_the_drafts_tokens,
    keep_only_likely_draws,
    merge_equal_draws,
    ratio_for_top_tokens,
    recover_from_the_target,
    residual_after_the_envelope,
    without_renormalising,
)

P, Q = law(5, 3, 2), law(2, 3, 5)
WIDE_P, WIDE_Q = law(6, 6, 4, 4), law(14, 1, 3, 2)


def one_level(target: Law, draft: Law, width: int, draw: Draw = "iid", rule=verify):
    grow = drawn(lambda _: draft, (width,), draw)
    return verdicts(lambda randomness: grow((), randomness, 0), lambda _: target, rule)


def dense(row: Law) -> tuple[F, ...]:
    return tuple(row.probs)


def test_overlap_and_residual() -> None:
    assert P.overlap(Q) == F(7, 10)
    assert P.residual(Q).tokens.tolist() == [0]
    assert P.residual(Q).probs.tolist() == [1]


@pytest.mark.parametrize(("width", "share"), [(1, F(7, 10)), (2, F(19, 25)), (3, F(101, 125))])
def test_multi_round_acceptance_of_independent_siblings(width: int, share: F) -> None:
    outcomes = one_level(P, Q, width)
    assert accepted_share(outcomes) == share
    assert first_token(outcomes, 3) == dense(P)


def test_acceptance_without_replacement() -> None:
    outcomes = one_level(P, Q, 2, "without_replacement")
    assert accepted_share(outcomes) == F(41, 50)
    assert first_token(outcomes, 3) == dense(P)


@pytest.mark.parametrize(("width", "share"), [(1, F(29, 100)), (2, F(483, 1000)), (3, F(6161, 10000))])
def test_sample_and_match_accepts_less_and_is_exact(width: int, share: F) -> None:
    outcomes = one_level(P, Q, width, rule=verify_sample_and_match)
    assert accepted_share(outcomes) == share < accepted_share(one_level(P, Q, width))
    assert first_token(outcomes, 3) == dense(P)


@pytest.mark.parametrize(("width", "share"), [(1, F(2, 5)), (2, F(16, 25)), (3, F(98, 125))])
def test_rejection_sampling_accepts_less_and_is_exact(width: int, share: F) -> None:
    outcomes = one_level(P, Q, width, rule=verify_rejection_sampling)
    assert accepted_share(outcomes) == share < accepted_share(one_level(P, Q, width))
    assert first_token(outcomes, 3) == dense(P)


@pytest.mark.parametrize("q", [law(0, 1, 1), law(0, 0, 1)])
def test_rejection_sampling_accepts_nothing_of_a_draft_that_lacks_a_token(q: Law) -> None:
    """M is infinite; no coin is tossed, and the text is one draw from p."""
    outcomes = one_level(P, q, 1, rule=verify_rejection_sampling)
    assert outcomes == {((), token): P.prob(token) for token in range(3)}


def test_an_envelope_over_the_drafts_own_tokens_changes_the_law() -> None:
    """p = (1/2, 3/10, 1/5), q = (0, 1/2, 1/2): M would be 3/5, and token 0 is left to the draw after a rejection."""
    q = law(0, 1, 1)
    outcomes = one_level(P, q, 1, rule=envelope_over_the_drafts_tokens)
    assert first_token(outcomes, 3) == (F(1, 12), F(11, 20), F(11, 30)) != dense(P)


def test_a_residual_after_rejection_sampling_changes_the_law() -> None:
    outcomes = one_level(P, Q, 1, rule=residual_after_the_envelope)
    assert first_token(outcomes, 3) == (F(4, 5), F(3, 25), F(2, 25)) != dense(P)


@pytest.mark.parametrize(("width", "share"), [(1, F(1, 5)), (2, F(1, 2))])
def test_deterministic_siblings(width: int, share: F) -> None:
    tree = TokenTree.trie([(token,) for token in top_tokens(Q, width)])
    outcomes = verdicts(lambda _: tree, lambda _: P, verify)
    assert accepted_share(outcomes) == share
    assert first_token(outcomes, 3) == dense(P)


def test_two_draws_of_one_token_are_two_trials() -> None:
    outcomes = one_level(WIDE_P, WIDE_Q, 2)
    assert accepted_share(outcomes) == F(71, 100)
    assert first_token(outcomes, 4) == dense(WIDE_P)


def test_merging_equal_draws_changes_the_law() -> None:
    grow = drawn(lambda _: WIDE_Q, (2,))
    outcomes = verdicts(lambda r: merge_equal_draws(grow((), r, 0)), lambda _: WIDE_P, verify)
    assert first_token(outcomes, 4) == (F(3, 10), F(1467, 5800), F(47, 200), F(123, 580)) != dense(WIDE_P)
    assert accepted_share(outcomes) == F(71, 100)


@pytest.mark.parametrize("width", [1, 2])
def test_ratio_for_top_tokens_changes_the_law(width: int) -> None:
    outcomes = verdicts(lambda _: ratio_for_top_tokens(Q, width), lambda _: P, verify)
    assert first_token(outcomes, 3) == (F(3, 5), 0, F(2, 5)) != dense(P)


def test_a_stop_that_looks_at_the_draw_changes_the_law() -> None:
    outcomes = verdicts(lambda randomness: keep_only_likely_draws(P, randomness), lambda _: P, verify)
    assert first_token(outcomes, 3) == (F(3, 4), F(3, 20), F(1, 10)) != dense(P)


def test_forgetting_to_renormalise_changes_the_law() -> None:
    outcomes = one_level(WIDE_P, WIDE_Q, 2, "without_replacement", without_renormalising)
    assert first_token(outcomes, 4) == (F(3, 10), F(83, 580), F(19, 60), F(209, 870)) != dense(WIDE_P)
    right = one_level(WIDE_P, WIDE_Q, 2, "without_replacement")
    assert first_token(right, 4) == dense(WIDE_P)


def test_recovering_from_the_target_changes_the_law() -> None:
    outcomes = one_level(P, Q, 1, rule=recover_from_the_target)
    assert first_token(outcomes, 3) == (F(7, 20), F(39, 100), F(13, 50)) != dense(P)


@pytest.mark.parametrize(
    ("lenience", "share", "emitted"),
    [
        (F(1), F(7, 10), (F(1, 2), F(3, 10), F(1, 5))),
        (F(1, 2), F(9, 10), (F(3, 11), F(18, 55), F(2, 5))),
        (F(1, 4), F(1), (F(1, 5), F(3, 10), F(1, 2))),
    ],
)
def test_lenience_bounds_every_probability(lenience: F, share: F, emitted: tuple[F, ...]) -> None:
    outcomes = one_level(P, Q, 1, rule=resolve("lenient", lenience=lenience))  # pyright: ignore
    assert accepted_share(outcomes) == share
    assert first_token(outcomes, 3) == emitted
    assert all(said <= wanted / lenience for said, wanted in zip(emitted, dense(P), strict=True))


@pytest.mark.parametrize(
    ("bound", "emitted"), [(F(1), (F(1, 2), F(3, 10), F(1, 5))), (F(1, 2), (F(3, 10), F(3, 10), F(2, 5)))]
)
def test_a_smaller_coin_changes_the_law(bound: F, emitted: tuple[F, ...]) -> None:
    outcomes = one_level(P, Q, 1, rule=resolve("uniform_coin", bound=bound))  # pyright: ignore
    assert first_token(outcomes, 3) == emitted


def test_deterministic_pool_of_candidates_is_exact() -> None:
    """Lookahead decoding's verification: candidates sharing a prefix are one trie, each token removed when refused."""
    pool = TokenTree.trie([(2, 0, 1), (2, 1, 0), (0, 0, 0)])

    def target(prefix: tuple[int, ...]) -> Law:
        return Q if sum(prefix) % 2 else P

    def chance(path: tuple[int, ...], token: int) -> F:
        text = (*path, token)
        result = F(1)
        for i, said in enumerate(text):
            result *= target(text[:i]).prob(said)
        return result

    outcomes = verdicts(lambda _: pool, target, verify)
    assert {text: chance(*text) for text in outcomes} == outcomes


def test_a_token_impossible_under_its_draft_law_is_refused() -> None:
    def grow(_: Randomness) -> TokenTree:
        return TokenTree.chain((1,), (law(1, 0, 1),))

    with pytest.raises(ValueError, match="draft_laws: node 0 carries token 1"):
        verdicts(grow, lambda _: P, verify)
