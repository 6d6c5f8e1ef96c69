"""Chains drafted in one call: which requests they serve, what the runner is asked, and where a chain ends."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.drafters.runners.chains_at_once import chains_at_once
from paceline.drafters.trees.drawn import Drawn
from paceline.models.chains import ChainDraft
from paceline.sampling import CounterRandomness
from paceline.sampling.rules import judge, resolve, verify_auto, verify_coupled
from paceline.types import SamplingParams
from tests.drafters.contexts import context

NOISE = CounterRandomness(0)


class Runner:
    """Drafts the numbers from 10 on, and records what it is asked.

    Two requests fit together, and the request "full" has room for two tokens.
    """

    def __init__(self, can_draw):
        self.can_draw, self.asked = can_draw, []

    def can_hold(self, growth):
        return growth.max_rows <= {"too long": 0, "full": 2}.get(growth.context.request_id, 99)

    def admit(self, growths):
        return growths[:2]

    def draft_chains(self, growths, num_tokens, draws=None):
        self.asked.append(([growth.context.request_id for growth in growths], num_tokens, draws))
        tokens = np.tile(10 + np.arange(num_tokens), (len(growths), 1))
        return ChainDraft(tokens, np.full(tokens.shape, 0.5))


def greedy(name="greedy", budget=3, **changes):
    own = replace(context([1, 2, 3], budget, name), params=SamplingParams(temperature=0), never_edits=True)
    return replace(own, **changes)


def sampled(name="sampled", budget=3, **changes):
    params = SamplingParams(temperature=0.7, top_p=0.9, seed=0)
    return replace(
        context([1, 2, 3, 4], budget, name), params=params, coupled=True, never_edits=True,
        target_key=lambda position: NOISE.key(position, "target", -1), **changes,
    )  # fmt: skip


def drafted(runner, *contexts):
    return chains_at_once(runner, [Drawn(each) for each in contexts])


def test_greedy_and_coupled_requests_share_a_call_with_the_noise_of_their_positions():
    runner = Runner(can_draw=True)
    chains = drafted(runner, greedy(), sampled())
    [(names, num_tokens, draws)] = runner.asked
    assert (names, num_tokens) == (["greedy", "sampled"], 3)
    assert draws.temperature.tolist() == [0, 0.7] and draws.top_p.tolist() == [1, 0.9]
    assert draws.keys.tolist() == [8 * [0], [NOISE.key(4 + level, "target", -1) for level in range(8)]]
    assert all(chain.tokens == (10, 11, 12) and chain.draw == "one_hot" for chain in chains.values())
    assert chains["greedy"].chances == (0.5, 0.25, 0.125) and chains["sampled"].chances is None


def test_greedy_requests_alone_are_asked_without_draws():
    runner = Runner(can_draw=False)
    assert set(drafted(runner, greedy("a"), greedy("b", 2), greedy("c"), greedy("d"), sampled())) == set("abcd")
    assert runner.asked == [(["a", "b"], 3, None), (["c", "d"], 3, None)]


@pytest.mark.parametrize("make", [greedy, sampled])
def test_requests_of_different_lengths_share_a_call_if_there_is_room_and_each_gets_its_own_length(make):
    runner = Runner(can_draw=True)
    chains = drafted(runner, make("a", 1), make("full", 2), make("b", 4), make("late", 4, max_depth=2))
    assert [(names, count) for names, count, _ in runner.asked] == [(["a", "b"], 4), (["late"], 4), (["full"], 2)]
    assert {name: len(chain) for name, chain in chains.items()} == {"a": 1, "full": 2, "b": 4, "late": 2}
    assert {chain.tokens[0] for chain in chains.values()} == {10}


@pytest.mark.parametrize("other", [
    sampled(asks_laws=True), greedy(asks_laws=True), greedy("too long"),
    replace(sampled(), target_key=None), replace(sampled(), never_edits=False), greedy(never_edits=False),
], ids=["a policy of whole laws", "greedy too", "no room", "not coupled", "edited", "edited, greedy"])  # fmt: skip
def test_others_are_left_to_drafting_level_by_level(other):
    runner = Runner(can_draw=True)
    assert drafted(runner, other) == {} and not runner.asked
    assert chains_at_once(None, [Drawn(other)]) == {}


@pytest.mark.parametrize("make", [greedy, sampled])
def test_a_chain_ends_where_the_policy_stops_or_after_an_end_token(make):
    [short] = drafted(Runner(True), make(keep_drafting=lambda laws: len(laws) < 2)).values()
    [ended] = drafted(Runner(True), make(end_token_ids={10})).values()
    assert (short.tokens, ended.tokens) == ((10, 11), (10,))


@pytest.mark.parametrize("make", [greedy, sampled])
def test_a_policy_sees_the_largest_probabilities(make):
    seen = []
    asking = make(asks_beliefs=True, rank=lambda *_: None, keep_drafting=lambda laws: seen.append(laws[-1]) or True)
    drafted(Runner(True), asking)
    assert [float(law.probs.max()) for law in seen] == [0.5, 0.5]


@pytest.mark.parametrize(("name", "seed", "rule"), [
    ("auto", None, verify_coupled), ("auto", 5, verify_coupled), ("p/q", None, resolve("p/q")),
])  # fmt: skip
def test_requests_without_a_seed_are_judged_by_the_rule_that_such_drafts_suit(name, seed, rule):
    chosen = judge(name, resolve(name), seed, 0, prefers_coupled=True)
    assert chosen.verify is rule
    assert (chosen.target_key is not None) == chosen.coupled == (rule is verify_coupled)
    assert judge(name, resolve(name), None, 0).verify is (verify_auto if name == "auto" else rule)


def test_keys_are_those_of_the_targets_draws():
    chosen = judge("auto", resolve("auto"), 0, 0)
    assert chosen.target_key is not None and chosen.target_key(9) == NOISE.key(9, "target", -1)
