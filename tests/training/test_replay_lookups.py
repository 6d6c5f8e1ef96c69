"""`replay_lookups`: target passes counted from recorded texts."""

import numpy as np

from paceline.drafters.lookup.blended import Blended
from paceline.drafters.registry import make_drafter
from paceline.training.heads.conversations import Conversation
from paceline.training.replay_lookups import replay_lookups
from tests.fakes import Oracle


def talk(prompt, answer):
    return Conversation(np.array([*prompt, *answer], np.int32), len(prompt), 0.0)


def test_a_drafter_that_knows_the_next_three_tokens_saves_three_passes_of_four():
    answer = list(range(10, 29))
    report = replay_lookups(Oracle({(1, 2): [1, 2, *answer]}), [talk([1, 2], answer)], budget=8)
    assert (report.tokens, report.passes) == (18, 5)
    assert report.tokens_per_pass == 3.6


def test_a_drafter_that_proposes_nothing_needs_a_pass_for_each_token():
    report = replay_lookups(make_drafter("plain"), [talk([1], [2, 3, 4]), talk([1], [5])])
    assert (report.tokens, report.passes, report.drafted, report.tokens_per_pass) == (2, 2, 0, 1.0)


def test_nothing_is_carried_from_one_answer_to_the_next():
    twice = [talk([1], [5, 6, 7, 8, 9])] * 2
    report = replay_lookups(Blended(), twice)
    assert report.passes == report.tokens


def test_no_answers_are_no_gain():
    assert replay_lookups(Blended(), []).tokens_per_pass == 1
