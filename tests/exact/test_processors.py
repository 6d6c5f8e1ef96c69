"""Every logits processor applies per tree node, with the path to the node as its history, and stays exact.

Two halves: the rational processors stay exact in the decode loop over every kind of draft; and the production warper
gives, at every history such a loop can reach, the law that the rational processors give.
"""

import random
from fractions import Fraction as F
from functools import cache

import numpy as np
import pytest

from paceline.sampling import Law, Randomness, TokenTree, resolve
from paceline.sampling.grammar import cut

from .rational_warper import RationalProcessors, TableCursor, logits
from .tables import PROMPT, Drafter, Model, Prefix, decoded_law, drawn, ranked, target_law


def balanced(output: tuple[int, ...]) -> set[int]:
    """A grammar with choices, with places where one token is forced, and with dead ends for most drafts."""
    depth = output.count(0) - output.count(1)
    return {0} if depth == 0 and not output else {1, 2} if depth else {0} if output[-1] == 2 else {0, 2}


PROCESSORS = {
    "grammar": RationalProcessors(grammar=balanced),
    "grammar with others": RationalProcessors(grammar=balanced, power=2, frequency=F(2), bias={2: F(4)}),
    "temperature": RationalProcessors(power=2),
    "top-k": RationalProcessors(top_k=2),
    "top-p": RationalProcessors(top_p=F(3, 5)),
    "min-p": RationalProcessors(min_p=F(2, 7)),
    "repetition penalty": RationalProcessors(repetition=True),
    "presence penalty": RationalProcessors(presence=F(3)),
    "frequency penalty": RationalProcessors(frequency=F(5, 2)),
    "logit bias": RationalProcessors(bias={1: F(9, 4), 2: F(1, 9)}),
    "min tokens": RationalProcessors(min_tokens=2, end_ids=(2,)),
    "bad words": RationalProcessors(bad_words=((0, 1), (2,), (1, 1, 0))),
    "all together": RationalProcessors(
        bias={0: F(4)},
        repetition=True,
        presence=F(3, 2),
        frequency=F(7, 5),
        min_tokens=1,
        end_ids=(2,),
        bad_words=((0, 1),),
        power=2,
        min_p=F(1, 50),
        top_k=2,
        top_p=F(9, 10),
    ),
}
NUM_TOKENS = 3


