"""The replay benchmark on an invented recording: the engine says what was recorded, at prices that are known."""

from argparse import Namespace
from dataclasses import replace

import draft_replay
import pytest
from draft_recordings import Answer, DraftLaws, Recording, answer_line, draft_laws, header_line, read_recording
from replayed_engine import Costs, PassTable, Replay

from paceline.models.numba_executor import weights
from paceline.sampling import TokenTree
from tests.engine.conftest import load_random
from tests.fakes import Quiet, small_config

PROMPT, SAID, END = [20, 21, 22], [30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41], 130
FIXED = {"policy": "fixed", "num_draft_tokens": 3}


def linear(first: float, more: float) -> PassTable:
    """A pass over M rows takes first + more * (M - 1) milliseconds, whatever the context."""
    points = {1: first, 2: first + more}
    return PassTable({0: points, 100: points})


COSTS = Costs(linear(10, 1), linear(2, 0.5))


class Oracle(Quiet):
    """Always right: the recorded answer in the replay's numbers, where the recorded tokens are 0, 1, 2, ..."""

    text = tuple(range(len(PROMPT) + len(SAID)))

    def propose(self, contexts):
        return [TokenTree.chain(self.text[len(c.token_ids) :][: c.budget]) for c in contexts]


def laws(said: list[int], chance: float) -> DraftLaws:
    """A draft that gives the recorded token `chance` and 50 the rest."""
    return DraftLaws([[token, 50] for token in (*said, 51)], [[chance, 1 - chance] for _ in range(len(said) + 1)])


@pytest.fixture
def recording():
    """Two families; the second prompt's answer ends by itself."""
    ended = [*SAID[:5], END]
    return Recording(
        "target", "draft", "bfloat16", small_config(), small_config(num_hidden_layers=1), (END,), len(SAID),
        tuple(
            Answer(family, temperature, prompt, said, laws(said, 0.7))
            for temperature in (0.0, 1.0)
            for family, prompt, said in (("counting", PROMPT, SAID), ("ending", PROMPT[::-1], ended))
        ),
    )  # fmt: skip


@pytest.fixture
def priced(monkeypatch):
    monkeypatch.setattr(draft_replay, "COSTS", {"smollm2-135m": COSTS})


def figures_of(recording: Recording, at_once=(1, 2)) -> list[dict]:
    return list(draft_replay.replay("invented", recording, Namespace(at_once=at_once, runs=2)))


def test_figures_are_the_same_every_time_and_texts_those_recorded(recording, priced):
    figures = figures_of(recording)
    assert figures == figures_of(recording)
    assert len(figures) == 2 * 2 * 4 * 3  # temperatures, numbers at once, drafters, families and all
    assert all(row["same_text"] for row in figures)


def test_a_text_that_differs_is_noticed(recording):
    replayed = Replay(recording, 0.0, COSTS)
    run = draft_replay.decode(replayed, None, recording.max_tokens, 1)
    assert draft_replay.same_text(replayed.answers, [run], [0, 1])
    assert not draft_replay.same_text(replayed.answers[::-1], [run], [0, 1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafter_that_is_always_right_scores_the_closed_form(recording, temperature):
    [counting, _] = recording.at(temperature)
    replayed = Replay(replace(recording, answers=(counting,)), temperature, COSTS)
    oracle = {"method": f"{__name__}:Oracle", **FIXED}
    plain, drafted = (draft_replay.decode(replayed, how, len(SAID), 1) for how in (None, oracle))
    # The first token comes with the prompt. Plain: 11 passes of 10 ms. Drafts of 3, 3 and 2: 4, 4 and 3 tokens.
    assert draft_replay.pace([plain], [0])["per_second"] == pytest.approx(11 / 0.110)
    assert draft_replay.pace([drafted], [0])["per_second"] == pytest.approx(11 / (0.013 + 0.013 + 0.012))
    assert draft_replay.pace([drafted], [0])["per_pass"] == pytest.approx(11 / 3)


def test_a_draft_model_is_charged_for_reading_the_prompt_and_for_every_step(recording):
    sure = Answer("counting", 0.0, PROMPT, SAID, laws(SAID, 0.9))
    replayed = Replay(replace(recording, answers=(sure,)), 0.0, COSTS)
    run = draft_replay.decode(replayed, {"method": "draft_model", "model": "draft", **FIXED}, len(SAID), 1)
    target = 0.013 + 0.013 + 0.012
    # 8 drafted tokens, a step each; the first step reads prompt and first token (4 rows), and after a draft that stood
    # the next begins with its last token and the target's (2 rows).
    draft = 8 * 0.002 + 3 * 0.0005 + 2 * 0.0005
    assert draft_replay.pace([run], [0])["per_second"] == pytest.approx(11 / (target + draft))


def test_a_fall_is_found_and_so_is_a_figure_left_out(recording, priced):
    now = figures_of(recording, at_once=[1])
    assert draft_replay.compare(now, now) == []
    better = [row | {"speedup": row["speedup"] * 1.02} for row in now[:1]]
    assert [row["family"] for row in draft_replay.compare(now, better)] == ["counting"]
    assert draft_replay.compare(now[1:], now[:1])[0]["after"] is None


def test_a_recording_is_read_as_it_was_written(recording, tmp_path):
    path = tmp_path / "invented.jsonl"
    path.write_text("\n".join([header_line(recording), *map(answer_line, recording.answers)]))
    assert read_recording(path) == recording


def test_draft_laws_are_those_of_a_pass_over_the_whole_text(monkeypatch, tmp_path):
    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path)
    model = load_random(1).model
    prompt, said = list(range(20)), [5, 6, 7]
    found = draft_laws(model, prompt, said, top=4)
    assert len(found.tokens) == len(found.probs) == len(said) + 1
    whole = draft_laws(model, [*prompt, *said], [], top=131)
    assert whole.tokens[0][:4] == found.tokens[-1]
    assert whole.probs[0][:4] == pytest.approx(found.probs[-1])
    assert sum(whole.probs[0]) == pytest.approx(1, abs=1e-4)
