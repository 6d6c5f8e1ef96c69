"""Trees that grow from laws alone: which nodes, in which order, within which budget."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.drafters.base import DraftContext
from paceline.drafters.runners.growing import grow_all
from paceline.drafters.trees.blocks import Blocks
from paceline.drafters.trees.drawn import Drawn
from paceline.drafters.trees.dynamic import Dynamic
from paceline.drafters.trees.options import tree_shape
from paceline.drafters.trees.ranked import Ranked, closed, paths_of
from paceline.errors import InvalidParameter
from paceline.sampling import CounterRandomness, Law, TokenTree
from paceline.sampling.warp import NothingAllowed
from paceline.types import SamplingParams

A, B, C, D, E, F, G, H, K, L = range(10)
TOY = {
    (): {A: 0.6, B: 0.3}, (A,): {C: 0.5, D: 0.4}, (B,): {E: 0.9, F: 0.05}, (A, C): {G: 0.8, H: 0.1},
    (B, E): {K: 0.7, L: 0.2},
}  # fmt: skip


def context(budget, seed=0, **fields):
    fields.setdefault("params", SamplingParams())
    return DraftContext("r", [1, 2], 1, budget, warp=as_law, randomness=CounterRandomness(seed), **fields)


def as_law(logits, path):
    return Law(np.arange(len(logits)), np.asarray(logits, float)) if len(logits) > 1 else Law.one_hot(0)


def grown(growth, law_of):
    """The tree, and the frontiers asked for, when `law_of` answers for a path of tokens."""
    asked = []
    while growth.frontier:
        asked.append([tuple(growth.tokens_to(want.node)) for want in growth.frontier])
        growth.grow([law_of(path) for path in asked[-1]])
    return growth.tree(), asked


def toy_law(path):
    row = TOY.get(path, {A: 0.01})
    return Law(np.array(list(row)), np.array(list(row.values())))


@pytest.mark.parametrize(("budget", "kept"), [(4, [A, B, C, E]), (5, [A, B, C, D, E]), (7, [A, B, C, D, E, G, K])])
def test_the_dynamic_tree_keeps_the_most_confident_nodes(budget, kept):
    tree, asked = grown(Dynamic(context(budget), topk=2, depth=3), toy_law)
    assert sorted(tree.tokens) == sorted(kept)
    assert asked[:2] == [[()], [(A,), (B,)]]
    assert {tree.tokens_to(node) for node in range(len(tree))} <= {
        (A,), (B,), (A, C), (A, D), (B, E), (A, C, G), (B, E, K)
    }  # fmt: skip


def test_the_dynamic_frontier_is_the_best_of_its_level_and_stops_where_nothing_can_be_kept():
    assert grown(Dynamic(context(7), topk=2, depth=3), toy_law)[1][2] == [(A, C), (B, E)]
    assert grown(Dynamic(context(2), topk=2, depth=3), toy_law)[1] == [[()], [(A,), (B,)]]


def test_a_tree_of_blocks_keeps_the_best_blocks_and_whole_ones_only():
    """Two passes of two blocks of two tokens: (A, C) 0.3 and (B, E) 0.27 beat (A, D) 0.24."""
    deep = {(A, C): {G: 0.8, H: 0.1}, (B, E): {K: 0.7, L: 0.2}, (A, C, G): {D: 1.0}, (B, E, K): {F: 0.5, D: 0.4}}
    law_of = lambda path: toy_law(path) if path not in deep else Law(*map(np.array, zip(*deep[path].items())))  # noqa: B905, E731
    tree, asked = grown(Blocks(context(8), size=2, width=2, passes=2), law_of)
    assert asked == [[()], [(A,), (B,)], [(A, C), (B, E)], [(A, C, G), (B, E, K)]]
    leaves = {tree.tokens_to(node) for node in range(len(tree))} - {(A,), (B,), (A, C, G), (B, E, K)}
    assert leaves == {(A, C), (B, E), (A, C, G, D), (B, E, K, F)} and len(tree) == 8
    small, _ = grown(Blocks(context(5), size=2, width=2, passes=2), law_of)
    assert {small.tokens_to(node) for node in range(len(small))} == {(A,), (A, C), (B,), (B, E)}
    short, asked = grown(Blocks(context(8, max_depth=3), size=2, width=2, passes=2), law_of)
    assert len(short) == 4 and len(asked) == 2


def test_certain_children_do_not_outrank_their_parents():
    """A child of probability 1 has its parent's value; the tree must keep the parent first."""
    tree, _ = grown(Dynamic(context(3), topk=2, depth=8), lambda path: Law.one_hot(len(path)))
    assert (tree.tokens, tree.parents) == ((0, 1, 2), (-1, 0, 1))


def random_law(path, size=9, seed=0):
    weights = np.random.default_rng([seed, *path]).random(size) ** 3 + 1e-3
    return Law(np.arange(size), weights / weights.sum())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("budget", [1, 3, 8, 20])
