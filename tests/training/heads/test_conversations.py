"""Draft vocabularies, what is held out, and the check against benchmarks."""

import numpy as np

from paceline.training.heads.batches import make_batch
from paceline.training.heads.conversations import (
    coverage,
    draft_vocabulary,
    is_contaminated,
    is_held_out,
    ngrams_of,
)
from paceline.training.run.order import Order
from tests.training.heads.tiny import TAPS, tiny_store, tiny_target


def test_the_most_frequent_tokens_and_those_always_wanted():
    counts = np.array([5, 0, 9, 1, 7, 0])
    ids = draft_vocabulary(counts, 3, always=[5])
    assert ids.tolist() == [2, 4, 5] and ids.dtype == np.int32
    assert coverage(counts, ids) == 16 / 22
    assert draft_vocabulary(counts, 99).tolist() == list(range(6))
    assert coverage(np.zeros(6), ids) == 1.0


def test_about_one_prompt_in_forty_is_held_out_whatever_its_type():
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, 50_000, (4000, 12))
    held_out = [is_held_out(one) for one in prompts]
    assert 60 < sum(held_out) < 140
    assert held_out == [is_held_out(one.astype(np.int32)) for one in prompts]


def test_thirteen_words_in_a_row():
    text = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    benchmark = ngrams_of([text, "short"])
    assert is_contaminated(
        "Well: ONE, two three four five six seven eight nine ten eleven twelve, thirteen!", benchmark
    )
    assert not is_contaminated("one two three four five six seven eight nine ten eleven twelve", benchmark)
    assert not is_contaminated(text, set())


def test_an_order_gives_every_document_once_and_goes_on_where_it_was(tmp_path):
    documents = tiny_store(tmp_path, tiny_target()).documents
    order = Order(documents, seed=1)
    one_epoch = order.take(sum(one.num_rows for one in documents))
    assert len({id(one) for one in one_epoch}) == len(documents) and order.epochs == 0
    order.take(30)
    state = order.state()
    expected = [one.start for one in order.take(200)]
    other = Order(documents, seed=2)
    other.restore(state)
    assert [one.start for one in other.take(200)] == expected and other.epochs == order.epochs


def test_anchors_draft_answers_only(tmp_path):
    store = tiny_store(tmp_path, tiny_target())
    one = store.documents[0]
    batch = make_batch(store, [one], TAPS[:2], 1.0)
    ids, prompt = one.conversation.ids, one.conversation.num_prompt
    assert batch.anchors.tolist() == list(range(prompt - 1, len(ids) - 2))
    assert batch.tokens(0).tolist() == ids[prompt : len(ids) - 1].tolist()
    assert batch.labelled(0).all() and batch.labelled(2).tolist() == [True] * (len(batch.anchors) - 2) + [False] * 2
    assert batch.taps.shape == (len(ids) - 1, 2, 16) and len(batch.teacher(2)) == len(batch.anchors) - 2
