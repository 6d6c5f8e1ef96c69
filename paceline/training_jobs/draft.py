"""Distilling a draft model: generate text, train the draft, save it as a model. `paceline train draft`.

Every part is resumable. Not for divergences and on-policy text (`training/drafts/`).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from paceline.config import EngineConfig
from paceline.disk import writing
from paceline.engine.setup.load import load
from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.architecture.config import ModelConfig
from paceline.models.base import checked_layers
from paceline.models.feedback import KEY, Sparse, has_memory
from paceline.models.files.save_folder import config_values, save_model
from paceline.models.heads.fingerprint import weights_digest
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource, resolve_model
from paceline.models.torch_executor.feedback import FeedbackNet
from paceline.training.drafts.distill import DistillRecipe, check_on_policy
from paceline.training.drafts.divergences import criterion_of
from paceline.training.drafts.net import DraftNet, check_rank, check_trainable, spread_layers
from paceline.training.drafts.texts import teacher_of
from paceline.training.heads.shards import Document, TapStore
from paceline.training.heads.target import training_target
from paceline.training.lora import add_lora, merged_state
from paceline.training.run.loop import LoopSettings, Progress, Trainer, Watch
from paceline.training_jobs.card import name_of, run_card, shown
from paceline.training_jobs.head import check_wishes
from paceline.training_jobs.remarks import Tell, no_remarks, tell_finished
from paceline.training_jobs.served import run_on_ring
from paceline.training_jobs.text import (
    TextJob,
    check_nothing_given,
    open_served,
    open_store,
    ready_text,
    text_card,
)
from paceline.types import NamedProgress, silent


@dataclass(frozen=True, slots=True)
class DraftJob:
    """What to train.

    Attributes:
        text: the training text.
        loop: settings of training; its `seconds` limit the whole job.
        draft: name of the model to initialise from; None takes the target.
        layers: which layers of that model to keep; a number keeps that many, spread evenly, None keeps all.
        divergence: training loss between the laws, one of `DIVERGENCES`.
        on_policy: fraction of the texts that the draft generates itself.
        num_draft_tokens: draft length of the evaluations.
        sparse: attention pattern of a draft with a feedback memory (SPIRe); None for a plain draft.
        lora_rank: rank of LoRA updates, trained instead of all weights; None trains all.
        served: folder of a ring of served texts, to train on instead of generated text (OSD, Liu et al. 2024).
        command: the command line for the card; empty for the shortest one.
    """

    text: TextJob
    loop: LoopSettings
    draft: str | None = None
    layers: Sequence[int] | int | None = 4
    divergence: str = "forward_kl"
    on_policy: float = 0.0
    num_draft_tokens: int = 4
    sparse: Sparse | None = None
    lora_rank: int | None = None
    served: Path | None = None
    command: str = ""

    def __post_init__(self) -> None:
        criterion_of(self.divergence)
        check_on_policy(self.on_policy)
        check_wishes(self.num_draft_tokens)
        if self.sparse is not None and self.on_policy:
            raise InvalidParameter("on_policy", "drafts with a memory do not write text", "leave --on-policy at 0")
        if self.sparse is not None and self.lora_rank is not None:
            raise InvalidParameter(
                "lora_rank", "a feedback memory is learnt whole", "leave --lora-rank or --sparse out"
            )
        if self.served is not None:
            self._check_served()

    def _check_served(self) -> None:
        check_nothing_given(self.text)
        if self.draft is None:
            raise InvalidParameter("served", "is for a draft that there is already", "name it with --begin-with")
        if self.sparse is not None:
            raise InvalidParameter("served", "drafts with a memory do not go on", "leave --served or --sparse out")

    @property
    def name(self) -> str:
        """Name of the checkpoint's folder; jobs with other settings have another one."""
        kept = "all" if self.layers is None else self.layers
        kept = kept if isinstance(kept, (str, int)) else "-".join(map(str, kept))
        origin = "" if self.draft is None else "".join(c if c.isalnum() else "-" for c in self.draft)[-40:]
        form = "" if self.sparse is None else f"-sparse-{self.sparse.window}"
        form += "" if self.lora_rank is None else f"-lora-{self.lora_rank}"
        return f"draft{origin and '-' + origin}-{kept}-{self.divergence.replace('+', 'p')}-{self.on_policy:g}{form}"


