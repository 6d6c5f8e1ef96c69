"""Boost-tuning: what is dropped, what merged chains are worth, and a pool above its best member."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pytest
import torch

from paceline.errors import InvalidParameter
from paceline.training.drafts.boost import Lessons, accepted, hits_on, pool_tokens_per_pass
from paceline.training.drafts.distill import DistillRecipe
from paceline.training.heads.figures import replayed
from paceline.training.run.loop import LoopSettings, Trainer
from paceline.training.run.trainee import Moment
from tests.training.drafts.tiny import net, tiny_store


def made():
    found = net()
    return DistillRecipe(found, found.head, num_steps=3)


def test_texts_are_dropped_that_the_draft_matches(tmp_path):
    """By hand: the share of places where the logits' largest is the text's next token."""
    store, recipe = tiny_store(tmp_path), made()
    shares = [float(recipe.hits(store, one).float().mean()) for one in store.documents]
    for one, share in zip(store.documents, shares, strict=True):
        ids = torch.from_numpy(one.conversation.ids.astype(np.int64))
        with torch.no_grad():
            said = (recipe.draft(ids[:-1], [len(ids) - 1]) @ recipe.draft.head.T).argmax(-1)[3:]
        assert share == pytest.approx(float((said == ids[4:]).float().mean()))
    middle = sorted(shares)[len(shares) // 2] + 1e-6
    kept = Lessons(store.documents, middle).after(hits_on(recipe, store, store.documents))
    assert [one.start for one in kept.documents] == [
        one.start for one, s in zip(store.documents, shares, strict=True) if s < middle
    ]
    assert not kept.known and kept.num_places == 10 * len(kept.documents)
    for wrong in (0.0, 1.5, -1.0):
        with pytest.raises(InvalidParameter, match="above 0"):
            Lessons(store.documents, wrong)
    with pytest.raises(InvalidParameter, match="nothing left"):
        kept.after([torch.ones(10, dtype=torch.bool)] * len(kept.documents))


def test_places_are_left_out_that_any_draft_before_names(tmp_path):
    """They take no loss, others do; a text of which all are named is dropped."""
    store = tiny_store(tmp_path)
    documents = store.documents[:3]
    first = [torch.arange(10) < count for count in (0, 4, 9)]
    second = [torch.arange(10) == 9 for _ in range(3)]
    lessons = Lessons(documents).after(first)
    assert lessons.num_places == 10 + 6 + 1 and len(lessons.documents) == 3
    lessons = lessons.after(second)
    assert lessons.num_places == 9 + 5 and lessons.documents == documents[:2]
    found = net()
    recipe = DistillRecipe(found, found.head, num_steps=3, left_out=lessons.known)
    texts = recipe._texts(store, lessons.documents, Moment(0.0, 1.0, torch.Generator()))
    assert texts.labelled.tolist() == [*range(3, 12), *range(13 + 3 + 4, 13 + 3 + 9)]
    torch.testing.assert_close(texts.weights.sum(), torch.tensor(1.0))
    with pytest.raises(InvalidParameter, match="nothing left"):
        lessons.after([torch.ones(10, dtype=torch.bool)] * 2)


def test_a_text_whose_answer_is_known_is_kept_for_the_places_of_its_prompt(tmp_path):
    store = tiny_store(tmp_path)
    [one] = documents = store.documents[:1]
    lessons = Lessons(documents, whole_texts=True).after([torch.ones(10, dtype=torch.bool)])
    assert lessons.documents == documents and lessons.num_places == len(one.conversation.ids) - 1 - 10
    found = net()
    recipe = DistillRecipe(found, found.head, whole_texts=True, left_out=lessons.known)
    texts = recipe._texts(store, documents, Moment(0.0, 1.0, torch.Generator()))
    assert texts.labelled.tolist() == list(range(lessons.num_places))


def test_a_merged_tree_goes_as_far_as_its_best_chain():
    first, second = torch.tensor([True, True, False, False, True]), torch.tensor([False, True, True, True, False])
    alone, merged = pool_tokens_per_pass([[first], [second]], 2)
    assert accepted(first, 2).tolist() == [2, 1, 0, 0, 1]
    assert alone == [replayed([[2, 1, 0, 0, 1]]), replayed([[0, 2, 2, 1, 0]])]
    assert merged == replayed([[2, 2, 2, 1, 1]]) > max(alone)


def trained(store, documents, folder, left_out: Mapping = MappingProxyType({}), origin="", steps=20, layers=(0,)):
    found = net(layers)
    recipe = DistillRecipe(found, found.head, num_steps=3, left_out=left_out, origin=origin)
    settings = LoopSettings(num_steps=steps, rows=20, rate=2e-2, share=1.0)
    run = Trainer(recipe, store, settings, folder, documents=documents)
    run.run()
    recipe.net.load_state_dict(run.mean.weights)
    return recipe


@pytest.mark.parametrize("match", [0.5, None])
def test_a_boosted_draft_names_more_of_what_the_first_misses_than_another_of_all_texts(tmp_path, quick_rise, match):
    """With equal updates; and their merged tree is above the better of the two."""
    store = tiny_store(tmp_path / "taps", 16, 1, own_text=True)
    texts = [one for one in store.documents if not one.conversation.is_held_out]
    first = trained(store, texts[:10], tmp_path / "first", steps=25)
    hits = hits_on(first, store, texts)
    lessons = Lessons(texts, match).after(hits)
    boosted = trained(store, lessons.documents, tmp_path / "boosted", lessons.known)
    other = trained(store, texts, tmp_path / "other")
    missed = ~torch.cat(hits)
    found = [int((torch.cat(hits_on(one, store, texts)) & missed).sum()) for one in (boosted, other)]
    assert found[0] > found[1]
    alone, merged = pool_tokens_per_pass([hits, hits_on(boosted, store, texts)], 3)
    assert merged > max(alone)


def test_a_pool_learns_its_texts_by_heart(tmp_path, quick_rise):
    """The second draft all places that the first one misses, so that one of the two names any."""
    store = tiny_store(tmp_path / "taps", 4, 1, own_text=True)
    texts = [one for one in store.documents if not one.conversation.is_held_out]
    first = hits_on(trained(store, texts, tmp_path / "first", steps=3, layers=(0, 1)), store, texts)
    lessons = Lessons(texts).after(first)
    boosted = trained(store, lessons.documents, tmp_path / "second", lessons.known, steps=40, layers=(0, 1))
    second = hits_on(boosted, store, texts)
    missed, named = ~torch.cat(first), torch.cat(second)
    assert 5 <= int(missed.sum()) == lessons.num_places
    assert named[missed].float().mean() > 0.95 and (named | ~missed).float().mean() > 0.95
    assert named[~missed].float().mean() < 0.95  # these it was not taught


def test_a_run_that_began_otherwise_is_not_gone_on_with(tmp_path):
    """With other weights, or with other places left out."""
    store = tiny_store(tmp_path / "taps")
    texts = [one for one in store.documents if not one.conversation.is_held_out]
    known = {texts[0].key: torch.arange(10) < 4}
    trained(store, texts, tmp_path / "run", known, "one", 1)
    for left_out, origin, named in ((known, "two", "begin_with"), ({}, "one", "pool")):
        with pytest.raises(InvalidParameter, match=f"work: .*another {named};"):
            trained(store, texts, tmp_path / "run", left_out, origin, 2)
    trained(store, texts, tmp_path / "run", dict(known), "one", 2)
