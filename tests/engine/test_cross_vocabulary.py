"""A draft model with its letters in another order drafts for the tiny target: the text stays the plain text."""

from dataclasses import replace

import pytest

from paceline.drafters.registry import make_drafter
from paceline.drafters.services import DraftServices
from paceline.errors import UnsupportedModel
from paceline.types import SamplingParams
from tests.engine.conftest import load_random, run_all
from tests.fakes import ByteTokenizer


class Backwards(ByteTokenizer):
    """Token i is the byte 127 - i."""

    def encode(self, text, add_special_tokens=True):
        return [127 - byte for byte in text.encode("ascii", "ignore")]

    def token_bytes(self, token_id):
        return bytes([127 - token_id]) if token_id < 128 else b""


@pytest.fixture(params=["intersection", "string"])
def drafter(request, tiny):
    def load(name, dtype=None):
        loaded = load_random(1)
        return replace(loaded, source=replace(loaded.source, tokenizer=Backwards()))

    services = DraftServices(tiny, None, 64, None, load)  # type: ignore[arg-type]
    return make_drafter("cross_vocabulary", services, model="backwards", mode=request.param)


def test_greedy_text_is_the_plain_text(engine_for, drafter):
    plain = run_all(engine_for())
    drafted = run_all(engine_for({"method": "plain", "num_draft_tokens": 4, "policy": "fixed"}, drafter))
    assert [o.token_ids for o in drafted] == [o.token_ids for o in plain]
    assert sum(o.stats.num_draft_tokens for o in drafted) > 0


def test_coupled_text_is_the_plain_text(engine_for, drafter):
    params = [SamplingParams(temperature=0.9, seed=seed, max_tokens=30) for seed in range(4)]
    plain = run_all(engine_for({"method": "plain", "num_draft_tokens": 0, "rule": "coupled"}), params=params)
    drafted = run_all(engine_for({"method": "plain", "num_draft_tokens": 4, "rule": "coupled"}, drafter), params=params)
    assert [o.token_ids for o in drafted] == [o.token_ids for o in plain]


def test_a_draft_model_of_another_vocabulary_is_sent_here(tiny):
    def load(name, dtype=None):
        loaded = load_random(1)
        return replace(loaded, source=replace(loaded.source, tokenizer=Backwards()))

    with pytest.raises(UnsupportedModel, match="cross_vocabulary"):
        make_drafter("draft_model", DraftServices(tiny, None, 64, None, load), model="backwards")  # type: ignore[arg-type]
