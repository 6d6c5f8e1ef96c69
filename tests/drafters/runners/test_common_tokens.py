"""The tokens that a draft model scores: which, for which texts, and what is refused."""

import numpy as np
import pytest

from paceline.drafters.draft_models.draft_model import DraftModel
from paceline.drafters.runners.common_tokens import COMMON, CommonTokens, common_tokens
from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.base import ForwardOutput
from paceline.sampling import Law
from tests.drafters.draft_models.test_draft_model import context
from tests.fakes import small_config


class Successor:
    """A model whose next token is the last one plus 1; it notes how many tokens its passes score."""

    def __init__(self, vocab_size=200_000, passes=None):
        self.config = small_config(vocab_size=vocab_size, max_position_embeddings=512)
        self.passes = [] if passes is None else passes
        self.size = vocab_size

    def with_vocabulary(self, size):
        view = Successor(self.config.vocab_size, self.passes)
        view.size = min(size, self.size)
        return view

    def new_cache(self, num_pages):
        return None

    def forward(self, rows, cache, taps=()):
        self.passes.append(self.size)
        logits = np.zeros((len(rows.logit_rows), self.size), np.float32)
        for row, token in enumerate(rows.token_ids[rows.logit_rows]):
            logits[row, min(token + 1, self.size - 1)] = 9
        return ForwardOutput(logits)


def asks(tokens, request_id="a"):
    made = context(tokens, 2, request_id)
    made.warp = lambda logits, path, ids=None: Law.one_hot(int(np.argmax(logits)))
    return made


def test_texts_of_common_tokens_are_drafted_with_those_alone():
    model = Successor()
    drafter = DraftModel(model, 64, common=common_tokens(model, None))
    assert drafter.propose([asks([5, 6])])[0].tokens == (7, 8)
    assert set(model.passes) == {COMMON}
    drafter.release("a")
    model.passes.clear()
    assert drafter.propose([asks([150_000, 150_001])])[0].tokens == (150_002, 150_003)
    assert set(model.passes) == {200_000}


def test_one_other_text_among_those_drafted_together_makes_it_the_whole_vocabulary():
    model = Successor()
    drafter = DraftModel(model, 64, common=common_tokens(model, None))
    trees = drafter.propose([asks([5, 6]), asks([150_000], "b")])
    assert [tree.tokens for tree in trees] == [(7, 8), (150_001, 150_002)]
    assert set(model.passes) == {200_000}


@pytest.mark.parametrize(("rare", "covered"), [(0, True), (19, True), (20, False), (128, False)])
def test_the_latest_128_tokens_say_whether_a_text_is_covered(rare, covered):
    tokens = CommonTokens(Successor(), COMMON)
    assert tokens.cover([150_000] * 300 + [150_000] * rare + [3] * (128 - rare)) is covered
    assert CommonTokens(Successor(), COMMON, always=True).cover([150_000] * 9)


def test_a_small_vocabulary_or_a_given_size_that_holds_it_is_left_whole():
    assert common_tokens(Successor(2 * COMMON - 1), None) is None
    assert common_tokens(Successor(500), 500) is None
    assert len(common_tokens(Successor(500), 499).ids) == 499


def test_what_cannot_be_is_refused_by_name():
    with pytest.raises(InvalidParameter, match=r"draft_vocab_size: 0 is not 1 or more"):
        common_tokens(Successor(), 0)
    whole = Successor()
    whole.with_vocabulary = None
    model = type("Whole", (), {"config": whole.config})()
    assert common_tokens(model, None) is None
    with pytest.raises(UnsupportedModel, match="draft_vocab_size"):
        common_tokens(model, 100)
