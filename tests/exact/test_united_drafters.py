"""Chosen and drawn proposals in one tree, and the hybrid drafter that makes such trees: the text keeps its law."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters.base import BaseDrafter, DraftContext
from paceline.drafters.hybrid.child import Child
from paceline.drafters.hybrid.drafter import Hybrid
from paceline.sampling import Law, Randomness, TokenTree, union, verify, verify_sample_and_match
from paceline.sampling.rules import verify_auto
from paceline.speculation import DrafterTraits, FixedPrices
from paceline.types import SamplingParams
from tests.fakes import tell

from .enumerator import EnumeratedRandomness, first_outcome, law_of
from .tables import PROMPT, Prefix, decoded_law, drawn, law, ranked, step, table_model, target_law

TARGET = table_model(1, 3)
DRAFT = table_model(2, 3)
GUESS = table_model(3, 3)


def united(*drafters):
    """The union of what `drafters` propose; only one of them may draw."""

    def draft(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        return union([drafter(prefix, randomness, position) for drafter in drafters])

    return draft


@pytest.mark.parametrize("rule", [verify, verify_sample_and_match, verify_auto])
@pytest.mark.parametrize(
    "shapes", [((1,), (1,)), ((2,), (1, 1)), ((1, 1), (1, 1)), ((1, 1), (2,)), ((2, 1), (1, 1))], ids=str
)
@pytest.mark.parametrize("order", ["chosen first", "drawn first"])
def test_a_union_of_chosen_and_drawn_nodes_has_the_targets_law(shapes, order, rule):
    parts = ranked(GUESS, shapes[0]), drawn(DRAFT, shapes[1])
    draft = united(*(parts if order == "chosen first" else parts[::-1]))
    assert decoded_law(TARGET, draft, rule, 2) == target_law(TARGET, 2)


weights = st.lists(st.integers(0, 4), min_size=4, max_size=4).filter(any)


@settings(max_examples=25, deadline=None)
@given(weights, weights, weights, weights, st.lists(st.lists(st.integers(0, 3), max_size=2), max_size=2))
def test_any_chosen_paths_beside_any_draws_have_the_targets_law(p, p_below, q, q_below, paths):
    def target(prefix: Prefix) -> Law:
        return law(*p_below) if prefix and prefix[-1] % 2 else law(*p)

    def draft(prefix: Prefix) -> Law:
        return law(*q_below) if prefix and prefix[-1] % 2 else law(*q)

    both = united(lambda *_: TokenTree.trie(paths), drawn(draft, (1, 1)))
    assert decoded_law(target, both, verify, 2, ()) == target_law(target, 2, ())


def test_what_was_drafted_below_a_repeated_token_is_not_lost():
    """Both say token 0; its continuation stands below the chosen node and is accepted there."""
    sure = law(1, 0)
    chain = drawn(lambda prefix: law(1, 1) if not prefix else sure, (1, 1))
    both = united(lambda *_: TokenTree.chain((0,)), chain)
    outcomes = law_of(lambda r: len(step((), lambda _: sure, both, verify, r)))
    apart = law_of(lambda r: len(step((), lambda _: sure, lambda *_: TokenTree.chain((0,)), verify, r)))
    assert max(outcomes) == 3
    assert max(apart) == 2


def adaptive_chain(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
    """Ends after its first token unless the law there is flat: the length depends on what was drawn, lawfully."""
    first_law = DRAFT(prefix)
    first = randomness.draw(first_law, position, "draft", 0)
    below = DRAFT((*prefix, first))
    if below.probs.max() > law(3, 2).probs[0]:
        return TokenTree.chain((first,), (first_law,))
    return TokenTree.chain((first, randomness.draw(below, position + 1, "draft", 1)), (first_law, below))


def test_a_neighbour_chosen_by_the_length_of_a_draw_changes_the_law():
    """Why the hybrid settles what stands beside a draft before it is drawn."""

    def leftover(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        chain = adaptive_chain(prefix, randomness, position)
        return union([ranked(GUESS, (1,))(prefix, randomness, position).prune(2 - len(chain)), chain])

    assert decoded_law(TARGET, united(ranked(GUESS, (1,)), adaptive_chain), verify, 2) == target_law(TARGET, 2)
    assert decoded_law(TARGET, leftover, verify, 2) != target_law(TARGET, 2)


class Chooser(BaseDrafter):
    """Proposes the likeliest tokens of GUESS, and is as sure of itself as it is told to be."""

    name = "chooser"
    traits = DrafterTraits(branches=True, deterministic=True, estimates=True)

    def __init__(self, confidence: float, shape=(2, 1)) -> None:
        self._confidence, self._draft = confidence, ranked(GUESS, shape)

    def propose(self, contexts):
        return [self._sure(self._draft(tuple(c.token_ids), c.randomness, 0)).prune(c.budget) for c in contexts]

    def _sure(self, tree: TokenTree) -> TokenTree:
        return replace(tree, chances=(self._confidence / len(tree),) * len(tree))


class Drawer(BaseDrafter):
    """Draws a chain from `model`, as long as it may."""

    name = "drawer"

    def __init__(self, model=DRAFT) -> None:
        self._model = model

    def propose(self, contexts):
        return [self._chain(context) for context in contexts]

    def _chain(self, context: DraftContext) -> TokenTree:
        tokens: Prefix = ()
        laws: list[Law] = []
        while len(tokens) < context.budget and (not laws or context.keep_drafting(laws)):
            laws.append(self._model((*context.token_ids, *tokens)))
            position = len(context.token_ids) + len(tokens)
            tokens += (context.draw_node(laws[-1], position, len(tokens)),)
        return TokenTree.chain(tokens, laws)


def no_warp(logits, path) -> Law:
    raise AssertionError("these drafters have no logits")


def context_of(prefix: Prefix, randomness: Randomness, budget: int = 3) -> DraftContext:
    return DraftContext("r", list(prefix), len(PROMPT), budget, SamplingParams(), no_warp, randomness)


PRICES = FixedPrices(lambda rows, _context: 1 + 0.05 * (rows - 1))


def hybrid(chooser: Chooser | Drawer, drawer: Drawer, *cost_ratios: float) -> Hybrid:
    """Both, at prices that do not change: its clock stands still."""
    children = [Child(each, PRICES, ratio) for each, ratio in zip((chooser, drawer), cost_ratios, strict=True)]
    return Hybrid(children, clock=lambda: 0.0)


@pytest.mark.parametrize(
    ("confidence", "cost_ratio", "draws"),
    [(0.9, 0.001, {"iid"}), (0.0, 0.2, {"iid"}), (3.0, 0.5, {"one_hot"})],
)
@pytest.mark.parametrize("rule", [verify, verify_sample_and_match, verify_auto])
def test_a_step_of_the_hybrid_has_the_targets_law(confidence, cost_ratio, draws, rule):
    seen: set[str] = set()

    def draft(prefix: Prefix, randomness: Randomness, position: int) -> TokenTree:
        [tree] = hybrid(Chooser(confidence), Drawer(), 0.0, cost_ratio).propose([context_of(prefix, randomness)])
        seen.add(tree.draw)
        return tree

    assert decoded_law(TARGET, draft, rule, 2) == target_law(TARGET, 2)
    assert seen == draws


@pytest.mark.parametrize("rule", [verify, verify_auto])
def test_the_whole_loop_with_all_it_remembers_has_the_targets_law(rule):
    """Who drafts follows what was accepted before; the loop is enumerated as one piece, and its keys are watched."""
    target, draft = table_model(1, 2), table_model(2, 2)

    def loop(randomness: EnumeratedRandomness) -> Prefix:
        both = hybrid(Chooser(0.4, (1, 1)), Drawer(draft), 0.0, 0.3)
        prefix = PROMPT
        while len(prefix) < len(PROMPT) + 3:
            [tree] = both.propose([replace(context_of(prefix, randomness), budget=2)])
            prefix += step(prefix, target, lambda *_, tree=tree: tree, rule, randomness)
            tell(both, "r", list(prefix), finished=False)
        decided = [key for key in randomness.keys if key[1] == "accept"]
        assert len(set(decided)) == len(decided), "a coin was used twice"
        return prefix[len(PROMPT) : len(PROMPT) + 3]

    assert law_of(loop) == target_law(target, 3)


def test_children_draw_under_numbers_of_their_own():
    randomness = first_outcome()
    hybrid(Drawer(), Drawer(), 0.1, 0.01).propose([context_of(PROMPT, randomness)])
    numbers = {node for _, purpose, node in randomness.keys if purpose == "draft"}
    assert min(numbers) == 1 << 16
