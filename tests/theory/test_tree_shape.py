"""Medusa's construction: published accuracies, brute force, and what it refuses."""

from fractions import Fraction
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import InvalidParameter
from paceline.theory.tree_shape import best_tree, expected_tree_tokens, marginal_accuracies

VICUNA_7B = [  # cumulative top-1 to top-5 of Medusa's five heads
    (0.5604, 0.6717, 0.7271, 0.7599, 0.7799),
    (0.3164, 0.4236, 0.4851, 0.5282, 0.5625),
    (0.2010, 0.2879, 0.3475, 0.3834, 0.4169),
    (0.1474, 0.2250, 0.2737, 0.3109, 0.3397),
    (0.1175, 0.1866, 0.2346, 0.2721, 0.2998),
]
MEDUSA = [marginal_accuracies(row) for row in VICUNA_7B]


@pytest.mark.parametrize(
    ("num_nodes", "tokens"), [(1, 1.560), (5, 1.964), (10, 2.127), (20, 2.258), (32, 2.321), (63, 2.384)]
)
def test_published_accuracies_give_the_known_trees(num_nodes, tokens):
    paths = best_tree(MEDUSA, num_nodes)
    assert len(set(paths)) == num_nodes
    assert expected_tree_tokens(MEDUSA, paths) == pytest.approx(tokens, abs=6e-4)


def test_the_first_nodes_are_the_known_ones():
    known = [(0,), (0, 0), (1,), (0, 1), (2,), (0, 0, 0), (1, 0), (0, 2), (3,), (0, 3)]
    assert best_tree(MEDUSA, 10) == known
    chain = [(0,) * depth for depth in range(1, 6)]
    assert expected_tree_tokens(MEDUSA, chain) == pytest.approx(1.779, abs=6e-4)


def test_cumulative_rows_taken_for_marginals_are_refused():
    with pytest.raises(InvalidParameter, match="marginal rates"):
        best_tree(VICUNA_7B, 5)


rows = st.lists(st.integers(0, 9), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(st.lists(rows, min_size=1, max_size=3), st.integers(0, 4))
def test_no_tree_of_the_size_is_better(weights, num_nodes):
    accuracies = [[Fraction(weight, 30) for weight in row] for row in weights]
    depths = range(1, len(accuracies) + 1)
    paths = [path for depth in depths for path in product(*(range(len(row)) for row in accuracies[:depth]))]
    closed = (
        chosen
        for chosen in combinations(paths, min(num_nodes, len(paths)))
        if all(path[:-1] in chosen for path in chosen if len(path) > 1)
    )
    found = best_tree(accuracies, num_nodes)
    assert expected_tree_tokens(accuracies, found) == max(expected_tree_tokens(accuracies, each) for each in closed)
    assert all(path[:-1] in found[: found.index(path)] for path in found if len(path) > 1)


def test_ranks_that_never_hit_get_no_node():
    assert best_tree([[0.5, 0.0, 0.2]], 9) == [(0,), (2,)]
    assert best_tree([[0.2, 0.5]], 1) == [(1,)]
    assert best_tree([], 3) == best_tree([[0.5]], 0) == []


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: best_tree([[1.2]], 1), "accuracies"),
        (lambda: best_tree([[0.5]], -1), "num_nodes"),
        (lambda: marginal_accuracies([0.5, 0.4]), "cumulative"),
        (lambda: expected_tree_tokens([[0.5]], [(0, 0)]), "paths"),
        (lambda: expected_tree_tokens([[0.5]], [(1,)]), "paths"),
    ],
)
def test_bad_input_names_its_field(call, field):
    with pytest.raises(InvalidParameter, match=f"^{field}"):
        call()
