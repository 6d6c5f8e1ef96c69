"""A head that learns from ordinary text first and from the target's answers after it (Wertheimer et al. 2024)."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")

from paceline.config import EngineConfig
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource
from paceline.models.torch_executor import TorchModel
from paceline.training.heads import conversations
from paceline.training.heads.evaluate import evaluate
from paceline.training.heads.recipes import RECIPES
from paceline.training.heads.shards import TapStore
from paceline.training.heads.target import training_target
from paceline.training.run import loop
from paceline.training.run.loop import LoopSettings
from paceline.training_jobs import head as head_job
from paceline.training_jobs import long_text, write_text
from paceline.training_jobs.head import HeadJob, resumed, train_head
from paceline.training_jobs.text import TextJob
from tests.fakes import RandomCheckpoint, small_config
from tests.training_jobs.test_write_text import ChattyTokenizer

CONFIG = small_config(
    hidden_size=16, intermediate_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=8,
    tie_word_embeddings=False,
)  # fmt: skip
CLASSES = 8
DRAFT = 2


class RuleCheckpoint(RandomCheckpoint):
    """Layers that add nothing, and a head that has token t followed by `a` + (3 t + 1) mod 8, almost surely."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        for name, values in self._tensors.items():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                values[:] = 0
        own = np.eye(CLASSES, CONFIG.hidden_size, dtype=np.float32)
        self._tensors["model.embed_tokens.weight"] += own[np.arange(CONFIG.vocab_size) % CLASSES]
        self._tensors["model.norm.weight"][:] = 1
        self._tensors["lm_head.weight"][:] = 0
        for each in range(CLASSES):
            self._tensors["lm_head.weight"][ord("a") + (3 * each + 1) % CLASSES] = 8 * own[each]


@pytest.fixture
def source(monkeypatch):
    """The target under every name, and text that is short enough."""
    checkpoint = RuleCheckpoint()
    found = ModelSource("rule", checkpoint, ChattyTokenizer())  # type: ignore[arg-type]
    monkeypatch.setattr(head_job, "load", lambda *_: LoadedModel(found, TorchModel(checkpoint)))
    monkeypatch.setattr(write_text, "_ROUND", 6)
    monkeypatch.setattr(conversations, "HELD_OUT_SHARE", 3)
    monkeypatch.setattr(long_text, "PIECE", 24)
    return found


def trained(source, folder, settings, text=b""):
    """A speculator trained in `folder`, as `evaluate` measures it on the answers that it learnt from."""
    prompts = [list(f"say {i}".encode()) for i in range(12)]
    answers = TextJob("rule", folder, 80, prompts=prompts, answer_tokens=12)
    job = HeadJob("mlp_speculator", answers, settings, DRAFT, CONFIG.vocab_size, list(text))
    record, done = train_head(job, EngineConfig(num_threads=1))
    recipe = resumed(RECIPES[job.family], training_target(source, "cpu"), record, DRAFT)
    store = TapStore(folder / "taps")
    return record, done, evaluate(recipe, store, [one for one in store.documents if not one.conversation.is_held_out])


def test_two_stages_learn_a_rule_by_heart(source, tmp_path, monkeypatch, quick_rise):
    """0.7 of the updates on the text, the rest on answers at a tenth of the rate; the latter alone would not do."""
    made, rate_at = [], loop.rate_at

    def noted(step, num_steps, peak):
        made.append((num_steps, peak))
        return rate_at(step, num_steps, peak)

    monkeypatch.setattr(loop, "rate_at", noted)
    settings = LoopSettings(60, rows=64, share=1.0, rate=5e-2)
    record, done, found = trained(source, tmp_path / "both", settings, b"a bag of 47 chips, said he. " * 8)
    assert min(*found.greedy, *found.sampled) > 0.9 and len(found.greedy) == len(found.sampled) == DRAFT
    assert made == [(42, 5e-2)] * 42 + [(18, pytest.approx(5e-3))] * 18
    assert record.card["first_stage"]["updates"] == 42 and done.step == 18  # type: ignore[index]
    _, _, alone = trained(source, tmp_path / "alone", replace(settings, num_steps=18, rate=5e-3))
    assert max(alone.sampled) < 0.5
