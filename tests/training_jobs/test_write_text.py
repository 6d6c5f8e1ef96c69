"""Text that a model writes for its heads: what is kept, and that its hidden states are those of the text."""

import numpy as np
import pytest

from paceline.config import EngineConfig
from paceline.engine.setup.build import build_engine
from paceline.errors import InvalidParameter
from paceline.models.base import NORMED, pages_for
from paceline.models.files.bfloat16 import to_bfloat16
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource
from paceline.models.rows import Part, build_rows
from paceline.training.heads import openings
from paceline.training.heads.conversations import Conversation, ngrams_of
from paceline.training.heads.recorder import TapRecorder
from paceline.training.heads.shards import TapStore
from paceline.training_jobs import write_text
from paceline.training_jobs.text import TextJob, check_clean, open_served
from paceline.training_jobs.write_text import HeadWriter, WritingLimits
from tests.fakes import ByteTokenizer, RandomCheckpoint, small_config

TAPS = (1, NORMED)
PROMPTS = [list(f"prompt number {i}".encode()) for i in range(6)]


class ChattyTokenizer(ByteTokenizer):
    """Bytes with a template."""

    has_chat_template = True

    def apply_chat_template(self, messages):
        return f"U:{messages[0]['content']}|A:"

    def encode_chat(self, messages):
        return self.encode(self.apply_chat_template(messages))

    def decode(self, ids, **_):
        return bytes(i for i in ids if i < 128).decode()


@pytest.fixture
def loaded():
    pytest.importorskip("torch")
    from paceline.models.torch_executor import TorchModel

    checkpoint = RandomCheckpoint(small_config())
    return LoadedModel(ModelSource("random", checkpoint, ChattyTokenizer()), TorchModel(checkpoint))  # type: ignore[arg-type]


@pytest.fixture
def engine(loaded, monkeypatch):
    monkeypatch.setattr(write_text, "_ROUND", 6)
    monkeypatch.setattr(openings, "_LONGEST", 40)
    config = EngineConfig(prefix_caching=False, max_model_len=128, profile="none")
    return build_engine(loaded, config, None, drafter=TapRecorder(TAPS))


def written(engine, loaded, folder, prompts=PROMPTS, benchmark=None, tokens=40):
    store, told = TapStore(folder, TAPS), []
    writer = HeadWriter(engine, loaded.source.tokenizer, store, prompts, benchmark, seed=3)
    writer.write(WritingLimits(tokens, answer_tokens=12), lambda *now: told.append(now))
    return store, told


