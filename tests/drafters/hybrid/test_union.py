"""`by_chance`: a model's chain and a free proposal in one tree, by hand and as a tree for any proposals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.drafters.hybrid.union import by_chance
from paceline.sampling import TokenTree

CHAIN = st.lists(st.integers(0, 3), min_size=1, max_size=4)
PATHS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=5)


def falling(tree: TokenTree, first: float) -> list[float]:
    """Chances that halve with every level."""
    return [first / 2 ** (depth - 1) for depth in tree.depths]


def test_what_both_say_is_likelier_and_what_only_one_says_keeps_its_place():
    chain, free = TokenTree.chain((1, 2)), TokenTree.trie([(1, 3), (4,)])
    tree = by_chance(chain, [0.6, 0.3], free, [0.5, 0.2, 0.4])
    likely = {tree.tokens_to(node): chance for node, chance in enumerate(tree.chances or ())}
    assert likely == pytest.approx({(1,): 0.8, (1, 2): 0.3, (1, 3): 0.08, (4,): 0.16})
    assert tree.tokens == (1, 2, 4, 3)


@given(
    chain=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    free=PATHS,
    first=st.floats(0.05, 1),
    other=st.floats(0, 1),
)
def test_every_path_of_both_is_there_once_and_chances_fall(chain, free, first, other):
    drafted, beside = TokenTree.chain(chain), TokenTree.trie(free)
    tree = by_chance(drafted, falling(drafted, first), beside, falling(beside, other))
    paths = [tree.tokens_to(node) for node in range(len(tree))]
    assert sorted(paths) == sorted({one.tokens_to(node) for one in (drafted, beside) for node in range(len(one))})
    assert list(tree.chances) == sorted(tree.chances, reverse=True)
