"""`TokenTree`: what it derives, what it refuses, and how proposals are united."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.sampling import ROOT, Law, TokenTree, union

HALF = Law(np.array([0, 1]), np.array([0.5, 0.5]))
BUSHY = TokenTree((5, 6, 7, 8, 9), (-1, -1, 0, 2, 1))


def test_derived_facts_of_a_bushy_tree() -> None:
    assert BUSHY.depths == (1, 1, 2, 3, 2)
    assert [BUSHY.children(node) for node in range(-1, 5)] == [(0, 1), (2,), (4,), (3,), (), ()]
    assert BUSHY.path_to(3) == (0, 2, 3)
    assert BUSHY.tokens_to(3) == (5, 7, 8)
    assert BUSHY.path_to(ROOT) == BUSHY.tokens_to(ROOT) == ()
    assert not BUSHY.is_chain
    assert BUSHY.draft_law(1).tokens.tolist() == [6]


@given(st.lists(st.integers(0, 100), max_size=12))
def test_depths_and_children_agree_with_the_paths(choices: list[int]) -> None:
    parents = tuple(choice % (node + 1) - 1 for node, choice in enumerate(choices))
    tree = TokenTree(tuple(range(len(parents))), parents)
    for node in range(len(tree)):
        assert tree.depths[node] == len(tree.path_to(node))
        assert node in tree.children(parents[node])
    assert tree.is_chain == (max(map(len, map(tree.children, range(-1, len(tree)))), default=0) <= 1)


def test_chains() -> None:
    assert TokenTree().is_chain
    deterministic = TokenTree.chain((4, 4, 4))
    assert (deterministic.parents, deterministic.draw, deterministic.is_chain) == ((-1, 0, 1), "one_hot", True)
    drawn = TokenTree.chain((0, 1), (HALF, HALF))
    assert drawn.draw == "iid"
    assert drawn.draft_law(1) is HALF


def test_prune_keeps_the_first_nodes_and_their_laws() -> None:
    assert BUSHY.prune(3).parents == (-1, -1, 0)
    assert BUSHY.prune(0).tokens == ()
    assert BUSHY.prune(9) is BUSHY
    drawn = TokenTree.chain((0, 1), (HALF, HALF)).prune(1)
    assert (drawn.draft_rows, drawn.draw) == ((0,), "iid")


def test_prune_caps_nodes_and_levels() -> None:
    assert BUSHY.prune(5, 3) is BUSHY
    flat = BUSHY.prune(5, 1)
    assert (flat.tokens, flat.parents) == ((5, 6), (-1, -1))
    two_levels = BUSHY.prune(5, 2)
    assert (two_levels.tokens, two_levels.parents) == ((5, 6, 7, 9), (-1, -1, 0, 1))  # node 4 is number 3 now
    assert BUSHY.prune(3, 2).tokens == (5, 6, 7)
    assert len(BUSHY.prune(0, 3)) == len(BUSHY.prune(5, 0)) == len(TokenTree().prune(5, 5)) == 0


drawn_trees = st.lists(st.tuples(st.integers(0, 100), st.integers(0, 1)), max_size=10).map(
    lambda nodes: TokenTree(
        tuple(token for _, token in nodes),
        tuple(choice % (node + 1) - 1 for node, (choice, _) in enumerate(nodes)),
        "iid",
        tuple(Law(np.array([0, 1]), np.array([0.5, 0.5])) for _ in nodes),
        tuple(reversed(range(len(nodes)))),
    )
)


@given(drawn_trees, st.integers(0, 11), st.integers(0, 5))
def test_what_pruning_keeps_it_keeps_as_it_was(tree: TokenTree, num_nodes: int, depth: int) -> None:
    """Of the nodes that lie high enough the first ones, in order, each with its path, its law and how it was drawn."""
    kept = [node for node in range(len(tree)) if tree.depths[node] <= depth][:num_nodes]
    pruned = tree.prune(num_nodes, depth)
    assert (len(pruned), pruned.draw) == (len(kept), "iid")
    for new, old in enumerate(kept):
        assert pruned.tokens_to(new) == tree.tokens_to(old)
        assert pruned.draft_law(new) is tree.draft_law(old)
        assert [kept[node] for node in pruned.path_to(new)] == list(tree.path_to(old))


def test_trie_stores_equal_prefixes_once() -> None:
    tree = TokenTree.trie([(1, 2), (1, 3), (4,), (1, 2, 5), ()])
    assert tree.tokens == (1, 2, 3, 4, 5)
    assert tree.parents == (-1, 0, 0, -1, 1)


def test_union_merges_chosen_children_and_keeps_drawn_ones_as_trials() -> None:
    certain = union([TokenTree.chain((1, 2)), TokenTree(), TokenTree.chain((1, 3))])
    assert (certain.tokens, certain.parents) == ((1, 2, 3), (-1, 0, 0))
    drawn = union([TokenTree.chain((1, 0), (HALF, HALF)), TokenTree.chain((1, 1), (HALF, HALF))])
    assert (drawn.tokens, drawn.parents) == ((1, 0, 1, 1), (-1, 0, -1, 0))
    assert drawn.draft_rows == (0, 1, 2, 3)
    assert len(union([])) == 0


def test_union_merges_what_was_chosen_and_lets_draws_be_trials_of_their_own() -> None:
    sure = Law.one_hot(1)
    chosen, drawn = TokenTree.chain((1, 2)), TokenTree.chain((1, 0, 1), (HALF, HALF, HALF))
    mixed = union([chosen, drawn])
    assert mixed.draw == "iid"
    assert (mixed.tokens, mixed.parents) == ((1, 2, 1, 0, 1), (-1, 0, -1, 0, 3))  # drawn 1 is a leaf, 0 hangs below 1
    assert mixed.draft_law(0).is_one_hot and not mixed.draft_law(2).is_one_hot
    greedy = union([chosen, TokenTree.chain((1, 1), (sure, sure))])
    assert (greedy.tokens, greedy.parents) == ((1, 2, 1), (-1, 0, 0))
    other_order = union([drawn, chosen])
    assert (other_order.tokens, other_order.parents) == ((1, 0, 1, 2), (-1, 0, 1, 0))


def test_union_refuses_draws_without_replacement() -> None:
    with pytest.raises(InvalidParameter, match="without_replacement"):
        union([TokenTree((1,), (-1,), "without_replacement", (HALF,), (0,))])


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("parents", ((1, 2), (-1,))),
        ("parents", ((1, 2), (-1, 1))),
        ("parents", ((1,), (-2,))),
        ("draft_laws", ((1,), (-1,), "iid")),
        ("draft_laws", ((1,), (-1,), "one_hot", (HALF,), (0,))),
        ("draft_rows", ((1,), (-1,), "iid", (HALF,), (0, 0))),
        ("draft_rows", ((1,), (-1,), "iid", (HALF,), (1,))),
        ("tokens", ((1, 1), (-1, -1))),
        ("tokens", ((1, 2, 2), (-1, 0, 0))),
        ("tokens", ((1, 1), (-1, -1), "without_replacement", (HALF,), (0, 0))),
    ],
)
def test_refusals_name_the_field(field: str, arguments: tuple) -> None:
    with pytest.raises(InvalidParameter) as caught:
        TokenTree(*arguments)
    assert caught.value.field == field
    assert caught.value.remedy


def test_trees_are_immutable_and_independent_draws_may_repeat() -> None:
    tree = TokenTree((1, 1), (-1, -1), "iid", (HALF,), (0, 0))
    assert tree.children(ROOT) == (0, 1)
    with pytest.raises(AttributeError):
        tree.tokens = (2,)  # pyright: ignore[reportAttributeAccessIssue]


def test_chances_stay_with_their_nodes():
    tree = TokenTree((5, 6, 7), (-1, 0, -1), chances=(0.9, 0.5, 0.3))
    assert tree.prune(2).chances == (0.9, 0.5)
    assert tree.prune(3, max_depth=1).chances == (0.9, 0.3)


@pytest.mark.parametrize("chances", [(0.5,), (0.5, 1.5), (0.5, float("nan"))])
def test_chances_are_one_probability_per_node(chances):
    with pytest.raises(InvalidParameter, match="chances"):
        TokenTree((1, 2), (-1, 0), chances=chances)


def test_drawn_nodes_have_no_chances():
    with pytest.raises(InvalidParameter, match="chances"):
        TokenTree((1,), (-1,), "iid", (Law.one_hot(1),), (0,), (0.5,))