def test_states_are_those_of_the_text(engine, loaded, tmp_path):
    store, told = written(engine, loaded, tmp_path)
    assert told[-1] == (40, 40) and store.num_answer_tokens >= 40
    assert {one.conversation.temperature for one in store.documents} == {0.0, 1.0}
    for one in store.documents[:3]:
        ids = one.conversation.ids[:-1].tolist()
        assert one.conversation.ids[: one.conversation.num_prompt].tolist() in PROMPTS
        pages = list(range(pages_for(len(ids))))
        cache = loaded.model.new_cache(len(pages))
        states = loaded.model.forward(build_rows([Part(pages, 0, ids, logits="none")]), cache, TAPS).taps
        expected = np.stack([states[tap] for tap in TAPS], axis=1)
        found = (store.rows([one], [0, 1]).astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(found, expected, rtol=0.01, atol=0.01)


def test_answers_of_preempted_requests_are_kept(loaded, tmp_path, monkeypatch):
    """Six texts of 28 tokens in seven pages: some lose theirs, are computed again, and are those of a large cache."""
    monkeypatch.setattr(write_text, "_ROUND", 6)
    found = []
    for num_pages in (7, 40):
        config = EngineConfig(prefix_caching=False, max_model_len=64, profile="none",
                              kv_cache_memory_bytes=num_pages * loaded.model.new_cache(1).num_bytes)  # fmt: skip
        engine = build_engine(loaded, config, None, drafter=TapRecorder(TAPS))
        store, _ = written(engine, loaded, tmp_path / str(num_pages), tokens=1)
        texts = {tuple(one.conversation.ids.tolist()): store.rows([one], [0, 1]) for one in store.documents}
        found.append((texts, engine.metrics.num_preemptions))
    (small, preempted), (large, undisturbed) = found
    assert preempted > 0 and undisturbed == 0
    assert small.keys() == large.keys() and len(small) == 6
    for ids, states in small.items():
        one, other = ((kept.astype(np.uint32) << 16).view(np.float32) for kept in (states, large[ids]))
        np.testing.assert_allclose(one, other, rtol=0.01, atol=0.01)


def test_a_model_writes_its_own_prompts(engine, loaded, tmp_path):
    store, _ = written(engine, loaded, tmp_path, prompts=None, tokens=1)
    for one in store.documents:
        text = loaded.source.tokenizer.decode(one.conversation.ids[: one.conversation.num_prompt].tolist())
        assert text.startswith("U:") and text.endswith("|A:") and len(text) > 6
    assert len({tuple(one.conversation.ids.tolist()) for one in store.documents}) == len(store.documents) > 0


def test_what_comes_next_follows_from_what_is_there(engine, loaded, tmp_path):
    once, _ = written(engine, loaded, tmp_path / "a", tokens=80)
    written(engine, loaded, tmp_path / "b", tokens=20)
    twice, _ = written(engine, loaded, tmp_path / "b", tokens=80)
    assert [one.conversation.ids.tolist() for one in once.documents] == [
        one.conversation.ids.tolist() for one in twice.documents
    ]


def test_texts_of_a_benchmark_are_kept_out(engine, loaded, tmp_path, monkeypatch):
    monkeypatch.setattr(HeadWriter, "_is_wanted", _counting(HeadWriter._is_wanted, seen := []))
    text = " ".join(f"w{i}" for i in range(14))
    prompts = [list(text.encode()), list(b"another prompt")]
    store, _ = written(engine, loaded, tmp_path, prompts, ngrams_of([text]), tokens=1)
    kept = {bytes(one.conversation.ids[: one.conversation.num_prompt].tolist()) for one in store.documents}
    assert len(seen) == 2 and kept == {b"another prompt"}


def test_text_that_is_there_and_holds_the_benchmark_is_refused(loaded, tmp_path):
    text = " ".join(f"word{i}" for i in range(20))
    ids = np.array(list(text.encode()), np.int32)
    store = TapStore(tmp_path, (NORMED,))
    store.add([Conversation(ids, 3, 0.0)], [np.zeros((len(ids) - 1, 1, 8), np.uint16)])
    check_clean(store, loaded, frozenset(), "go")
    check_clean(store, loaded, frozenset(ngrams_of([text.replace("word9 ", "other ")[:70]])), "go")
    with pytest.raises(InvalidParameter, match=r"exclude: 1 of the 1 texts .*; go"):
        check_clean(store, loaded, frozenset(ngrams_of([text])), "go")
    job = TextJob("random", tmp_path, 1, benchmark=frozenset(ngrams_of([text])))
    with pytest.raises(InvalidParameter, match=r"exclude: 1 of the 1 texts .* leave --exclude out"):
        open_served(tmp_path, job, loaded)


def test_writing_that_brings_nothing_ends(engine, loaded, tmp_path, monkeypatch):
    """Each round asks with other dice, and the third one in a row that keeps nothing is the last."""
    monkeypatch.setattr(HeadWriter, "_is_wanted", lambda *_: False)
    monkeypatch.setattr(HeadWriter, "_write_shard", _counting_shards(HeadWriter._write_shard, seen := []))
    store, _ = written(engine, loaded, tmp_path)
    assert not store.documents and len(seen) == 3
    assert len({tuple(map(tuple, prompts)) for prompts in seen}) > 1


@pytest.mark.parametrize(
    ("seconds", "rounds", "told"),
    [(None, 0.5, 10), (1000.0, 0.5, 25), (1000.0, 3.0, 25), (10.0, 0.5, 50), (10.0, 2.0, 99)],
    ids=["no time", "in time", "more rounds than time", "a first round that takes longer", "over"],
)
def test_progress_is_of_the_time_where_that_ends_writing_sooner(monkeypatch, seconds, rounds, told):
    """250 seconds have passed, and 10 of 100 tokens are there."""
    clock = iter([1000.0, 1250.0])
    monkeypatch.setattr(write_text.time, "monotonic", lambda: next(clock))
    seen = []
    share = write_text._Share(WritingLimits(100, seconds), 0, lambda *now: seen.append(now))
    share(10, rounds)
    assert seen == [(told, 100)]


def _counting_shards(inner, seen):
    def asked(self, prompts, *more):
        seen.append(prompts)
        return inner(self, prompts, *more)

    return asked


def test_a_model_without_a_template_needs_prompts(engine, loaded, tmp_path):
    store = TapStore(tmp_path, TAPS)
    with pytest.raises(InvalidParameter, match="--prompts"):
        HeadWriter(engine, ByteTokenizer(), store, None)  # type: ignore[arg-type]


def _counting(inner, seen):
    def asked(self, one):
        seen.append(one)
        return inner(self, one)

    return asked


def test_a_folder_of_other_states_is_refused(tmp_path):
    TapStore(tmp_path, TAPS)
    with pytest.raises(InvalidParameter, match="use another folder"):
        TapStore(tmp_path, (2, NORMED))
    with pytest.raises(InvalidParameter, match="write some first"):
        TapStore(tmp_path / "none")


def test_bfloat16_is_the_nearest():
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5e-3, 3e38], np.float32)
    wide = (to_bfloat16(values).astype(np.uint32) << 16).view(np.float32)
    assert wide[0] == 1.0 and wide[1] == 1.0 and wide[2] == np.float32(1.015625)
    np.testing.assert_allclose(wide, values, rtol=2**-8)
