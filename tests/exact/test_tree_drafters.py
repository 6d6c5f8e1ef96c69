"""The production tree drafters over rationals, their passes and caches included: the text keeps the target's law."""

from fractions import Fraction as F

import pytest

from paceline.drafters.draft_models.draft_model import DraftModel
from paceline.drafters.draft_models.specinfer import SpecInfer
from paceline.drafters.trees.options import tree_shape
from paceline.sampling import CounterRandomness, Law, Randomness, TokenTree, verify, verify_sample_and_match

from .table_causal_lm import NUM_PAGES, TableLM, context
from .tables import (
    Prefix,
    accepted_share,
    decoded_law,
    first_token,
    law,
    mean_accepted,
    table_model,
    target_law,
    verdicts,
)
from .wrong_rules import merge_equal_draws

TARGET = table_model(1, 4)
DRAFT = table_model(2, 4)
OTHER = table_model(3, 4)
SMALL_TARGET, SMALL_DRAFT, SMALL_OTHER = table_model(1, 3), table_model(2, 3), table_model(3, 3)
P, Q = law(3, 3, 2, 2), law(F(70), F(5), F(15), F(10))


def drafted_by(model, budget: int, **options):
    """The tree of a fresh draft model after any prefix."""

    def draft(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        drafter = DraftModel(TableLM(model), NUM_PAGES, shape=tree_shape(**options))  # type: ignore[arg-type]
        return drafter.propose([context(prefix, budget, randomness)])[0]

    return draft


class OverFractions(CounterRandomness):
    """Production randomness that takes rational laws."""

    def draw(self, law: Law, position, purpose, node=-1) -> int:
        return super().draw(Law(law.tokens, law.probs.astype(float)), position, purpose, node)


SHAPES = {
    "chain": (3, {}),
    "static": (5, {"tree": "static", "expansion": (2, 1, 1)}),
    "static paths": (4, {"tree": "static", "paths": [(0,), (2,), (0, 1), (0, 1, 0)]}),
    "dynamic": (5, {"tree": "dynamic", "topk": 2, "depth": 3}),
    "iid": (2, {"tree": "sampled", "expansion": (2,), "replacement": True}),
    "iid tree": (4, {"tree": "sampled", "expansion": (2, 1), "replacement": True}),
    "iid tree cut by its budget": (3, {"tree": "sampled", "expansion": (2, 2), "replacement": True}),
    "distinct": (3, {"tree": "sampled", "expansion": (3,)}),
    "distinct tree": (4, {"tree": "sampled", "expansion": (2, 1)}),
    "late distinct tree": (3, {"tree": "sampled", "expansion": (1, 2)}),
}


SAMPLE_AND_MATCH = ["chain", "static", "dynamic", "iid"]
CASES = [(shape, verify) for shape in SHAPES] + [(shape, verify_sample_and_match) for shape in SAMPLE_AND_MATCH]


@pytest.mark.parametrize(("shape", "rule"), CASES)
def test_text_has_the_targets_law(shape: str, rule) -> None:
    budget, options = SHAPES[shape]
    assert decoded_law(TARGET, drafted_by(DRAFT, budget, **options), rule, 2) == target_law(TARGET, 2)


@pytest.mark.parametrize(
    ("expansion", "replacement", "accepted"),
    [((1,), True, F(7, 10)), ((2,), True, F(19, 25)), ((3,), True, F(101, 125)), ((2,), False, F(41, 50))],
)
def test_siblings_stand_as_often_as_published(expansion, replacement, accepted) -> None:
    p, q = law(5, 3, 2), law(2, 3, 5)
    draft = drafted_by(lambda _: q, 3, tree="sampled", expansion=expansion, replacement=replacement)
    outcomes = verdicts(lambda randomness: draft((0,), randomness, 0), lambda _: p, verify)
    assert accepted_share(outcomes) == accepted
    assert first_token(outcomes, 3) == tuple(p.probs)


def test_chosen_tokens_stand_as_often_as_the_target_says_them() -> None:
    p, q = law(5, 3, 2), law(2, 3, 5)
    for width, accepted in ((1, F(1, 5)), (2, F(1, 2))):
        draft = drafted_by(lambda _: q, width, tree="dynamic", topk=width, depth=1)
        outcomes = verdicts(lambda randomness, d=draft: d((0,), randomness, 0), lambda _: p, verify)
        assert accepted_share(outcomes) == accepted
        assert first_token(outcomes, 3) == tuple(p.probs)


def test_merged_duplicates_would_be_noticed() -> None:
    """Two draws kept apart give p; the same tree with equal draws dropped gives the known wrong law."""
    draft = drafted_by(lambda _: Q, 2, tree="sampled", expansion=(2,), replacement=True)
    apart = verdicts(lambda randomness: draft((0,), randomness, 0), lambda _: P, verify)
    assert first_token(apart, 4) == tuple(P.probs)
    assert accepted_share(apart) == F(71, 100)

    def merged(randomness: Randomness) -> TokenTree:
        return merge_equal_draws(draft((0,), randomness, 0))

    wrong = first_token(verdicts(merged, lambda _: P, verify), 4)
    assert wrong == (F(3, 10), F(1467, 5800), F(47, 200), F(123, 580))


def test_top_tokens_sold_as_draws_would_be_noticed() -> None:
    p, q = law(5, 3, 2), law(2, 3, 5)
    draft = drafted_by(lambda _: q, 2, tree="dynamic", topk=2, depth=1)

    def sold_as_draws(randomness: Randomness) -> TokenTree:
        tree = draft((0,), randomness, 0)
        return TokenTree(tree.tokens, tree.parents, "iid", (q,), (0,) * len(tree))

    assert first_token(verdicts(sold_as_draws, lambda _: p, verify), 3) == (F(3, 5), 0, F(2, 5))


def test_a_length_policy_that_reads_laws_keeps_the_law() -> None:
    seen: list[int] = []

    def likely(laws) -> bool:
        seen.append(len(laws))
        return laws[-1].probs.max() >= F(1, 2)

    def draft(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        shape = tree_shape("sampled", expansion=(2, 2), replacement=True)
        drafter = DraftModel(TableLM(DRAFT), NUM_PAGES, shape=shape)  # type: ignore[arg-type]
        return drafter.propose([context(prefix, 4, randomness, keep_drafting=likely)])[0]

    assert decoded_law(TARGET, draft, verify, 2) == target_law(TARGET, 2)
    assert set(seen) == {1}


def test_draft_laws_are_those_of_the_path() -> None:
    """Every node of a drawn tree carries the law of its own prefix, as a fresh look-up gives it."""
    draft = drafted_by(DRAFT, 14, tree="sampled", expansion=(2, 2, 2), replacement=True)
    for seed in range(20):
        tree = draft((0, 1), OverFractions(seed), 2)
        assert len(tree) == 14
        for node in range(len(tree)):
            above = tree.tokens_to(tree.parents[node])
            assert tree.draft_law(node) is DRAFT((0, 1, *above))


def merged_from(models, expansions, budget: int):
    """The tree of a fresh SpecInfer pool after any prefix."""

    def draft(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        drafter = SpecInfer([TableLM(model) for model in models], expansions, NUM_PAGES)  # type: ignore[arg-type]
        return drafter.propose([context(prefix, budget, randomness)])[0]

    return draft


POOLS = {
    "two models": ((DRAFT, OTHER), [(1,), (1,)], 2),
    "a model twice": ((DRAFT, DRAFT), [(1,), (1,)], 2),
    "two chains": ((SMALL_DRAFT, SMALL_OTHER), [(1, 1), (1, 1)], 4),
    "a chain twice": ((SMALL_DRAFT, SMALL_DRAFT), [(1, 1), (1, 1)], 4),
    "uneven expansions": ((SMALL_DRAFT, SMALL_OTHER), [(2,), (1, 1)], 4),
    "cut by its budget": ((SMALL_DRAFT, SMALL_OTHER), [(1, 2), (1, 1)], 4),
    "three models": ((DRAFT, OTHER, TARGET), [(1,), (1,), (1,)], 3),
}


@pytest.mark.parametrize("pool", POOLS)
def test_the_text_of_a_pool_has_the_targets_law(pool: str) -> None:
    models, expansions, budget = POOLS[pool]
    target = SMALL_TARGET if SMALL_DRAFT in models else TARGET
    assert decoded_law(target, merged_from(models, expansions, budget), verify, 2) == target_law(target, 2)


def test_places_merged_below_equal_draws_stand_more_often_than_trees_side_by_side() -> None:
    """Both are exact; below a token that two models drew, merging tests the children of both."""
    models, expansions = (SMALL_DRAFT, SMALL_OTHER), [(1, 1), (1, 1)]

    def side_by_side(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        tokens, laws = [], []
        for offset, model in ((0, SMALL_DRAFT), (2, SMALL_OTHER)):
            first = randomness.draw(model(prefix), position, "draft", offset)
            tokens += [first, randomness.draw(model((*prefix, first)), position + 1, "draft", offset + 1)]
            laws += [model(prefix), model((*prefix, first))]
        return TokenTree(tuple(tokens), (-1, 0, -1, 2), "iid", tuple(laws), (0, 1, 2, 3))

    def accepted(draft) -> F:
        return mean_accepted(verdicts(lambda r: draft((0, 1), r, 2), lambda path: SMALL_TARGET((0, 1, *path)), verify))

    assert accepted(merged_from(models, expansions, 4)) > accepted(side_by_side)


def test_dropping_a_pools_equal_draws_would_be_noticed() -> None:
    pool = merged_from((lambda _: Q, lambda _: Q), [(1,), (1,)], 2)

    def dropped(randomness: Randomness) -> TokenTree:
        return merge_equal_draws(pool((0,), randomness, 0))

    kept = first_token(verdicts(lambda randomness: pool((0,), randomness, 0), lambda _: P, verify), 4)
    assert kept == tuple(P.probs)
    assert first_token(verdicts(dropped, lambda _: P, verify), 4) != kept


def test_each_trial_is_tested_against_the_law_it_came_from() -> None:
    """With the laws of two models swapped the text changes: the check would notice."""
    pool = merged_from((lambda _: Q, lambda _: P), [(1,), (1,)], 2)
    swap = merged_from((lambda _: law(1, 1, 1, 1), lambda _: Q), [(1,), (1,)], 2)

    def swapped(randomness: Randomness) -> TokenTree:
        tree = swap((0,), randomness, 0)
        assert tree.draft_laws is not None
        return TokenTree(tree.tokens, tree.parents, "iid", tree.draft_laws[::-1], tree.draft_rows)

    kept = first_token(verdicts(lambda randomness: pool((0,), randomness, 0), lambda _: P, verify), 4)
    assert kept == tuple(P.probs)
    assert first_token(verdicts(swapped, lambda _: P, verify), 4) != kept
