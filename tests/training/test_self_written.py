"""Answers that the target writes itself: enough of them, resumed where a run ended, in the model's own template."""

import pytest

from paceline.training import self_written
from paceline.training.self_written import SelfWriter
from tests.fakes import ByteTokenizer

END = 130


class Chatty(ByteTokenizer):
    """With a chat template around the user's words."""

    has_chat_template = True

    def apply_chat_template(self, messages, add_generation_prompt=True):
        return f"<{messages[0]['content']}>"

    def decode(self, ids, skip_special=True, continuation=False):
        return bytes(i for i in ids if i < 128).decode("ascii")


class Target:
    """Answers every prompt with its number of calls and the prompt's last token; counts its calls."""

    def __init__(self, ends: bool = True) -> None:
        self.calls = 0
        self.asked = []
        self._ends = ends

    def __call__(self, prompts, params):
        self.calls += 1
        self.asked.append((prompts, params))
        return [[65 + i % 26, 65 + i // 26, 48 + self.calls, END if self._ends else 66] for i in range(len(prompts))]


@pytest.fixture(autouse=True)
def small_files(monkeypatch):
    monkeypatch.setattr(self_written, "PER_FILE", 6)


def ignore(done, total):
    assert 0 <= done <= total


def test_it_stops_when_there_is_enough_and_goes_on_where_it_stopped(tmp_path):
    first = Target()
    few = SelfWriter(Chatty(), first, tmp_path).write(20, ignore)
    assert sum(len(one.answer) for one in few) >= 20
    assert first.calls == 2  # prompts, then answers
    second = Target()
    more = SelfWriter(Chatty(), second, tmp_path).write(40, ignore)
    assert second.calls == 2
    assert [one.ids.tolist() for one in more[: len(few)]] == [one.ids.tolist() for one in few]
    third = Target()
    SelfWriter(Chatty(), third, tmp_path, seed=1).write(20, ignore)
    assert third.calls == 2


def test_own_prompts_stand_in_the_template_and_unfinished_ones_are_left_out(tmp_path):
    target = Target()
    found = SelfWriter(Chatty(), target, tmp_path).write(1, ignore)
    (begun, how), (prompts, params) = target.asked
    assert all(ids[0] == ord("<") and ord(">") not in ids for ids in begun)
    assert {one.temperature for one in how} == {1.0}
    assert all(bytes(prompt).startswith(b"<") and bytes(prompt).endswith(b">") for prompt in prompts)
    assert [one.temperature for one in params[:3]] == [0.0, 0.0, 1.0]
    assert found[0].ids[: found[0].num_prompt].tolist() == prompts[0]


def test_given_prompts_are_answered_once_each(tmp_path):
    prompts = [[1, 2], [3], [4, 5], [6], [7], [8], [9]]
    target = Target()
    found = SelfWriter(Chatty(), target, tmp_path, prompts).write(10_000, ignore)
    assert [one.ids[: one.num_prompt].tolist() for one in found] == prompts
    assert target.calls == 2


def test_a_model_without_a_template_continues_a_few_words(tmp_path):
    target = Target(ends=False)
    found = SelfWriter(ByteTokenizer(), target, tmp_path).write(4, ignore)
    assert target.calls == 1
    assert len(found) == 6