@dataclass(frozen=True, eq=False, slots=True)
class DraftSetup:
    """What all drafts of one job share.

    Attributes:
        loaded: the target.
        origin: the model that drafts are initialised from, with its layers `layers`.
        written: configuration of a draft.
        target_head: [vocabulary, hidden] the target's output head.
        store: the training text.
        loop: settings of training, with the remaining seconds.
    """

    loaded: LoadedModel
    origin: ModelSource
    layers: Sequence[int] | None
    written: ModelConfig
    target_head: torch.Tensor
    store: TapStore
    loop: LoopSettings


def set_up(job: DraftJob, config: EngineConfig, progress: NamedProgress, runs: Sequence[Path],
           tell: Tell = no_remarks) -> DraftSetup:  # fmt: skip
    """Load the target and generate the missing text, unless one of `runs` has a checkpoint or the text was served.

    Raises:
        As `train_draft`.
    """
    began = time.monotonic()
    loaded = load(job.text.model, config, progress)
    target, origin = training_target(loaded.source), _origin(job, loaded.source)
    sizes, layers = origin.checkpoint.config, _layers(job, origin)
    check_trainable(sizes)
    if job.lora_rank is not None:
        check_rank(job.lora_rank, sizes)
    if job.sparse is not None and job.sparse.window > sizes.max_position_embeddings:
        problem = f"{job.sparse.window} tokens are more than the model's {sizes.max_position_embeddings} positions"
        raise InvalidParameter("window", problem, "give fewer")
    kept = sizes.num_hidden_layers if layers is None else len(checked_layers(layers, sizes.num_hidden_layers))
    written = replace(sizes, num_hidden_layers=kept)
    config_values(written)  # raises now instead of at the end
    if job.served is None:
        store = open_store(job.text, loaded)
        ready_text(job.text, loaded, config, store, progress, runs, tell)
    else:
        store = open_served(job.served, job.text, loaded)
    torch.set_num_threads(config.num_threads or torch.get_num_threads())
    spent = time.monotonic() - began
    loop = replace(job.loop, seconds=max(job.loop.seconds - spent, 1.0)) if job.loop.seconds else job.loop
    return DraftSetup(loaded, origin, layers, written, target.head, store, loop)


def train_member(job: DraftJob, setup: DraftSetup, loop: LoopSettings, run: Path, watch: Watch,
                 documents: Sequence[Document] | None = None,
                 left_out: Mapping[tuple[int, int], torch.Tensor] = MappingProxyType({}), tell: Tell = no_remarks,
                 ) -> tuple[DistillRecipe, Progress]:  # fmt: skip
    """Train one draft and return (recipe with the best weights, progress); the curve starts with the untrained draft.

    Args:
        documents: to train on; None for all that are not held out.
        left_out: positions of them to skip, see `DistillRecipe`.
        tell: called if an earlier command had completed the run.
    """
    teacher, ends = teacher_of(setup.loaded.model), setup.loaded.source.eos_token_ids
    checkpoint, layers = setup.origin.checkpoint, setup.layers
    net = FeedbackNet(checkpoint, layers, job.sparse) if job.sparse else DraftNet(checkpoint, layers)
    if job.lora_rank is not None:
        torch.manual_seed(loop.seed)
        add_lora(net, job.lora_rank, net.head.dtype)
    recipe = DistillRecipe(
        net, setup.target_head, job.divergence, job.on_policy, teacher, ends, job.num_draft_tokens, job.text.raw,
        left_out, weights_digest(setup.origin),
    )  # fmt: skip
    trainer = Trainer(recipe, setup.store, loop, run, watch, documents)
    before = trainer.progress.step
    if not trainer.progress.curve:
        trainer.evaluate()
    done = trainer.run()
    tell_finished(before, done, run, tell)
    net.load_state_dict(trainer.best_weights or trainer.mean.weights)
    return recipe, done


