"""Learning from what is served: acceptance rises on another kind of text, and no text ever changes."""

import errno
import gc
import json
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.cli.options.serving import KeepingOptions
from paceline.config import EngineConfig, SpeculativeConfig
from paceline.drafters.heads.head import head_of
from paceline.drafters.plain import Plain
from paceline.engine.setup.build import build_engine
from paceline.errors import DrafterWarning, InvalidParameter
from paceline.models.base import NORMED
from paceline.models.heads.files import read_head, save_head
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.traits import DrafterTraits
from paceline.training.heads.conversations import Conversation
from paceline.training.heads.origins import GIVEN, Origin
from paceline.training.heads.recipes import RECIPES
from paceline.training.heads.shards import TapStore
from paceline.training.heads.target import training_target
from paceline.training.online.recorded import METHOD, Recorded, recorded
from paceline.training.online.ring import ServedRing
from paceline.training.run.loop import LoopSettings, Trainer
from paceline.training_jobs.head import HeadJob, resumed, train_head
from paceline.training_jobs.text import TextJob
from paceline.types import SamplingParams
from tests.fakes import run_to_end
from tests.models.heads.records import load_target

HEAD = "tests.training.online.test_online:make_head"
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def target():
    return load_target("float32")


def make_head(services, path: str):
    """The head in a folder."""
    return head_of(read_head(path), services)


def prompts_of(kind: int, number: int = 8) -> list[list[int]]:
    """Two kinds of text: tokens of the vocabulary's lower and of its upper half."""
    rng = np.random.default_rng(kind)
    return [rng.integers(3 + 60 * kind, 60 + 60 * kind, 12).tolist() for _ in range(number)]


def serve(target, spec, prompts, params=GREEDY, salt=None):
    """Texts, and accepted over drafted tokens."""
    engine = build_engine(target, EngineConfig(kv_cache_memory_bytes=1 << 22, executor="numba"), spec)
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), prompt, params, **({} if salt is None else {"cache_salt": salt}))
    found = {name: done.outputs[0].token_ids for name, done in run_to_end(engine).items()}
    share = engine.metrics.spec_decode_num_accepted_tokens / max(engine.metrics.spec_decode_num_draft_tokens, 1)
    if hasattr(engine.drafter, "ring"):
        engine.drafter.ring.flush()
    return [found[str(number)] for number in range(len(prompts))], share


def spec_of(path) -> SpeculativeConfig:
    return SpeculativeConfig(HEAD, num_draft_tokens=2, policy="fixed", options={"path": str(path)})


def trained(recipe, store, folder, steps):
    """A head learnt from all of a store, and where it was saved."""
    run = Trainer(recipe, store, LoopSettings(num_steps=steps, rows=100, share=1.0, rate=2e-2), folder / "run")
    for _ in range(steps):
        run.step()
    return save_head(recipe.record(run.mean.weights, {}), folder / "head")


def test_acceptance_rises_on_another_kind_of_text_and_no_text_changes(target, tmp_path, quick_rise, monkeypatch):
    monkeypatch.setattr("paceline.training.heads.conversations.HELD_OUT_SHARE", 5)
    tables, (first, second) = training_target(target.source), (prompts_of(0), prompts_of(1))
    torch.manual_seed(0)
    recipe = RECIPES["eagle3"](tables, np.arange(131, dtype=np.int32), 2)
    untrained = save_head(recipe.record(recipe.net.state_dict(), {}), tmp_path / "untrained")
    plain = {kind: serve(target, None, prompts)[0] for kind, prompts in enumerate((first, second))}

    texts, _ = serve(target, recorded(spec_of(untrained), tmp_path / "first"), first)
    assert texts == plain[0]
    old = trained(recipe, TapStore(tmp_path / "first"), tmp_path / "a", 30)
    assert serve(target, spec_of(old), first)[1] > 0.2

    texts, before = serve(target, recorded(spec_of(old), tmp_path / "second"), second)
    assert texts == plain[1]
    again = resumed(RECIPES["eagle3"], tables, read_head(old))
    new = trained(again, TapStore(tmp_path / "second"), tmp_path / "b", 30)
    texts, after = serve(target, spec_of(new), second)
    assert texts == plain[1]
    assert after > before + 0.2


