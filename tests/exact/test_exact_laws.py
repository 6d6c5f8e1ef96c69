"""The law of the text under every exact rule EQUALS the target's, in rational arithmetic, for every kind of draft."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sampling import (
    Law,
    Randomness,
    TokenTree,
    union,
    verify,
    verify_block,
    verify_rejection_sampling,
    verify_sample_and_match,
)
from paceline.sampling.rules import verify_auto
from paceline.sampling.tree import Draw
from paceline.sampling.verify import Verdict
from paceline.theory import rejection_sampling_acceptance

from .enumerator import EnumeratedRandomness, first_outcome, law_of
from .tables import (
    PROMPT,
    Drafter,
    Model,
    Prefix,
    accepted_share,
    decoded_law,
    drawn,
    first_token,
    law,
    mean_accepted,
    no_draft,
    ranked,
    step,
    table_model,
    target_law,
    verdicts,
)

TARGET = table_model(1, 3)
DRAFT = table_model(2, 3)
OTHER_DRAFT = table_model(3, 3)

RULES = {
    "p/q": verify,
    "block": verify_block,
    "sample and match": verify_sample_and_match,
    "rejection sampling": verify_rejection_sampling,
    "auto": verify_auto,
}
CHAINS = {
    "plain": no_draft,
    "chain of 1": drawn(DRAFT, (1,)),
    "chain of 2": drawn(DRAFT, (1, 1)),
    "chain of 3": drawn(DRAFT, (1, 1, 1)),
    "self-drafted chain": drawn(TARGET, (1, 1)),
    "ranked chain": ranked(DRAFT, (1, 1, 1)),
}
TREES = {
    "2 iid": drawn(DRAFT, (2,)),
    "3 iid": drawn(DRAFT, (3,)),
    "iid tree": drawn(DRAFT, (2, 1)),
    "iid tree branching late": drawn(DRAFT, (1, 2)),
    "2 without replacement": drawn(DRAFT, (2,), "without_replacement"),
    "3 without replacement": drawn(DRAFT, (3,), "without_replacement"),
    "tree without replacement": drawn(DRAFT, (2, 1), "without_replacement"),
    "ranked tree": ranked(DRAFT, (2, 2, 1)),
}
CASES = [(rule, draft) for rule in RULES for draft in CHAINS]
CASES += [(rule, draft) for rule in RULES if rule != "block" for draft in TREES]


@pytest.mark.parametrize(("rule", "draft"), CASES)
def test_text_has_the_targets_law(rule: str, draft: str) -> None:
    assert decoded_law(TARGET, (CHAINS | TREES)[draft], RULES[rule], 3) == target_law(TARGET, 3)


def test_bushy_tree_without_replacement_has_the_targets_law() -> None:
    assert decoded_law(TARGET, drawn(DRAFT, (2, 2), "without_replacement"), verify, 2) == target_law(TARGET, 2)


def test_siblings_of_two_drafters_have_the_targets_law() -> None:
    def draft(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        laws = DRAFT(prefix), OTHER_DRAFT(prefix)
        tokens = tuple(randomness.draw(laws[node], position, "draft", node) for node in (0, 1))
        return TokenTree(tokens, (-1, -1), "iid", laws, (0, 1))

    assert decoded_law(TARGET, draft, verify, 2) == target_law(TARGET, 2)


def test_united_chains_of_two_drafters_have_the_targets_law() -> None:
    def draft(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        trees = []
        for offset, model in ((0, DRAFT), (2, OTHER_DRAFT)):
            first = randomness.draw(model(prefix), position, "draft", offset)
            second = randomness.draw(model((*prefix, first)), position + 1, "draft", offset + 1)
            trees.append(TokenTree.chain((first, second), (model(prefix), model((*prefix, first)))))
        return union(trees)

    for rule in (verify, verify_auto, verify_rejection_sampling):
        assert decoded_law(TARGET, draft, rule, 2) == target_law(TARGET, 2)


def test_auto_judges_chosen_drafts_by_the_targets_pick_and_drawn_ones_by_ratio() -> None:
    """A draw from q stands with 1 - TV = 0.7, where a match would have 0.29; its most probable token with p alone."""
    p, q = law(5, 3, 2), law(2, 3, 5)
    for draft, accepted in ((drawn(lambda _: q, (1,)), Fraction(7, 10)), (ranked(lambda _: q, (1,)), Fraction(1, 5))):
        outcomes = verdicts(lambda r, d=draft: d((), r, 0), lambda _: p, verify_auto)
        assert accepted_share(outcomes) == accepted
        assert first_token(outcomes, 3) == tuple(p.probs)
    coins = [
        {purpose for _, purpose, _ in randomness.keys} - {"draft"}
        for draft in (ranked(DRAFT, (2, 1)), drawn(DRAFT, (2, 1)))
        for randomness in [first_outcome()]
        for _ in [step(PROMPT, TARGET, draft, verify_auto, randomness)]
    ]
    assert coins == [{"target"}, {"accept", "target"}]


def test_auto_is_exact_where_drafts_change_their_kind_within_a_text() -> None:
    """Chosen chains, draws and unions of both take turns, by what was accepted; the loop is enumerated as one piece."""
    target, draft = table_model(1, 2), table_model(2, 2)
    kinds = [ranked(draft, (1, 1)), drawn(draft, (1, 1)), drawn(draft, (2,)), _beside(draft)]

    def loop(randomness: EnumeratedRandomness) -> Prefix:
        prefix, kind = PROMPT, 0
        while len(prefix) < len(PROMPT) + 3:
            emitted = step(prefix, target, kinds[kind % len(kinds)], verify_auto, randomness)
            kind += len(emitted)
            prefix += emitted
        decided = [key for key in randomness.keys if key[1] != "draft"]
        assert len(set(decided)) == len(decided), "a coin or a pick was used twice"
        return prefix[len(PROMPT) : len(PROMPT) + 3]

    assert law_of(loop) == target_law(target, 3)


def _beside(draft: Model) -> Drafter:
    """The most probable token of `draft` beside a draw from it."""

    def both(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        return union([each(prefix, randomness, position) for each in (ranked(draft, (1,)), drawn(draft, (1,)))])

    return both


def test_a_draft_may_ignore_the_vocabulary_of_the_target() -> None:
    beyond = table_model(5, 5)
    assert decoded_law(TARGET, drawn(beyond, (1, 1)), verify, 2) == target_law(TARGET, 2)


@pytest.mark.parametrize("rule", [verify, verify_block, verify_rejection_sampling])
def test_adaptive_length_that_sees_laws_and_prefix_is_exact(rule) -> None:
    def draft(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        tokens: Prefix = ()
        laws: list[Law] = []
        while len(tokens) < 3 and DRAFT(prefix + tokens).probs.max() >= law(1, 1).probs[0]:
            laws.append(DRAFT(prefix + tokens))
            tokens += (randomness.draw(laws[-1], position + len(tokens), "draft", len(tokens)),)
        return TokenTree.chain(tokens, laws)

    assert {len(draft(prefix, first_outcome(), 2)) for prefix in target_law(TARGET, 2)} >= {0, 1, 2}
    assert decoded_law(TARGET, draft, rule, 3) == target_law(TARGET, 3)


@pytest.mark.parametrize("rule", [verify, verify_block, verify_rejection_sampling])
def test_length_that_follows_past_acceptance_is_exact_over_the_whole_loop(rule) -> None:
    """The loop keeps state between turns, so it is enumerated as one piece, and its keys are watched."""
    target, draft = table_model(1, 2), table_model(2, 2)

    def loop(randomness: EnumeratedRandomness) -> Prefix:
        prefix, length = PROMPT, 1
        while len(prefix) < len(PROMPT) + 3:
            emitted = step(prefix, target, drawn(draft, (1,) * length), rule, randomness)
            length = 2 if len(emitted) == length + 1 else 0 if length else 1
            prefix += emitted
        decided = [key for key in randomness.keys if key[1] != "draft"]
        assert len(set(decided)) == len(decided), "a coin or a final draw was used twice"
        return prefix[len(PROMPT) : len(PROMPT) + 3]

    assert law_of(loop) == target_law(target, 3)


def test_block_accepts_more_than_the_token_rule() -> None:
    """The motivating example of Sun et al. 2024: 11/9 accepted tokens of 2 against 10/9."""
    target, draft = law(1, 2), law(2, 1)
    chain = drawn(lambda _: draft, (1, 1))
    by_rule = [verdicts(lambda r: chain((), r, 0), lambda _: target, rule) for rule in (verify, verify_block)]
    assert [mean_accepted(outcomes) * 9 for outcomes in by_rule] == [10, 11]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("length", [1, 2, 3])
def test_block_never_accepts_less_than_the_token_rule(seed: int, length: int) -> None:
    target, draft = table_model(seed, 3), table_model(seed + 100, 3)
    chain = drawn(draft, (1,) * length)
    token_rule, block_rule = (
        mean_accepted(verdicts(lambda r: chain((), r, 0), target, rule)) for rule in (verify, verify_block)
    )
    assert block_rule >= token_rule
    assert length > 1 or block_rule == token_rule


weights = st.lists(st.integers(0, 6), min_size=4, max_size=4).filter(any)


@st.composite
def small_trees(draw: st.DrawFn) -> tuple[tuple[int, ...], Draw]:
    """Parents of up to 3 nodes, and how the siblings are drawn."""
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, 3))))
    hows: tuple[Draw, ...] = ("iid", "without_replacement", "one_hot")
    return parents, draw(st.sampled_from(hows))


def _grow(parents: tuple[int, ...], how: Draw, draft: Law, randomness: Randomness) -> TokenTree:
    """A tree of that shape whose every level is drafted from `draft`; siblings that cannot be drawn are left out."""
    tokens: list[int] = []
    kept: list[int] = []
    names: dict[int, int] = {-1: -1}
    for node, parent in enumerate(parents):
        if parent not in names:
            continue
        siblings = [tokens[i] for i in range(len(tokens)) if kept[i] == names[parent]]
        rest = draft if how == "iid" else draft.without(*siblings)
        if how != "iid" and len(set(siblings)) == len(draft.tokens):
            continue
        names[node] = len(tokens)
        tokens.append(rest.mode if how == "one_hot" else randomness.draw(rest, 0, "draft", node))
        kept.append(names[parent])
    if how == "one_hot":
        return TokenTree(tuple(tokens), tuple(kept))
    return TokenTree(tuple(tokens), tuple(kept), how, (draft,), (0,) * len(tokens))


@settings(max_examples=40, deadline=None)
@given(target_weights=weights, below_weights=weights, draft_weights=weights, shape=small_trees())
def test_any_laws_and_any_tree_give_the_targets_law(target_weights, below_weights, draft_weights, shape) -> None:
    parents, how = shape
    root, below, draft = law(*target_weights), law(*below_weights), law(*draft_weights)

    def target(prefix: Prefix) -> Law:
        return below if prefix and prefix[-1] % 2 else root

    def drafter(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        return _grow(parents, how, draft, randomness)

    for rule in (verify, verify_auto, verify_rejection_sampling):
        assert decoded_law(target, drafter, rule, 2, ()) == target_law(target, 2, ())


@settings(max_examples=30, deadline=None)
@given(weights, weights, weights, weights, st.integers(0, 2))
def test_any_laws_give_the_targets_law_under_block(p, p_below, q, q_below, length) -> None:
    def target(prefix: Prefix) -> Law:
        return law(*p_below) if prefix and prefix[-1] % 2 else law(*p)

    def draft(prefix: Prefix) -> Law:
        return law(*q_below) if prefix and prefix[-1] % 2 else law(*q)

    assert decoded_law(target, drawn(draft, (1,) * length), verify_block, 2, ()) == target_law(target, 2, ())


@given(weights, weights)
def test_rejection_sampling_accepts_as_often_as_theory_says(target_weights, draft_weights) -> None:
    """1 / M, never above the p/q rule; with k independent siblings 1 - (1 - 1 / M)^k."""
    p, q = law(*target_weights), law(*draft_weights)
    tokens = np.arange(4)
    once = rejection_sampling_acceptance(p.on(tokens), q.on(tokens))
    for width in (1, 2):
        siblings = drawn(lambda _: q, (width,))
        outcomes = verdicts(lambda r, d=siblings: d((), r, 0), lambda _: p, verify_rejection_sampling)
        assert accepted_share(outcomes) == 1 - (1 - once) ** width
        assert first_token(outcomes, 4) == tuple(p.on(tokens))
    assert p.rejection_acceptance(q) == once <= p.overlap(q)


@pytest.mark.parametrize("rule", [verify, verify_sample_and_match, verify_rejection_sampling])
def test_verdict_of_a_greedy_target(rule) -> None:
    greedy = {(): law(0, 1, 0), (1,): law(0, 0, 1), (1, 2): law(1, 0, 0)}

    def judge(tree: TokenTree) -> Verdict:
        return rule(tree, lambda node: greedy[tree.tokens_to(node)], first_outcome(), 0)

    assert judge(TokenTree()) == Verdict((), 1, "target", 0)
    assert judge(TokenTree.chain((1, 2))) == Verdict((0, 1), 0, "bonus", 0)
    assert judge(TokenTree.chain((1, 0))) == Verdict((0,), 2, "recovered", 1)
    assert judge(TokenTree.chain((0, 2))) == Verdict((), 1, "recovered", 1)
    assert judge(TokenTree.trie([(0,), (2,), (1, 0), (1, 2)])) == Verdict((2, 4), 0, "bonus", 3)
    assert judge(TokenTree.trie([(1, 0), (1, 1)])) == Verdict((0,), 2, "recovered", 2)


@pytest.mark.parametrize(
    ("rule", "tests"),
    [
        (verify, "accept"), (verify_block, "accept"), (verify_rejection_sampling, "accept"),
        (verify_sample_and_match, "target"),
    ],
)  # fmt: skip
def test_every_key_names_the_position_it_decides(rule, tests: str) -> None:
    """A draft of three that is accepted whole from position 10 on; block and p/q test, matching draws."""
    fair = law(1, 1)
    tree = TokenTree.chain((0, 0, 0), (fair,) * 3)
    randomness = first_outcome()
    assert rule(tree, lambda _: fair, randomness, 10).path == (0, 1, 2)
    nodes = range(3) if tests == "accept" else [-1] * 3
    wanted = [(10 + depth, tests, node) for depth, node in enumerate(nodes)]
    assert randomness.keys == [*wanted, (13, "target", -1)]


@pytest.mark.parametrize("chance", [0.5, np.float32(0.5)])
def test_the_enumerator_refuses_floats(chance) -> None:
    with pytest.raises(TypeError, match=r"0\.5.* entered exact arithmetic"):
        law_of(lambda randomness: randomness.coin(chance, 0, 0))


def test_the_enumerator_refuses_a_law_that_lacks_something() -> None:
    leaky = Law(np.arange(2), np.array([Fraction(1, 2), Fraction(1, 3)], object))
    with pytest.raises(AssertionError, match="carry 5/6, not 1"):
        law_of(lambda randomness: randomness.draw(leaky, 0, "draft"))