def save_draft(job: DraftJob, setup: DraftSetup, recipe: DistillRecipe, done: Progress, folder: Path,
               more: Mapping[str, Any] = MappingProxyType({})) -> Path:  # fmt: skip
    """Save a draft as a model, with `more` on its card. Raises InvalidParameter if the folder cannot be written."""
    tensors = recipe.draft.tensors(merged_state(recipe.draft))
    card = draft_card(job, setup.store, done) | _memory_card(recipe.draft) | dict(more)
    with writing("output", folder):
        return save_model(folder, setup.written, tensors, setup.origin.tokenizer, card)


def train_draft(job: DraftJob, config: EngineConfig, folder: Path, progress: NamedProgress = silent,
                watch: Watch = lambda now: None, tell: Tell = no_remarks) -> Progress:  # fmt: skip
    """Run or resume the job, write the best draft to `folder` and return the progress of its training.

    Args:
        tell: called with each remark for the user.

    Raises:
        UnsupportedModel: the draft has another vocabulary, or its family cannot be trained or written.
        InvalidParameter: see `DistillRecipe`, `HeadWriter` and `Trainer`.
    """
    runs = job.text.work / "runs"
    setup = set_up(job, config, progress, [runs / job.name], tell)
    run = runs / job.name if job.served is None else run_on_ring(runs, job.name, setup.store, tell)
    recipe, done = train_member(job, setup, setup.loop, run, watch, tell=tell)
    save_draft(job, setup, recipe, done, folder)
    setup.loaded.close()
    return done


def draft_card(job: DraftJob, store: TapStore, done: Progress) -> dict[str, Any]:
    """The card of a draft: how it was trained, with its evaluations before and after."""
    kept = "all layers" if job.layers is None else f"layers {job.layers}"
    return {
        "drafts_for": name_of(job.text.model),
        "began_as": f"{kept} of {name_of(job.draft or job.text.model)}",
        "divergence": job.divergence,
        "on_policy": job.on_policy,
        "lora_rank": job.lora_rank,
        "raw": job.text.raw,
        "training": {"command": job.command or f"paceline train draft -m {name_of(job.text.model)}",
                     **text_card(store), **run_card(done)},
        "before": shown(done.curve[0]),
        "held_out": shown(done.best or {}),
    }  # fmt: skip


def _memory_card(draft: DraftNet | FeedbackNet) -> dict[str, Any]:
    """The card's entry that the drafter `spire` needs of a draft with a feedback memory; empty for a plain draft."""
    return {KEY: draft.card()} if isinstance(draft, FeedbackNet) else {}


def _origin(job: DraftJob, target: ModelSource) -> ModelSource:
    """The model that the draft is initialised from."""
    if job.draft is None:
        return target
    found = resolve_model(job.draft)
    if has_memory(found.checkpoint):
        problem = f"{job.draft} is a draft with a feedback memory, which does not go on learning"
        raise InvalidParameter("begin_with", problem, "make a new one with --sparse")
    if not found.tokenizer.same_vocabulary(target.tokenizer):
        raise UnsupportedModel(
            f"{job.draft}: its vocabulary is not that of {job.text.model}; take a smaller model of the same family"
        )
    return found


def _layers(job: DraftJob, origin: ModelSource) -> Sequence[int] | None:
    """Which layers of `origin` a draft keeps. Raises InvalidParameter for fewer than one, or more than it has."""
    num_layers = origin.checkpoint.config.num_hidden_layers
    if not isinstance(job.layers, int):
        return job.layers
    if not 0 < job.layers <= num_layers:
        problem = f"{job.layers} cannot be kept of {num_layers}"
        raise InvalidParameter("layers", problem, f"give 1 to {num_layers}, or which ones (0,1,{num_layers - 1})")
    return spread_layers(num_layers, job.layers)
