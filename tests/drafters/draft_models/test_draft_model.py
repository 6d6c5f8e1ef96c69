"""The draft model's own cache: what it keeps, what it rolls back, and when it declines."""

from dataclasses import replace

import numpy as np
import pytest

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.drafters.base import DraftContext
from paceline.drafters.draft_models.draft_model import DraftModel
from paceline.drafters.trees.options import CHAIN, tree_shape
from paceline.engine.setup.build import build_engine
from paceline.models.base import PAGE_SIZE, ForwardOutput
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource
from paceline.sampling import CounterRandomness, Law
from paceline.types import SamplingParams
from tests.fakes import ByteTokenizer, RandomCheckpoint, no_drafter_fails, run_to_end, small_config, tell


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


class Padded(Successor):
    """Nine more logits than the target has, two of which are the largest after every token."""

    config = small_config(vocab_size=140, max_position_embeddings=64)

    def forward(self, rows, cache, taps=()):
        output = super().forward(rows, cache, taps)
        output.logits[:, [133, 139]] = 20
        return output


@pytest.mark.parametrize("tree", [CHAIN, tree_shape("dynamic", topk=2, depth=2)], ids=["chain", "tree"])
def test_what_the_target_cannot_say_is_cut_off_before_it_is_drawn(tree):
    """Refused after the draw, it would change the law of the text: whether a draft is verified must not depend on what
    was drawn."""
    laws = []

    def warp(logits, path):
        laws.append(logits.shape)
        return Law.one_hot(int(np.argmax(logits)))

    drafter = DraftModel(Padded(), num_pages=8, shape=tree, vocab_size=131)
    [drafted] = drafter.propose([replace(context([5, 6, 7], budget=6), warp=warp)])
    assert drafted.tokens[0] == 8 and max(drafted.tokens) < 131
    assert set(laws) == {(131,)}


def test_a_wider_draft_model_is_switched_off_for_no_request(monkeypatch):
    torch_model = pytest.importorskip("paceline.models.torch_executor")
    target, draft = (
        LoadedModel(ModelSource("random", checkpoint, ByteTokenizer()), torch_model.TorchModel(checkpoint))  # type: ignore
        for checkpoint in (RandomCheckpoint(small_config()), RandomCheckpoint(small_config(vocab_size=140), seed=3))
    )
    monkeypatch.setattr("paceline.engine.setup.build.load", lambda *_: draft)
    spec = SpeculativeConfig("draft_model", model="wide", policy="fixed", num_draft_tokens=3)
    engine = build_engine(target, EngineConfig(kv_cache_memory_bytes=1 << 22, profile="none"), spec)
    for number in range(12):
        engine.add_request(str(number), [5, 9, number], SamplingParams(temperature=2.0, max_tokens=12, ignore_eos=True))
    with no_drafter_fails():
        run_to_end(engine)
    assert engine.metrics.spec_decode_num_draft_tokens > 100
