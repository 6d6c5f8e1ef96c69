"""Drafts from all evidence together: equal to the plain twin, exact, bounded, and forgetting what they should."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters.lookup.blended import Blended
from paceline.drafters.lookup.calibration import Calibration
from paceline.drafters.lookup.memory import MemoryInfo
from paceline.errors import InvalidParameter
from paceline.sampling import CounterRandomness
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.training.memory import build_memory
from paceline.types import SamplingParams
from tests.drafters.contexts import context, propose
from tests.drafters.lookup import slow_twin

tokens = st.lists(st.integers(0, 3), min_size=1, max_size=16)


def paths_of(tree: TokenTree) -> list[tuple[int, ...]]:
    return [tree.tokens_to(node) for node in range(len(tree))]


def finish(drafter: Blended, token_ids: list[int], request_id: str = "past") -> None:
    """Let a request end whose output is `token_ids`."""
    drafter.propose([context([0], request_id=request_id, num_prompt=1)])
    drafter.observe(RequestOutcome(request_id, (0, *token_ids), finished=True))


NOISE = CounterRandomness(3)


def sampled(token_ids, budget, temperature=1.0, seed=3, **changes):
    """The context of a request whose noise is known."""
    own = replace(context(token_ids, budget), params=SamplingParams(temperature=temperature), coupled=True, **changes)
    return replace(own, target_key=partial(CounterRandomness(seed).key, purpose="target", node=-1))


def noise_of(position, token):
    return float(NOISE.exponentials(np.array([token]), position, "target")[0])


@given(own=tokens, past=st.lists(tokens, max_size=2), mode=st.sampled_from(["path", "tree"]), budget=st.integers(1, 6),
       temperature=st.sampled_from([0.0, 0.5, 1.0]))  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_a_tree_is_that_of_the_plain_twin(own, past, mode, budget, temperature):
    drafter = Blended(mode=mode, min_token_prob=0.0501)
    for number, output in enumerate(past):
        finish(drafter, output, str(number))
    [tree] = drafter.propose([sampled(own, budget, temperature)])
    known = {"noise": noise_of, "temperature": temperature} if temperature else {}
    reached = slow_twin.check_tree(paths_of(tree), own, past, budget, 0.0501, mode == "tree", **known)
    assert tree.chances == tuple(sorted(tree.chances, reverse=True))
    assert tree.chances == pytest.approx(Calibration()(np.array(reached)).tolist())


def test_noise_that_is_known_decides_between_tokens_of_equal_chance():
    """Both followers are as frequent; the target will draw the one whose noise is smaller if they are as probable."""
    text, first = [1, 2, 7, 1, 3, 8, 1, 3, 9, 1, 2, 6, 1], []
    for seed in range(40):
        drafter = Blended(mode="path", max_cached_tokens=0)
        [tree] = drafter.propose([sampled(text, 1, seed=seed)])
        noise = CounterRandomness(seed).exponentials(np.array([2, 3]), len(text), "target")
        first.append(tree.tokens == ((2, 3)[int(noise.argmin())],))
    assert all(first)
    [unknown] = Blended(mode="path").propose([replace(sampled(text, 1), target_key=None)])
    [greedy] = Blended(mode="path").propose([sampled(text, 1, temperature=0.0)])
    assert unknown.tokens == greedy.tokens == propose(Blended(mode="path"), text, 1).tokens


def test_the_highest_temperatures_leave_nothing_to_guess():
    """Also where a token's noise is so small that its quotient overflows: 1e-7 to the power of -65."""
    text = [1, 2, 7, 1, 3, 8, 1, 3, 9, 1, 2, 6, 1]
    [cool] = Blended(min_token_prob=0.0).propose([sampled(text, 2, 2.0, seed=192119)])
    [hot] = Blended(min_token_prob=0.0).propose([sampled(text, 2, 100.0, seed=192119)])
    assert len(cool) == 2
    assert not len(hot)