def test_what_is_kept_are_the_texts_and_their_states(target, tmp_path):
    """Ids to the last but one, and the states of a fresh reading, bit for bit in bfloat16."""
    from paceline.models.files.bfloat16 import to_bfloat16
    from paceline.models.rows import Part, build_rows

    torch.manual_seed(0)
    recipe = RECIPES["medusa"](training_target(target.source), np.arange(131, dtype=np.int32), 2)
    head = save_head(recipe.record(recipe.net.state_dict(), {}), tmp_path / "head")
    prompts = prompts_of(0, 4)
    texts, _ = serve(target, recorded(spec_of(head), tmp_path / "kept"), prompts)
    store = TapStore(tmp_path / "kept")
    assert len(store.documents) == 4
    kept = {tuple(one.conversation.ids[:12].tolist()): one for one in store.documents}
    for prompt, text in zip(prompts, texts, strict=True):
        one = kept[tuple(prompt)]
        ids = one.conversation.ids.tolist()
        assert ids == [*prompt, *text][: len(ids)] and len(ids) >= len(prompt) + len(text) - 1
        assert one.conversation.num_prompt == len(prompt)
        cache = target.model.new_cache(4)
        taps = target.model.forward(build_rows([Part(range(4), 0, ids[:-1], logits="none")]), cache, store.taps).taps
        expected = to_bfloat16(np.stack([taps[tap] for tap in store.taps], axis=1))
        np.testing.assert_array_equal(store.rows([one], range(len(store.taps))), expected)


def test_texts_that_follow_their_predictions_are_kept_whole(target, tmp_path):
    """Steps that verify a request's own draft compute states of its text, as others do."""
    recipe = RECIPES["medusa"](training_target(target.source), np.arange(131, dtype=np.int32), 2)
    head = save_head(recipe.record(recipe.net.state_dict(), {}), tmp_path / "head")
    [prompt] = prompts_of(0, 1)
    [text], _ = serve(target, spec_of(head), [prompt])
    predicted = replace(GREEDY, prediction=[*text[:6], 1, 2, *text[7:]])
    assert serve(target, recorded(spec_of(head), tmp_path / "kept"), [prompt], predicted)[0] == [text]
    [one] = TapStore(tmp_path / "kept").documents
    assert one.conversation.ids.tolist() == [*prompt, *text][: len(prompt) + len(text)]


@pytest.mark.parametrize("method", ["hybrid", "ngram", "head"])
def test_what_a_drafter_declares_is_declared_of_what_is_kept(target, tmp_path, method):
    recipe = RECIPES["medusa"](training_target(target.source), np.arange(131, dtype=np.int32), 2)
    head = save_head(recipe.record(recipe.net.state_dict(), {}), tmp_path / "head")
    own = {"path": str(head)}
    options = {"hybrid": {"drafters": ["suffix", {"method": HEAD} | own]}, "ngram": {}, "head": own}[method]
    spec = SpeculativeConfig(HEAD if method == "head" else method, num_draft_tokens=2, options=options)
    texts = [serve(target, each, prompts_of(0, 2))[0] for each in (spec, recorded(spec, tmp_path / "kept"))]
    assert texts[0] == texts[1]
    config = EngineConfig(kv_cache_memory_bytes=1 << 22, executor="numba")
    own, kept = (
        build_engine(target, config, each).drafter for each in (spec, recorded(spec, tmp_path / "again"))
    )  # fmt: skip
    assert replace(kept.traits, taps=own.traits.taps) == own.traits
    assert hasattr(kept, "chosen_seconds") == own.traits.chooses == (method == "hybrid")


def test_private_requests_are_not_kept(target, tmp_path, monkeypatch):
    recipe = RECIPES["medusa"](training_target(target.source), np.arange(131, dtype=np.int32), 2)
    head = save_head(recipe.record(recipe.net.state_dict(), {}), tmp_path / "head")
    serve(target, recorded(spec_of(head), tmp_path / "kept"), prompts_of(0, 2), salt="mine")
    assert not TapStore(tmp_path / "kept").documents
    job = HeadJob("medusa", TextJob("m", tmp_path, 1), LoopSettings(1), resume=str(head), served=tmp_path / "kept")
    monkeypatch.setattr("paceline.training_jobs.head.load", lambda *_: target)
    with pytest.raises(InvalidParameter, match="no texts yet"):
        train_head(job, EngineConfig())
    assert stat.S_IMODE((tmp_path / "kept").stat().st_mode) == 0o700


def test_texts_are_kept_where_nobody_drafts_for_them(tmp_path):
    """As where the length policy has left drafts off: the drafter hears of every step, and is asked for nothing."""
    taps = {tap: np.ones((4, 8), np.float32) for tap in (0, NORMED)}
    drafter = Recorded(Silent((0, NORMED)), ServedRing(tmp_path / "kept", (0, NORMED)))
    about = {"taps": taps, "num_prompt_tokens": 3, "temperature": 0.5}
    drafter.observe(RequestOutcome("r", [5, 6, 7, 8, 9], num_new=2, finished=True, **about))
    drafter.observe(RequestOutcome("private", [5, 6, 7, 8, 9], num_new=2, finished=True, salt=b"mine", **about))
    drafter.ring.flush()
    (one,) = (each.conversation for each in drafter.ring.store.documents)
    assert (one.ids.tolist(), one.num_prompt, one.temperature) == ([5, 6, 7, 8, 9], 3, 0.5)


class Silent:
    """A drafter that is never asked."""

    name = "silent"

    def __init__(self, taps):
        self.traits = DrafterTraits(taps=taps)

    def observe(self, outcome):
        pass


