"""Suffix decoding against hand-worked counts and against a slow twin that counts by searching the text."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters.lookup.suffix import LEAST_SHARE, WORK_PER_STEP, Suffix, _PastOutputs
from paceline.drafters.lookup.suffix_trie import Matches, Place, SuffixTrie, Text, best_draft, follow_path, follow_tree
from paceline.errors import InvalidParameter
from tests.drafters.contexts import context, propose
from tests.fakes import tell

HISTORY = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3]
texts = st.lists(st.integers(0, 2), min_size=1, max_size=30)


def occurrences(sequence: list[int], corpus: list[list[int]]) -> list[tuple[int, int]]:
    """(text, position after it) of every occurrence."""
    size = len(sequence)
    return [(n, end) for n, text in enumerate(corpus) for end in range(size, len(text) + 1)
            if text[end - size : end] == sequence]  # fmt: skip


def slow_path(match: list[int], corpus: list[list[int]], limit: int, depth: int) -> tuple[list[int], float]:
    """`follow_path` with a threshold of 0.1, by searching."""
    path, chance, score = [], 1.0, 0.0
    while len(path) < limit:
        here = occurrences(match + path, corpus)
        followers = [corpus[n][end] for n, end in here if end < len(corpus[n])]
        if not followers or (len(here) > 1 and len(match + path) >= depth):
            break
        distinct = list(dict.fromkeys(followers))
        token = max(reversed(distinct), key=followers.count)
        chance *= followers.count(token) / len(here)
        if chance < 0.1:
            break
        path.append(token)
        score += chance
    return path, score


def slow_drafts(text: list[int], corpus: list[list[int]], budget: int, depth: int) -> list[tuple[list[int], float]]:
    """The path of every match, shortest match first."""
    lengths = [n for n in range(1, min(depth, len(text) + 1)) if len(occurrences(text[-n:], corpus)) > 1]
    return [slow_path(text[-n:], corpus, min(budget, n), depth) for n in lengths]


def trie_of(*corpus: list[int], depth: int = 8):
    trie = SuffixTrie(depth)
    written = []
    for tokens in corpus:
        text = trie.new_text()
        for token in tokens:
            trie.append(text, token)
        written.append(text)
    return trie, written


def forget(trie: SuffixTrie, text: Text) -> None:
    for start in range(len(text.tokens)):
        trie.remove(text, start)


def test_counts_include_the_end_of_the_text_itself():
    trie, _ = trie_of(HISTORY)
    place = trie.find([1, 2, 3])
    assert place is not None and place.node.count == 3
    children = place.node.children
    assert children is not None and {token: child.count for token, child in children.items()} == {4: 1, 5: 1}


def test_the_denominator_is_the_parents_count():
    _, [text] = trie_of(HISTORY)
    draft = follow_path(Place(text.active[3]), 3, min_token_prob=0.1)
    assert draft.tokens == [5, 1, 2] and draft.score == pytest.approx(3 * (1 / 3))
    assert follow_path(Place(text.active[3]), 3, min_token_prob=0.34).tokens == []


def test_the_tree_holds_both_continuations():
    tree = propose(Suffix(mode="tree", max_spec_factor=2.0), HISTORY)
    assert [tree.tokens_to(child) for child in tree.children(-1)] == [(5,), (4,)]
    assert len(tree) == 6 and tree.draw == "one_hot"


def test_the_length_of_the_match_bounds_the_draft():
    assert propose(Suffix(), [1, 2, 3, 4, 5, 6, 1, 2, 3]).tokens == (4, 5, 6)
    assert propose(Suffix(max_spec_offset=1.0), [1, 2, 3, 4, 5, 6, 1, 2, 3]).tokens == (4, 5, 6, 1)
    assert propose(Suffix(max_spec_factor=0.4), [1, 2, 3, 4, 5, 6, 1, 2, 3]).tokens == (4,)
    assert propose(Suffix(), [1, 2, 3, 4, 5, 6, 1, 2, 3], budget=2).tokens == (4, 5)


def test_overlapping_occurrences_are_all_counted():
    trie, _ = trie_of([7, 7, 7, 7])
    counts = [place.node.count for n in range(1, 5) if (place := trie.find([7] * n))]
    assert counts == [4, 3, 2, 1]


def test_past_outputs_are_used_only_when_they_score_higher():
    drafter = Suffix()
    propose(drafter, [9, 1], request_id="old")
    tell(drafter, "old", [9, 1, 2, 3, 4, 5], finished=True)
    assert propose(drafter, [8, 2, 3]).tokens == (4, 5)
    assert propose(drafter, [2, 3, 6, 2, 3], request_id="own").tokens == (4, 5)
    repeated = [2, 3, 6, 6, 2, 3, 6, 6, 2, 3, 6, 6, 2, 3]
    assert propose(drafter, repeated, request_id="long").tokens[:2] == (6, 6)


def test_prompts_are_not_past_outputs():
    drafter = Suffix()
    propose(drafter, [1, 2, 3, 4], request_id="old", num_prompt=4)
    tell(drafter, "old", [1, 2, 3, 4, 7, 8], finished=True)
    assert propose(drafter, [9, 2]).tokens == ()
    assert propose(drafter, [9, 7], request_id="new").tokens == (8,)


def test_the_oldest_outputs_are_forgotten_first():
    drafter = Suffix(max_cached_tokens=4)
    for start in (10, 20, 30):
        propose(drafter, [0], request_id="old")
        tell(drafter, "old", [0, start, start + 1], finished=True)
    follows = {start: propose(drafter, [5, start], request_id=str(start)).tokens for start in (10, 20, 30)}
    assert follows == {10: (), 20: (21,), 30: (31,)}


def test_nothing_is_remembered_when_told_so():
    drafter = Suffix(max_cached_tokens=0)
    propose(drafter, [0], request_id="old")
    tell(drafter, "old", [0, 1, 2], finished=True)
    assert propose(drafter, [5, 1]).tokens == ()


@settings(max_examples=200)
@given(texts, st.integers(2, 6), st.integers(1, 8))
def test_own_matches_equal_the_slow_twin(tokens, depth, budget):
    _, [text] = trie_of(tokens, depth=depth)
    places, follow = [Place(node) for node in text.active[1:]], partial(follow_path, min_token_prob=0.1)
    draft = best_draft(places, lambda length: min(budget, length), follow, depth)
    slow = slow_drafts(tokens, [tokens], budget, depth)
    best = max((score for _, score in slow), default=0.0)
    assert draft.score == pytest.approx(best)
    assert [path for path, score in slow if score >= best - 1e-9 and path][-1:] == [draft.tokens][: bool(draft.tokens)]


@settings(max_examples=150)
@given(st.lists(texts, min_size=1, max_size=5), texts, st.integers(2, 6), st.integers(0, 4))
def test_after_evictions_the_counts_are_those_of_what_is_left(corpus, text, depth, num_evicted):
    num_evicted = min(num_evicted, len(corpus) - 1)
    trie, written = trie_of(*corpus, depth=depth)
    for gone in written[:num_evicted]:
        forget(trie, gone)
    left = corpus[num_evicted:]
    for length in range(1, depth + 1):
        for start in range(len(text) - length + 1):
            sequence = text[start : start + length]
            node = trie.root
            for token in sequence:
                node = (node.children or {}).get(token)
                if node is None:
                    break
            if node is not None:
                assert node.count == len(occurrences(sequence, left))
            if node is None:
                assert len(occurrences(sequence, left)) <= 1
    for gone in written[num_evicted:]:
        forget(trie, gone)
    assert trie.root.children == {}


@settings(max_examples=100)
@given(texts, texts, texts, st.sampled_from(["path", "tree"]), st.integers(1, 8))
def test_every_proposal_really_occurred_behind_the_end_of_the_text(past, newer, tokens, mode, budget):
    drafter = Suffix(mode=mode, max_cached_tokens=30, max_depth=8)
    for output in (past, newer):
        propose(drafter, [0, *output], request_id="old")
        tell(drafter, "old", [0, *output], finished=True)
    for length in range(1, len(tokens) + 1):
        tree = propose(drafter, tokens[:length], budget)
        assert len(tree) <= budget
        for node in range(len(tree)):
            path = [tokens[length - 1], *tree.tokens_to(node)]
            assert any(occurrences(path, [text]) for text in (past, newer, tokens[:length]))


@given(texts, texts, texts)
def test_a_walk_step_by_step_equals_a_walk_from_scratch_while_the_past_changes(past, newer, tokens):
    drafter = Suffix(max_cached_tokens=40)
    for length in range(1, len(tokens) + 1):
        if length % 3 == 0:
            propose(drafter, [0], request_id="old")
            tell(drafter, "old", [0, *(past, newer)[length % 2]], finished=True)
        seen = propose(drafter, tokens[:length], request_id="walker").tokens
        fresh = propose(drafter, tokens[:length], request_id=f"fresh{length}").tokens
        assert seen == fresh


def test_a_past_output_that_scores_the_same_gives_way_to_the_request_itself():
    drafter = Suffix(max_spec_factor=2.0)
    propose(drafter, [0], request_id="old")
    tell(drafter, "old", [0, 1, 5, 1], finished=True)
    assert propose(drafter, [1, 6, 1], budget=2).tokens == (6, 1)


@given(texts)
def test_tree_mode_takes_the_most_probable_nodes(tokens):
    _, [text] = trie_of(tokens, depth=6)
    for node in text.active[1:]:
        whole = follow_tree(Place(node), 60, 0.0)
        part = follow_tree(Place(node), 4, 0.0)
        assert part.tokens == whole.tokens[:4] and part.parents == whole.parents[:4]
        greedy = follow_path(Place(node), 1, 0.0)
        assert part.score >= greedy.score - 1e-12


@given(texts, st.integers(1, 29))
def test_a_replayed_text_gives_the_same_proposals(tokens, cut):
    drafter = Suffix()
    propose(drafter, tokens)
    assert propose(drafter, tokens[:cut]).tokens == propose(Suffix(), tokens[:cut]).tokens


def test_a_released_request_is_forgotten_and_can_come_back():
    drafter = Suffix()
    propose(drafter, [1, 2, 3, 1])
    drafter.release("r")
    assert not drafter._requests
    assert propose(drafter, [4, 5, 6, 4]).tokens == (5,)
    tell(drafter, "unknown", [1, 2], finished=True)
    assert propose(drafter, [9, 1], request_id="s").tokens == ()


@pytest.mark.parametrize("tokens", [[7] * 80, [1, 2, 3] * 30, HISTORY * 4])
def test_the_drafter_gives_up_at_most_two_per_cent_of_the_score(tokens):
    _, [text] = trie_of(tokens, depth=64)
    places, follow = [Place(node) for node in text.active[1:]], partial(follow_path, min_token_prob=0.1)
    best = best_draft(places, lambda length: min(8, length), follow, 64)
    proposed = propose(Suffix(), tokens, budget=8).tokens
    scores = [follow(place, 8).score for place in places if tuple(follow(place, 8).tokens) == proposed]
    assert max(scores) >= 0.98 * best.score > 0


def test_skipping_equal_matches_changes_nothing():
    tokens = [1, 2, 3, 4, 5] * 3 + [1, 2, 3]
    _, [text] = trie_of(tokens, depth=12)
    places = [Place(node) for node in text.active[1:]]
    follow = partial(follow_path, min_token_prob=0.1)
    every = max(follow(place, min(9, length)).score for length, place in enumerate(places, start=1))
    assert best_draft(places, lambda length: min(9, length), follow, 12).score == pytest.approx(every)


@given(texts, texts, st.integers(2, 12))
def test_matches_are_those_of_looking_every_suffix_up(corpus, tokens, depth):
    trie, _ = trie_of(corpus, depth=depth)
    tail = tokens[-depth:]
    places = [trie.find(tail[-length:]) for length in range(1, len(tail) + 1)]
    found = [place for place in places if place is not None]
    for expected in range(len(tail) + 1):
        matches = Matches(trie, tail, expected)
        assert [matches[i] for i in range(len(matches))] == found


LONG_TEXTS = {"periodic": list(range(200)) * 160, "mixed": [(i * i) % 997 % (7 + i // 1000) for i in range(32_000)]}
MOST_WORK = WORK_PER_STEP + WORK_PER_STEP // 4


@pytest.mark.parametrize("name", LONG_TEXTS)
def test_a_long_prompt_is_counted_in_slices(name):
    text = LONG_TEXTS[name]
    drafter, whole = Suffix(), Suffix()
    proposed = 0
    for _ in range(4):
        before = drafter.work
        proposed += len(propose(drafter, text))
        assert 0 < drafter.work - before <= MOST_WORK + drafter._max_depth
    assert proposed or name == "mixed"  # from what is counted so far
    whole_count(drafter, text)
    whole_count(whole, text)
    assert propose(drafter, text).tokens == propose(whole, text).tokens != ()


def whole_count(drafter: Suffix, text: list[int]) -> int:
    """Count all of `text` at once for request r."""
    return drafter._request(context(text)).count(text, 10**9)


def test_many_requests_share_the_work_of_a_step():
    drafter, text = Suffix(), list(range(50)) * 20
    contexts = [context(text, request_id=str(i)) for i in range(40)]
    drafter.propose(contexts)
    assert drafter.work <= max(WORK_PER_STEP, 40 * LEAST_SHARE) + WORK_PER_STEP // 4 + 40 * drafter._max_depth
    assert all(drafter._requests[str(i)]._text.tokens for i in range(40))


def test_a_long_output_joins_and_leaves_the_past_in_slices():
    drafter = Suffix(max_cached_tokens=4000)
    for start in (0, 5000):
        output = list(range(start, start + 100)) * 40
        propose(drafter, [9999], request_id="old")
        tell(drafter, "old", [9999, *output], finished=True)
        for _ in range(400):
            before = drafter.work
            propose(drafter, [9999], request_id="other")
            assert drafter.work - before <= MOST_WORK + 2 * drafter._max_depth
    assert propose(drafter, [5001, 5002], request_id="new").tokens == (5003, 5004)
    assert propose(drafter, [1, 2], request_id="new").tokens == ()
    assert set(drafter._past.of(b"").trie.root.children or ()) == set(range(5000, 5100))


def test_a_finished_request_makes_nobody_look_everything_up_again(monkeypatch):
    """64 periodic requests: after each output that joins the past, a few lookups each, as before it."""
    text, drafter = list(range(100)) * 5, Suffix()
    contexts = [context(text, request_id=str(i)) for i in range(64)]
    for each in contexts:
        drafter._request(each).count(text, 10**9)
    lookups = 0
    find = SuffixTrie.find

    def counting(trie: SuffixTrie, sequence: list[int]) -> Place | None:
        nonlocal lookups
        lookups += 1
        return find(trie, sequence)

    monkeypatch.setattr(SuffixTrie, "find", counting)
    for number in range(3):
        propose(drafter, text, request_id=f"done {number}")
        tell(drafter, f"done {number}", text, finished=True)
        lookups, before = 0, drafter.work
        drafter.propose(contexts)
        assert lookups <= 64 * 24 and drafter.work - before <= MOST_WORK + drafter._max_depth


@settings(max_examples=100)
@given(st.lists(texts, min_size=2, max_size=8), st.integers(1, 40), st.integers(1, 30))
def test_slices_of_forgetting_and_counting_leave_the_counts_of_the_latest_outputs(outputs, most, size):
    """However small the slices, in the end the trie is that of the outputs that fit, counted at once."""
    past = _PastOutputs(6, size)
    for output in outputs:
        past.add(output)
        past.catch_up(most)
    while past.catch_up(most):
        pass
    kept, room = [], size
    for output in reversed(outputs):
        room -= len(output[:size])
        if room < 0:
            break
        kept.insert(0, output[:size])
    for length in range(1, 7):
        for output in outputs:
            for start in range(len(output) - length + 1):
                sequence = output[start : start + length]
                place, count = past.trie.find(sequence), len(occurrences(sequence, kept))
                assert count == (0 if place is None else place.node.count)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_depth": 1}, "max_depth"),
        ({"max_spec_factor": -1.0}, "max_spec_factor"),
        ({"max_cached_tokens": -1}, "max_cached_tokens"),
        ({"min_token_prob": 1.5}, "min_token_prob"),
        ({"mode": "forest"}, "mode"),
    ],
)
def test_impossible_options_are_refused(options, field):
    with pytest.raises(InvalidParameter, match=field):
        Suffix(**options)
