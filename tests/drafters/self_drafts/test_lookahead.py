"""Lookahead and Jacobi decoding: pool, window, and both at work on models whose picks are known."""

from types import SimpleNamespace

import numpy as np
import pytest

from paceline.drafters.self_drafts.jacobi import Jacobi
from paceline.drafters.self_drafts.lookahead import Lookahead
from paceline.drafters.self_drafts.ngram_pool import NGramPool
from paceline.errors import InvalidParameter
from tests.drafters.contexts import context
from tests.fakes import tell

SERVICES = SimpleNamespace(target=SimpleNamespace(source=SimpleNamespace(eos_token_ids=(99,))))


def lookahead(window=3, ngram=3, guesses=2, from_prompt=False):
    return Lookahead(SERVICES, window, ngram, guesses, from_prompt)  # type: ignore[arg-type]


def decode(drafter, pick, prompt, num_tokens, budget=100):
    """Greedy decoding of the model `pick` (path -> next token) with `drafter`; the text, and tokens per step."""
    text, emitted = list(prompt), []
    while len(text) < len(prompt) + num_tokens:
        [tree] = drafter.propose([context(text, budget, num_prompt=len(prompt))])
        tree = tree.prune(budget)
        picks = np.array([pick([*text, *tree.tokens_to(node)]) for node in range(-1, len(tree))])
        node, new = -1, []
        while True:
            new.append(int(picks[node + 1]))
            child = next((c for c in tree.children(node) if tree.tokens[c] == new[-1]), None)
            if child is None:
                break
            node = child
        if len(tree):
            tell(drafter, "r", [], picks=picks)
        text += new
        emitted.append(len(new))
        tell(drafter, "r", text, False)
    return text, emitted


def plain(pick, prompt, num_tokens):
    text = list(prompt)
    for _ in range(num_tokens):
        text.append(pick(text))
    return text


def periodic(text):
    """a b c d e f a b c ..., whatever came before the last token."""
    return 10 + (text[-1] - 9) % 6


def chaotic(text):
    """Depends on the last two tokens and repeats late."""
    return (7 * text[-1] + 3 * text[-2] + 1) % 61


def test_the_pool_keeps_the_latest_of_each_first_token():
    pool = NGramPool(capacity=2)
    for gram in ([1, 2, 3], [1, 4, 5], [2, 9, 9], [1, 2, 3], [1, 6, 7]):
        pool.add(gram)
    assert pool.latest(1, 5) == [(6, 7), (2, 3)]  # (4, 5) was used least recently
    assert pool.latest(1, 1) == [(6, 7)]
    assert pool.latest(2, 5) == [(9, 9)]
    assert pool.latest(3, 5) == []


def test_the_pool_reads_a_text():
    pool = NGramPool(capacity=4)
    pool.add_all([1, 2, 3, 1, 5, 6], 3)
    assert pool.latest(1, 4) == [(5, 6), (2, 3)]
    assert pool.latest(5, 4) == []


def test_the_window_is_a_tree_whose_columns_hang_below_one_chain():
    drafter = lookahead(window=3, ngram=4, guesses=1)
    prompt = [20, 21, 22, 23]
    for step in range(2):
        [tree] = drafter.propose([context(prompt, 100, num_prompt=4)])
        tell(drafter, "r", [], picks=30 + 10 * step + np.arange(1 + len(tree)))
    [tree] = drafter.propose([context(prompt, 100, num_prompt=4)])
    heads = [0, 3, 6]  # each column's three levels follow its head
    assert [tree.parents[head] for head in heads] == [-1, 0, 3]
    assert [tree.depths[head] for head in heads] == [1, 2, 3]
    assert all(tree.tokens[head] in prompt for head in heads)
    for column, head in enumerate(heads):
        assert tree.path_to(head + 2)[-3:] == (head, head + 1, head + 2)
        assert tree.tokens[head + 1] == 31 + column  # the first step had one level: picks after nodes 0, 1, 2
        assert tree.tokens[head + 2] == 42 + 2 * column  # the second had two: picks after nodes 1, 3, 5


def test_a_full_column_moves_on_by_one_and_leaves_an_ngram():
    drafter = lookahead(window=1, ngram=3, guesses=2)
    root = [5, 6]
    seen = []
    for pick in (31, 32, 33):
        [tree] = drafter.propose([context(root, 100, num_prompt=1)])
        seen.append(tree.tokens)
        tell(drafter, "r", [], picks=np.array([0] * len(tree) + [pick]))
    assert seen == [(5,), (5, 31), (31, 32)]
    [tree] = drafter.propose([context([5], 100, num_prompt=1)])  # the root is the first token of (5, 31, 32)
    assert tree.tokens == (31, 32, 32, 33)  # the n-gram after 5, then the column