def test_a_folder_of_other_things_is_no_ring(tmp_path):
    (tmp_path / "photo.jpg").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(InvalidParameter, match=r"^keep_served: .*holds other things \(photo.jpg\)"):
        ServedRing(tmp_path, (0,))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    one = Conversation(np.arange(9, dtype=np.int32), 3, 0.0)
    TapStore(tmp_path / "taps", (0,)).add([one], [np.zeros((8, 1, 8), np.uint16)], Origin(GIVEN, 0, 8))
    with pytest.raises(InvalidParameter, match=r"^keep_served: .*texts that were not served"):
        ServedRing(tmp_path / "taps", (0,))


def test_nothing_is_kept_unless_it_is_asked_for():
    spec = SpeculativeConfig("suffix")
    assert KeepingOptions().around(spec) is spec
    asked = KeepingOptions(Path("served"), 500).around(SpeculativeConfig("head", model="x", options={"tree": "chain"}))
    assert asked is not None and asked.method == METHOD
    drafter = {"tree": "chain", "method": "head", "model": "x"}
    assert asked.options == {"folder": "served", "drafter": drafter, "max_tokens": 500}
    with pytest.raises(InvalidParameter, match="keep_served"):
        KeepingOptions(Path("served")).around(None)


def test_the_ring_forgets_its_oldest_texts(tmp_path):
    ring = ServedRing(tmp_path, (1, 2), max_tokens=60, shard_rows=20)
    for i in range(12):
        ring.add(Conversation(np.full(11, i, np.int32), 3, 0.0), np.zeros((10, 2, 4), np.uint16))
    again = TapStore(tmp_path)
    kept = sorted(int(one.conversation.ids[0]) for one in again.documents)
    assert 40 <= sum(one.num_rows for one in again.documents) <= 60 and kept == list(range(kept[0], 12))
    assert len(list(tmp_path.glob("*.npy"))) == len(list(tmp_path.glob("*.npz")))
    ring.add(Conversation(np.full(21, 99, np.int32), 3, 0.0), np.zeros((20, 2, 4), np.uint16))
    assert TapStore(tmp_path).documents[-1].conversation.ids[0] == 99
    assert json.loads((tmp_path / "taps.json").read_text()) == {"taps": [1, 2]}
    with pytest.raises(InvalidParameter, match="max_tokens"):
        ServedRing(tmp_path, (1, 2), max_tokens=0)


def test_a_head_of_another_family_is_not_gone_on_with(target, tmp_path):
    tables = training_target(target.source)
    recipe = RECIPES["medusa"](tables, np.arange(131, dtype=np.int32), 2)
    record = recipe.record(recipe.net.state_dict(), {})
    again = resumed(RECIPES["medusa"], tables, record)
    assert all(torch.equal(one, again.net.state_dict()[name]) for name, one in recipe.net.state_dict().items())
    with pytest.raises(InvalidParameter, match="family"):
        resumed(RECIPES["eagle3"], tables, record)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"taps": (1, 2, 3)}, "another taps"), ({"norm_output": False}, "norm_output"),
     ({"max_positions": 9, "num_steps": 5}, "")],
)  # fmt: skip
def test_a_head_that_computes_otherwise_is_not_gone_on_with(target, wrong, said):
    """Its weights fit, and would be trained on states, or in a form, that they are not for."""
    tables = training_target(target.source)
    recipe = RECIPES["eagle3"](tables, np.arange(131, dtype=np.int32), 2)
    record = recipe.record(recipe.net.state_dict(), {})
    record = replace(record, config=replace(record.config, **wrong))
    if not said:
        resumed(RECIPES["eagle3"], tables, record)
        return
    with pytest.raises(InvalidParameter, match=f"^resume: .*{said}"):
        resumed(RECIPES["eagle3"], tables, record)


def test_a_full_disk_ends_what_is_kept_and_nothing_else(target, tmp_path, monkeypatch):
    """A text is written at once, the second one cannot be: drafts and texts are as before."""
    recipe = RECIPES["medusa"](training_target(target.source), np.arange(131, dtype=np.int32), 2)
    head = save_head(recipe.record(recipe.net.state_dict(), {}), tmp_path / "head")
    plain, _ = serve(target, spec_of(head), prompts_of(0, 4))

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.warns(DrafterWarning, match=r"nothing more is kept.*the disk is full"):
        texts, _ = serve(target, recorded(spec_of(head), tmp_path / "kept", max_tokens=40), prompts_of(0, 4))
    assert texts == plain and not TapStore(tmp_path / "kept").documents


def test_texts_that_wait_are_written_when_the_drafter_goes(tmp_path):
    ring = ServedRing(tmp_path, (1, 2))
    ring.add(Conversation(np.full(11, 7, np.int32), 3, 0.0), np.zeros((10, 2, 4), np.uint16))
    assert not TapStore(tmp_path).documents
    drafter = Recorded(Plain(), ring)
    del drafter
    gc.collect()
    assert len(TapStore(tmp_path).documents) == 1