def roots_model(seed: int):
    """Square roots of unnormalised weights, by the last token."""

    @cache
    def row(last: int) -> tuple[F, ...]:
        rng = random.Random(f"{seed} {last}")
        return tuple(F(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(3))

    return row


TARGET_ROOTS, DRAFT_ROOTS = roots_model(1), roots_model(2)


def warped(roots, processors: RationalProcessors) -> Model:
    def model(prefix: Prefix) -> Law:
        return processors.law(roots(prefix[-1]), PROMPT, prefix[len(PROMPT) :])

    return cache(model)


def cut_by_grammar(propose: Drafter) -> Drafter:
    """The drafts of `propose` as the engine verifies them."""

    def cut_tree(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        return cut(propose(prefix, randomness, position), TableCursor(balanced, prefix[len(PROMPT) :]))

    return cut_tree


def forced(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
    """What the grammar forces, nothing elsewhere."""
    return TokenTree.chain(TableCursor(balanced, prefix[len(PROMPT) :]).forced()[:2])


DRAFTS = {
    "chain": (lambda draft: drawn(draft, (1, 1)), "p/q"),
    "block": (lambda draft: drawn(draft, (1, 1)), "block"),
    "iid tree": (lambda draft: drawn(draft, (2, 1)), "p/q"),
    "tree without replacement": (lambda draft: drawn(draft, (2, 1), "without_replacement"), "p/q"),
    "ranked tree": (lambda draft: ranked(draft, (2, 2)), "p/q"),
    "matched": (lambda draft: ranked(draft, (2, 2)), "sample_and_match"),
    "rejection sampling": (lambda draft: drawn(draft, (2, 1)), "rejection_sampling"),
}


ALIKE = {"temperature", "logit bias", "presence penalty", "frequency penalty"}
"""Laws without zeros, whose trials take long to enumerate: rejection sampling is tried on one such."""


@pytest.mark.parametrize(
    ("name", "draft"),
    [(name, draft) for name in PROCESSORS for draft in DRAFTS if not (name in ALIKE and draft == "rejection sampling")],
)
def test_decode_loop_has_the_processed_law(name: str, draft: str) -> None:
    target, drafter_model = (warped(roots, PROCESSORS[name]) for roots in (TARGET_ROOTS, DRAFT_ROOTS))
    drafter, rule = DRAFTS[draft]
    assert decoded_law(target, drafter(drafter_model), resolve(rule), NUM_TOKENS) == target_law(target, NUM_TOKENS)


GRAMMAR = warped(TARGET_ROOTS, PROCESSORS["grammar"])
BLIND = warped(DRAFT_ROOTS, RationalProcessors())
"""A draft model that does not know of the grammar."""


@pytest.mark.parametrize("rule", ["auto", "p/q", "sample_and_match", "rejection_sampling", "coupled"])
@pytest.mark.parametrize("drafter", [ranked(BLIND, (2, 2)), cut_by_grammar(ranked(BLIND, (2, 2))), forced])
def test_drafts_that_know_nothing_of_the_grammar_stay_in_it(drafter: Drafter, rule: str) -> None:
    """Cut before they are verified or not, and where the grammar's forced tokens are the draft."""
    assert decoded_law(GRAMMAR, drafter, resolve(rule), NUM_TOKENS) == target_law(GRAMMAR, NUM_TOKENS)


def test_a_drawn_draft_is_not_cut_and_would_be_wrong_if_it_were() -> None:
    blind = drawn(BLIND, (2, 1))

    def careless(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        tree = blind(prefix, randomness, position)
        mask = TableCursor(balanced, prefix[len(PROMPT) :]).allowed()
        assert mask is not None and cut(tree, TableCursor(balanced, prefix[len(PROMPT) :])) is tree
        roots = [node for node in tree.children(-1) if mask[tree.tokens[node]]]
        laws = None if tree.draft_laws is None else tuple(tree.draft_law(node) for node in roots)
        tokens = tuple(tree.tokens[node] for node in roots)
        return TokenTree(tokens, (-1,) * len(roots), "iid", laws, tuple(range(len(roots))))

    exact = target_law(GRAMMAR, NUM_TOKENS)
    assert decoded_law(GRAMMAR, blind, resolve("p/q"), NUM_TOKENS) == exact
    assert decoded_law(GRAMMAR, careless, resolve("p/q"), NUM_TOKENS) != exact


@pytest.mark.parametrize("name", PROCESSORS)
def test_processor_changes_the_law(name: str) -> None:
    plain, processed = (warped(TARGET_ROOTS, p) for p in (RationalProcessors(), PROCESSORS[name]))
    assert target_law(plain, NUM_TOKENS) != target_law(processed, NUM_TOKENS)


@pytest.mark.parametrize("name", PROCESSORS)
def test_warper_agrees_with_the_rational_processors(name: str) -> None:
    """However much of the history is committed and how much is the path of a draft."""
    processors = PROCESSORS[name]
    for roots in (TARGET_ROOTS, DRAFT_ROOTS):
        model = warped(roots, processors)
        for length in range(NUM_TOKENS):
            reachable = model if processors.grammar else warped(roots, RationalProcessors())
            for history in target_law(reachable, length):
                exact = model(PROMPT + history)
                row = logits(roots((*PROMPT, *history)[-1]))
                for done in range(length + 1):
                    law = processors.warper(PROMPT, history[:done]).law(row, history[done:])
                    assert law.tokens.tolist() == exact.tokens.tolist(), history
                    np.testing.assert_allclose(law.probs, exact.probs.astype(float), rtol=0, atol=1e-12)


def test_a_history_that_stops_at_the_root_changes_the_law() -> None:
    """The common mistake: penalties worked out once for the whole draft, from the committed tokens."""
    processors = PROCESSORS["frequency penalty"]
    draw_chain = drawn(warped(DRAFT_ROOTS, processors), (1, 1))
    committed: list[Prefix] = []

    def drafter(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        committed[:] = [prefix]
        return draw_chain(prefix, randomness, position)

    def careless(prefix: Prefix) -> Law:
        return processors.law(TARGET_ROOTS(prefix[-1]), PROMPT, committed[0][len(PROMPT) :])

    assert decoded_law(careless, drafter, resolve("p/q"), 2) != target_law(warped(TARGET_ROOTS, processors), 2)