def test_the_dynamic_tree_equals_a_slow_twin_that_expands_everything(budget, seed):
    topk, depth = 3, 4
    tree, asked = grown(Dynamic(context(budget), topk, depth), lambda path: random_law(path, seed=seed))
    values, level = {(): 1.0}, [()]
    for _ in range(depth):
        children = {}
        for path in level:
            for token, prob in zip(*random_law(path, seed=seed).top(topk), strict=True):
                children[(*path, token)] = values[path] * prob
        level = sorted(children, key=children.get, reverse=True)[:topk]
        values |= children
    del values[()]
    best = sorted(values, key=values.get, reverse=True)[:budget]
    assert sorted(tree.tokens_to(node) for node in range(len(tree))) == sorted(best)
    assert len(asked) <= depth
    assert all(len(frontier) <= topk for frontier in asked)


def test_a_static_tree_has_the_ranks_it_was_told():
    tree, asked = grown(Ranked(context(9), closed([(0, 1), (2,), (0, 1, 0)])), random_law)
    first, third = random_law(()).top(3)[0][::2]
    second = random_law((first,)).top(2)[0][1]
    last = random_law((first, second)).top(1)[0][0]
    assert [tree.tokens_to(n) for n in range(len(tree))] == [
        (first,), (third,), (first, second), (first, second, last)
    ]  # fmt: skip
    assert tree.draw == "one_hot"
    assert asked == [[()], [(first,)], [(first, second)]]


def test_a_static_tree_is_cut_from_its_end_and_skips_ranks_that_do_not_exist():
    paths = closed([(0,), (1,), (0, 0), (1, 0)])
    assert len(grown(Ranked(context(3), paths), random_law)[0]) == 3
    narrow, _ = grown(Ranked(context(9), paths), lambda path: Law.one_hot(4))
    assert (narrow.tokens, narrow.parents) == ((4, 4), (-1, 0))


def test_an_expansion_has_its_leaves_and_nodes():
    paths = paths_of((2, 2, 1))
    assert len(paths) == 10
    assert paths[:4] == [(0,), (1,), (0, 0), (0, 1)]
    assert closed(paths) == paths


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("budget", [1, 2, 5, 10, 40])
def test_a_drawn_tree_fills_its_expansion_within_the_budget(budget, replacement):
    for seed in range(10):
        growth = Drawn(context(budget, seed), [(2, 2, 1)], replacement)
        tree, asked = grown(growth, random_law)
        assert len(tree) == min(budget, 10)
        assert tree.draw == ("iid" if replacement else "without_replacement")
        assert sum(map(len, asked)) <= 1 + growth.max_rows


def test_copies_of_a_draw_share_what_lies_below_the_first():
    """From a law of two tokens, three draws repeat one: it is scored once, and keeps two nodes' children."""
    coin = Law(np.array([3, 5]), np.array([0.5, 0.5]))
    for seed in range(20):
        tree, asked = grown(Drawn(context(9, seed), [(3, 1)], True), lambda path: coin)
        assert len(tree) == 6
        assert len(asked[1]) == len(set(tree.tokens[:3])) <= 2
        for token in set(tree.tokens[:3]):
            copies = [node for node in range(3) if tree.tokens[node] == token]
            assert [len(tree.children(node)) for node in copies] == [len(copies), *[0] * (len(copies) - 1)]


def test_a_greedy_request_gets_the_most_likely_tokens_instead_of_equal_draws():
    greedy = context(6, params=SamplingParams(temperature=0))
    tree, _ = grown(Drawn(greedy, [(2, 1)], True), random_law)
    assert tree.draw == "one_hot"
    assert list(tree.tokens[:2]) == random_law(()).top(2)[0]


def test_several_sources_merge_places_and_keep_draws_apart():
    point = Law.one_hot(7)
    drawn = Drawn(context(9), [(1, 1), (1, 1)])
    drawn.grow([point, point])
    assert [want for want in drawn.frontier] == [(0, 0), (1, 0)]
    drawn.grow([point, random_law(())])
    tree = drawn.tree()
    assert tree.tokens[:3] == (7, 7, 7)
    assert tree.parents == (-1, -1, 0, 0)
    chosen = Drawn(context(9, params=SamplingParams(temperature=0)), [(1, 1), (1, 1)])
    chosen.grow([point, point])
    chosen.grow([Law.one_hot(1), Law.one_hot(2)])
    assert (chosen.tree().tokens, chosen.tree().parents) == ((7, 1, 2), (-1, 0, 0))


@pytest.mark.parametrize("seed", range(20))
def test_under_the_coupled_rule_the_first_candidate_wins_the_targets_race(seed):
    coupled = context(6, seed, coupled=True)
    law = random_law((seed,))
    for growth in (Drawn(coupled, [(3,)], False), Ranked(coupled, paths_of((3,))), Dynamic(coupled, 3, 1)):
        growth.grow([growth.law_below(-1, law.probs)])
        tokens = growth.tree().tokens
        rest = law
        for token in tokens:  # the order of the race, as plain sampling would run it without the tokens before
            assert coupled.randomness.draw(rest, 2, "target") == token
            rest = rest.without(token)
    assert len(tokens) == 3