def test_what_is_learnt_of_guesses_with_noise_is_kept_apart():
    drafter = Blended()
    text = [1, 2, 3] * 8
    for _ in range(30):
        [tree] = drafter.propose([sampled(text, 4)])
        told = {"tokens": tree.tokens, "parents": tree.parents, "num_draft_tokens": len(tree)}
        drafter.observe(RequestOutcome("r", (*text, 9), 1, **told))
    [with_noise] = drafter.propose([sampled(text, 4)])
    without, fresh = propose(drafter, text, 4), propose(Blended(), text, 4)
    assert without.chances == fresh.chances
    assert len(with_noise) and with_noise.chances[0] < 0.5 < without.chances[0]


def test_the_request_itself_weighs_more_than_past_outputs_and_these_more_than_the_memory():
    memory = build_memory([np.array([7, 8, 1, 2, 3])] * 4, MemoryInfo("v", 16, 4, 20))
    drafter = Blended(memory, mode="path")
    assert propose(drafter, [7, 8, 1, 2], 1).tokens == (3,)
    for number in range(10):
        finish(drafter, [7, 8, 1, 2, 4], str(number))
    assert propose(drafter, [6, 1, 2], 1, request_id="short").tokens == (3,)  # as far as the memory reaches
    assert propose(drafter, [7, 8, 1, 2], 1, request_id="long").tokens == (4,)
    own = [8, 1, 2, 5] * 3
    assert propose(drafter, [*own, 7, 8, 1, 2], 1, request_id="own").tokens == (5,)


def test_a_crowd_of_past_followers_leaves_room_for_the_requests_own():
    drafter = Blended(mode="path", min_token_prob=0.01)
    for number in range(60):
        finish(drafter, [1, 100 + number], str(number))
    assert propose(drafter, [1, 2, 1, 2, 1], 1).tokens == (2,)


def test_a_memory_goes_on_where_the_text_never_was():
    answers = [np.array([5, 6, 7, 8, 9, 10, 11])] * 3
    drafter = Blended(build_memory(answers, MemoryInfo("v", 16, 4, 21)), mode="path", min_token_prob=0.01)
    assert propose(drafter, [3, 5, 6], 4).tokens == (7, 8, 9, 10)
    assert propose(drafter, [3, 15], 4, request_id="other").tokens == ()


def test_a_token_outside_the_memorys_vocabulary_is_only_unknown():
    drafter = Blended(build_memory([np.array([1, 2])] * 2, MemoryInfo("v", 4, 3, 4)))
    assert propose(drafter, [1, 2, 40000]).tokens == ()


def test_budget_and_depth_bound_the_tree():
    drafter = Blended(min_token_prob=0.0)
    text = [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2, 5, 1]
    assert len(propose(drafter, text, 5)) == 5
    [flat] = drafter.propose([replace(context(text, 30), max_depth=2)])
    assert len(flat)
    assert max(flat.depths) == 2


def test_the_oldest_outputs_leave_first():
    drafter = Blended(max_cached_tokens=6, min_token_prob=0.01)
    for number, output in enumerate(([1, 2, 3], [4, 5, 6], [7, 8, 9])):
        finish(drafter, output, str(number))
    assert propose(drafter, [1, 2], request_id="a").tokens == ()
    assert propose(drafter, [4, 5], 1, request_id="b").tokens == (6,)
    assert propose(drafter, [7, 8], 1, request_id="c").tokens == (9,)


def test_no_match_crosses_from_one_output_to_the_next():
    drafter = Blended(min_token_prob=0.0)
    finish(drafter, [1, 2], "a")
    finish(drafter, [3, 4], "b")
    assert propose(drafter, [2]).tokens == ()


def test_an_id_that_now_stands_for_another_text_begins_anew():
    drafter = Blended(min_token_prob=0.01)
    propose(drafter, [1, 2, 1, 2, 1])
    assert propose(drafter, [3, 4, 3], 1).tokens == (4,)


def test_long_texts_are_found_after_the_index_has_grown():
    rng = np.random.default_rng(1)
    text = rng.integers(0, 50, 3000).tolist()
    drafter = Blended(mode="path")
    for end in (200, 260, 1500, 3000):
        propose(drafter, text[:end])
    assert propose(drafter, [*text, *text[100:112]], 8).tokens == tuple(text[112:120])


@pytest.mark.parametrize("options", [{"mode": "bush"}, {"min_token_prob": 1.5}, {"max_cached_tokens": -1}])
def test_impossible_options_are_refused(options):
    with pytest.raises(InvalidParameter, match=next(iter(options))):
        Blended(**options)
