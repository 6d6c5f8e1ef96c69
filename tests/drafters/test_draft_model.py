"""The draft model's own cache: what it keeps, what it rolls back, and when it declines."""

import numpy as np
import pytest

from paceline.drafters.base import DraftContext
from paceline.drafters.draft_model import DraftModel
from paceline.models.base import PAGE_SIZE, ForwardOutput
from paceline.sampling import CounterRandomness, Law
from paceline.types import SamplingParams
from tests.fakes import small_config, tell


class Successor:
    """A model whose next token is the last one plus 1; it counts its rows."""

    config = small_config(max_position_embeddings=64)

    def __init__(self):
        self.rows = []

    def new_cache(self, num_pages):
        return None

    def forward(self, rows, cache, taps=()):
        self.rows.append(len(rows.token_ids))
        logits = np.zeros((len(rows.logit_rows), self.config.vocab_size), np.float32)
        logits[np.arange(len(logits)), rows.token_ids[rows.logit_rows] + 1] = 9
        return ForwardOutput(logits)


def context(tokens, budget=3, request_id="a", keep=lambda laws: True):
    return DraftContext(
        request_id=request_id, token_ids=tokens, num_prompt_tokens=1, budget=budget, params=SamplingParams(),
        warp=lambda logits, path: Law.one_hot(int(np.argmax(logits))), randomness=CounterRandomness(0),
        keep_drafting=keep,
    )  # fmt: skip


@pytest.fixture
def model():
    return Successor()


def test_a_chain_follows_the_model_and_feeds_only_what_is_new(model):
    drafter = DraftModel(model, num_pages=8)
    assert drafter.propose([context([5, 6, 7])])[0].tokens == (8, 9, 10)
    assert model.rows == [3, 1, 1]
    tell(drafter, "a", [5, 6, 7, 8, 50], finished=False)  # one draft stood, the second fell
    assert drafter.propose([context([5, 6, 7, 8, 50])])[0].tokens == (51, 52, 53)
    assert model.rows[3:] == [1, 1, 1]


def test_requests_share_draft_passes(model):
    drafter = DraftModel(model, num_pages=8)
    trees = drafter.propose([context([1], 2, "a"), context([20, 30], 3, "b")])
    assert [tree.tokens for tree in trees] == [(2, 3), (31, 32, 33)]
    assert model.rows == [3, 2, 1]


def test_a_policy_ends_a_chain_by_its_laws(model):
    drafter = DraftModel(model, num_pages=8)
    tree = drafter.propose([context([1], 5, keep=lambda laws: len(laws) < 2)])[0]
    assert tree.tokens == (2, 3)


def test_long_prompts_are_read_in_chunks(model):
    drafter = DraftModel(model, num_pages=8, max_prefill_rows=10)
    drafter.propose([context(list(range(35)), 1)])
    assert model.rows == [10, 10, 10, 5]


def test_no_room_and_no_positions_mean_no_draft(model):
    drafter = DraftModel(model, num_pages=1)
    assert len(drafter.propose([context(list(range(PAGE_SIZE)))])[0]) == 0
    assert len(DraftModel(model, num_pages=8).propose([context(list(range(63)), 3)])[0]) == 0


def test_released_and_finished_requests_give_their_pages_back(model):
    drafter = DraftModel(model, num_pages=2)
    for request_id in ("a", "b", "c", "d"):
        assert len(drafter.propose([context(list(range(20)), 2, request_id)])[0]) == 2
        if request_id in "ac":
            drafter.release(request_id)
        else:
            tell(drafter, request_id, list(range(21)), finished=True)