def test_a_policy_that_says_no_stops_below_the_first_level():
    for shape in ("chain", "static", "dynamic", "sampled"):
        tree, asked = grown(tree_shape(shape).begin(context(8, keep_drafting=lambda laws: False)), random_law)
        assert asked == [[()]]
        assert len(tree) >= 1


def test_nothing_has_grown_before_the_first_round():
    for shape in ("chain", "static", "dynamic", "sampled"):
        assert len(tree_shape(shape).begin(context(8)).tree()) == len(TokenTree())


@pytest.mark.parametrize(
    ("options", "nodes"),
    [({}, 8), ({"tree": "static", "expansion": (2, 2, 1)}, 10), ({"tree": "static", "paths": [(0, 0), (1,)]}, 3),
     ({"tree": "dynamic"}, 8), ({"tree": "sampled", "expansion": (3, 1)}, 6),
     ({"tree": "blocks", "block_tokens": 2}, 12)],
)  # fmt: skip
def test_a_shape_knows_how_many_nodes_it_asks_for(options, nodes):
    assert tree_shape(**options).natural_budget == nodes


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tree": "oak"}, "tree"),
        ({"topk": 3}, "topk"),
        ({"tree": "dynamic", "expansion": (2,)}, "expansion"),
        ({"tree": "sampled", "expansion": ()}, "expansion"),
        ({"tree": "sampled", "expansion": (2, 0)}, "expansion"),
        ({"tree": "sampled", "expansion": "22"}, "expansion"),
        ({"tree": "static", "paths": [[0], 1]}, "paths"),
        ({"tree": "static", "paths": [[-1]]}, "paths"),
        ({"tree": "static", "paths": [[0]], "expansion": (1,)}, "paths"),
        ({"tree": "dynamic", "topk": 0}, "topk"),
        ({"tree": "dynamic", "depth": 2.5}, "depth"),
    ],
)
def test_options_that_describe_no_tree_are_refused(options, field):
    with pytest.raises(InvalidParameter, match=f"^{field}"):
        tree_shape(**options)


def ends_at(depth, chance):
    """Laws of a text that goes on with A; below `depth` of them its end is K with `chance`."""
    return lambda path: Law(np.array([A, K]), np.array([1 - chance, chance] if len(path) == depth else [0.999, 0.001]))


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize(("chance", "length"), [(0.9, 3), (0.4, 8)])
def test_a_chain_does_not_go_on_behind_the_likely_end_of_the_answer(chance, length, greedy):
    """Whether the end was drawn is not asked: a draft that stops for what was drawn might not follow the law."""
    for seed in range(10):
        params = SamplingParams(temperature=0) if greedy else SamplingParams()
        text = context(8, seed, params=params, end_token_ids={K})
        tree, _ = grown(Drawn(text), ends_at(2, chance))
        assert len(tree) == length
    assert len(grown(Drawn(context(8)), ends_at(2, 0.9))[0]) == 8


def test_a_tree_does_not_grow_below_a_law_that_ends():
    tree, asked = grown(Ranked(context(9, end_token_ids={K}), closed([(0, 0, 0, 0)])), ends_at(1, 0.9))
    assert tree.tokens == (A, K)
    assert asked == [[()], [(A,)]]


class Uniform:
    """A runner that has room for everything and gives every token the same logit."""

    can_hold = staticmethod(lambda growth: True)
    admit = staticmethod(lambda growths: growths)
    score = staticmethod(lambda work: [np.ones((len(nodes), 4), np.float32) for _, nodes in work])


@pytest.mark.parametrize("begin", [
    lambda context: Ranked(context, paths_of((2, 2, 2))), lambda context: Dynamic(context, topk=2, depth=3),
    lambda context: Blocks(context, size=1, width=4, passes=3), lambda context: Drawn(context, [(3, 2, 1)]),
    lambda context: Drawn(context, [(3, 2, 1)], replacement=False), lambda context: Drawn(context, [(1, 1), (2, 1)]),
])  # fmt: skip
@pytest.mark.parametrize("params", [SamplingParams(temperature=0), SamplingParams()])
def test_a_branch_ends_where_everything_is_forbidden_and_the_others_go_on(begin, params):
    def warp(logits, path):
        if path[-1:] in ([A], (A,)):
            raise NothingAllowed("logits", "every token is forbidden at this place", "allow one")
        return Law(np.arange(2), np.full(2, 0.5))

    def forbidden(logits, path):
        raise NothingAllowed("logits", "every token is forbidden at this place", "allow one")

    made = [begin(replace(context(30, seed, params=params), warp=warp)) for seed in range(8)]
    grow_all([Uniform(), Uniform()], made)
    paths = [tree.tokens_to(node) for tree in (each.tree() for each in made) for node in range(len(tree))]
    assert any(path[:1] == (B,) and len(path) > 1 for path in paths)
    assert (A,) in paths and not any(A in path[:-1] for path in paths)
    nothing = begin(replace(context(30, params=params), warp=forbidden))
    grow_all([Uniform(), Uniform()], [nothing])
    assert len(nothing.tree()) == 0
