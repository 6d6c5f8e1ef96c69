"""Distilling a whole draft model: text written, draft trained, saved as a model of its own. `paceline train draft`.

Every part goes on where it was ended. Not for the distances and the policies of texts (`training/drafts/`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paceline.config import EngineConfig
from paceline.engine.build import load, silent
from paceline.errors import UnsupportedModel
from paceline.evaluation.training_card import run_card, shown
from paceline.evaluation.training_text import TextJob, open_store, text_card, write_text
from paceline.models.resolve import ModelSource, resolve_model
from paceline.models.save_folder import config_values, save_model
from paceline.training.drafts.distill import DistillRecipe
from paceline.training.drafts.net import DraftNet, spread_layers
from paceline.training.drafts.texts import teacher_of
from paceline.training.heads.shards import TapStore
from paceline.training.heads.target import training_target
from paceline.training.run.loop import LoopSettings, Progress, Trainer, Watch
from paceline.types import NamedProgress


@dataclass(frozen=True, slots=True)
class DraftJob:
    """What to train.

    Attributes:
        text: to learn from.
        loop: how long and how; its `seconds` are those of the whole job.
        draft: name of the model to begin with; None begins with layers of the target.
        layers: of that model to keep; a number keeps so many, spread evenly, None keeps all.
        divergence: distance of the laws, one of `DIVERGENCES`.
        on_policy: share of the texts that the draft writes itself.
        num_draft_tokens: of a draft, for the figures.
    """

    text: TextJob
    loop: LoopSettings
    draft: str | None = None
    layers: Sequence[int] | int | None = 4
    divergence: str = "forward_kl"
    on_policy: float = 0.0
    num_draft_tokens: int = 4

    @property
    def name(self) -> str:
        """Of its checkpoint's folder: other settings are another run."""
        kept = "all" if self.layers is None else self.layers
        kept = kept if isinstance(kept, (str, int)) else "-".join(map(str, kept))
        origin = "" if self.draft is None else "".join(c if c.isalnum() else "-" for c in self.draft)[-40:]
        return f"draft{origin and '-' + origin}-{kept}-{self.divergence.replace('+', 'p')}-{self.on_policy:g}"


def train_draft(job: DraftJob, config: EngineConfig, folder: Path, progress: NamedProgress = silent,
                watch: Watch = lambda now: None) -> Progress:  # fmt: skip
    """Do the job, or what is left of it, write the best draft to `folder` and return how its training went.

    The first point of the curve is the draft before training.

    Raises:
        UnsupportedModel: a draft of another vocabulary, or a family that is not trained or written.
        InvalidParameter: see `DistillRecipe`, `HeadWriter` and `Trainer`.
    """
    began, run = time.monotonic(), job.text.work / "runs" / job.name
    loaded = load(job.text.model, config, progress)
    target, origin = training_target(loaded.source), _origin(job, loaded.source)
    net = DraftNet(origin.checkpoint, _layers(job, origin))
    written = replace(net.config, num_hidden_layers=len(net.layers))
    config_values(written)  # refuses now what could not be written at the end
    store = open_store(job.text, loaded)
    if not (run / "checkpoint.pt").exists():
        write_text(job.text, loaded, config, store, progress)
    torch.set_num_threads(config.num_threads or torch.get_num_threads())
    ends = loaded.source.eos_token_ids
    recipe = DistillRecipe(
        net, target.head, job.divergence, job.on_policy, teacher_of(loaded.model), ends, job.num_draft_tokens
    )
    spent = time.monotonic() - began
    loop = replace(job.loop, seconds=max(job.loop.seconds - spent, 1.0)) if job.loop.seconds else job.loop
    trainer = Trainer(recipe, store, loop, run, watch)
    if not trainer.progress.curve:
        trainer.evaluate()
    done = trainer.run()
    weights = trainer.best_weights or trainer.mean.weights
    save_model(folder, written, net.tensors(weights), origin.tokenizer, draft_card(job, store, done))
    loaded.close()
    return done


def draft_card(job: DraftJob, store: TapStore, done: Progress) -> dict[str, Any]:
    """What a card says of how a draft was made, with its figures before and after."""
    return {
        "drafts_for": job.text.model,
        "began_as": f"layers {job.layers} of {job.draft or job.text.model}",
        "divergence": job.divergence,
        "on_policy": job.on_policy,
        "training": {"command": f"paceline train draft -m {job.text.model}", **text_card(job.text, store),
                     **run_card(done)},
        "before": shown(done.curve[0]),
        "held_out": shown(done.best or {}),
    }  # fmt: skip


def _origin(job: DraftJob, target: ModelSource) -> ModelSource:
    """The model whose weights the draft begins with."""
    if job.draft is None:
        return target
    found = resolve_model(job.draft)
    if not found.tokenizer.same_vocabulary(target.tokenizer):
        raise UnsupportedModel(
            f"{job.draft}: its vocabulary is not that of {job.text.model}; take a smaller model of the same family"
        )
    return found


def _layers(job: DraftJob, origin: ModelSource) -> Sequence[int] | None:
    num_layers = origin.checkpoint.config.num_hidden_layers
    return spread_layers(num_layers, min(job.layers, num_layers)) if isinstance(job.layers, int) else job.layers