def test_a_full_match_earns_its_bonus_token():
    text, emitted = decode(lookahead(window=6, ngram=4, guesses=4), periodic, [10, 11], 60)
    assert text[:62] == plain(periodic, [10, 11], 60)
    assert max(emitted) >= 4  # N - 1 = 3 matched, and one more
    assert np.mean(emitted[10:]) >= 4


@pytest.mark.parametrize("budget", [1, 2, 5, 9, 100])
@pytest.mark.parametrize("pick", [periodic, chaotic])
def test_greedy_text_is_the_targets_whatever_the_budget(pick, budget):
    for drafter in (lookahead(), lookahead(from_prompt=True), Jacobi()):
        text, _ = decode(drafter, pick, [10, 11, 12, 10, 11, 12], 40, budget)
        assert text[: 6 + 40] == plain(pick, [10, 11, 12, 10, 11, 12], 40)


@pytest.mark.parametrize("budget", range(1, 14))
def test_a_smaller_budget_is_kept_and_shrinks_guesses_and_window_alike(budget):
    drafter = lookahead(window=3, ngram=3, guesses=3, from_prompt=True)
    prompt = [1, 2, 3, 1, 4, 5, 1, 6, 7, 1]
    for step in range(3):
        [tree] = drafter.propose([context(prompt, budget, num_prompt=len(prompt))])
        assert 1 <= len(tree) <= budget
        assert step or tree.tokens[:2] == (6, 7)[:budget]  # the latest n-gram comes first
        tell(drafter, "r", [], picks=np.arange(1 + len(tree)))
    assert drafter.traits.natural_budget == 12


def test_end_tokens_do_not_stay_in_the_window():
    drafter = lookahead(window=2, ngram=3, guesses=1)
    for _ in range(4):
        [tree] = drafter.propose([context([5, 6], 100, num_prompt=2)])
        assert 99 not in tree.tokens
        tell(drafter, "r", [], picks=np.full(1 + len(tree), 99))


def test_a_prompts_ngrams_are_there_from_the_start():
    prompt = [1, 2, 3, 4, 1]
    for from_prompt in (True, False):
        [tree] = lookahead(from_prompt=from_prompt).propose([context(prompt, 100, num_prompt=5)])
        assert ((2, 3) in [tree.tokens_to(node) for node in range(len(tree))]) is from_prompt


def test_requests_do_not_see_each_others_pools_and_are_forgotten():
    drafter = lookahead(from_prompt=True)
    drafter.propose([context([1, 2, 3, 1], 100, "a", num_prompt=4)])
    [other] = drafter.propose([context([7, 8, 1], 100, "b", num_prompt=3)])
    assert 2 not in other.tokens
    first = drafter.propose([context([1, 2, 3, 1], 100, "a", num_prompt=4)])[0].tokens
    drafter.release("a")
    tell(drafter, "b", [7, 8, 1], finished=True)
    tell(drafter, "a", [], picks=np.zeros(1 + len(other), int))  # a late word about a forgotten request is passed over
    assert drafter.propose([context([1, 2, 3, 1], 100, "a", num_prompt=4)])[0].tokens == first


@pytest.mark.parametrize(
    ("options", "field"),
    [({"window": 0}, "window_size"), ({"ngram": 1}, "ngram_size"), ({"guesses": 0}, "guess_set_size")],
)
def test_sizes_that_leave_nothing_to_do_are_refused(options, field):
    with pytest.raises(InvalidParameter, match=field):
        lookahead(**options)


def test_jacobi_solves_m_positions_in_at_most_m_steps():
    """A chain as long as the answer: every step fixes at least one more position (and here, by position, all)."""

    def by_position(text):
        return len(text) % 50

    assert decode(Jacobi(), by_position, [3], 20, budget=20)[1][:2] == [1, 21]
    _, emitted = decode(Jacobi(), chaotic, [3, 4], 20, budget=20)
    assert len(emitted) <= 20


def test_jacobi_takes_the_picks_behind_what_was_committed():
    drafter = Jacobi()
    drafter.propose([context([1, 2, 3], 4)])
    tell(drafter, "r", [], picks=np.array([10, 11, 12, 13, 14]))
    assert drafter.propose([context([1, 2, 3, 10, 11], 4)])[0].tokens[:3] == (12, 13, 14)
    drafter.release("r")
    assert 12 not in drafter.propose([context([1, 2, 3, 10, 11], 4)])[0].tokens
