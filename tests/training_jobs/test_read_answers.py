"""Answers at hand: read, they give the states that writing them gave; what the model did not say is left out."""

import numpy as np
import pytest

from paceline.engine.text.own_text import is_drawn, is_greedy
from paceline.training.heads.shards import TapStore
from paceline.training_jobs import read_answers as module
from paceline.training_jobs.read_answers import read_answers
from tests.training_jobs.test_write_text import TAPS, engine, loaded, written  # noqa: F401


def silent(done, total):
    pass


@pytest.fixture
def given(engine, loaded, tmp_path):  # noqa: F811
    store, _ = written(engine, loaded, tmp_path / "written")
    found = [one.conversation for one in store.documents]
    return store, [(one.ids[: one.num_prompt].tolist(), one.answer.tolist()) for one in found]


def test_what_was_written_is_read_as_it_was(given, loaded, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(module, "_SHARD", 3)
    monkeypatch.setattr(module, "_ROWS", 5)
    (first, pairs), second, told = given, TapStore(tmp_path / "read", TAPS), []
    assert read_answers(loaded.model, pairs, second, 10**6, lambda *now: told.append(now)) == 0
    assert told[-1] == (len(pairs), len(pairs)) and len(told) > 1
    assert len(second.documents) == len(first.documents)
    for before, after in zip(first.documents, second.documents, strict=True):
        assert before.conversation.ids.tolist() == after.conversation.ids.tolist()
        assert after.conversation.temperature == before.conversation.temperature
        found = [
            (store.rows([one], [0, 1]).astype(np.uint32) << 16).view(np.float32)
            for store, one in ((first, before), (second, after))
        ]
        np.testing.assert_allclose(*found, rtol=0.01, atol=0.01)


def test_it_goes_on_where_it_was_and_ends_when_there_is_enough(given, loaded, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(module, "_SHARD", 1)
    (_, pairs), store = given, TapStore(tmp_path / "read", TAPS)
    read_answers(loaded.model, pairs, store, 1, silent)
    assert len(store.documents) == 1
    read_answers(loaded.model, pairs, store, 10**6, silent)
    assert len(store.documents) == len(pairs)
    read_answers(loaded.model, pairs, store, 10**6, silent)
    assert len(store.documents) == len(pairs)


def test_what_cannot_be_read_is_left_out(given, loaded, tmp_path):  # noqa: F811
    store = TapStore(tmp_path / "read", TAPS)
    most = loaded.model.config.max_position_embeddings
    assert read_answers(loaded.model, [([1, 2], [3]), ([1] * most, [2] * 4)], store, 100, silent) == 0
    assert not store.documents


def test_greedy_answers_draws_and_other_models_are_told_apart():
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=3, size=(100, 50)).astype(np.float32)
    laws = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    drawn = np.array([rng.choice(50, p=law / law.sum()) for law in laws.astype(float)])
    greedy = logits.argmax(1)
    almost = np.where(np.arange(100) % 20 == 0, drawn, greedy)
    assert module._temperature(logits, greedy) == module._temperature(logits, almost) == 0
    assert module._temperature(logits, drawn) == 1
    assert module._temperature(logits, rng.integers(50, size=100)) is None
    assert not is_greedy(drawn == greedy)
    assert not is_drawn(np.full(100, -9.0), np.full(100, 2.0))
