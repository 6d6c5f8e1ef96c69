"""Heads trained together with their target, and both saved as models of their own. What `paceline train joint` does.

THE TARGET IS CHANGED: what comes out says other text than the model that went in, by how much its card tells. Not for
heads beside a frozen target (`head_training.py`).
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paceline.config import EngineConfig
from paceline.disk import writing
from paceline.engine.build import load, silent
from paceline.errors import InvalidParameter
from paceline.evaluation.head_training import check_wishes, chosen_vocabulary, tree_card
from paceline.evaluation.training_card import name_of, run_card, shown
from paceline.evaluation.training_remarks import Tell, no_remarks, tell_finished
from paceline.evaluation.training_text import TextJob, open_store, ready_text, text_card
from paceline.models.heads.files import save_head
from paceline.models.heads.fingerprint import target_print
from paceline.models.resolve import resolve_model
from paceline.models.save_folder import config_values, save_model
from paceline.training.drafts.net import DraftNet, check_rank, check_trainable
from paceline.training.heads.recipes import recipe_of
from paceline.training.heads.target import training_target
from paceline.training.joint.recipe import JointRecipe
from paceline.training.run.loop import LoopSettings, Progress, Trainer, Watch
from paceline.types import NamedProgress

FAMILIES = ("medusa", "blockwise")
"""Heads that can be trained so."""


@dataclass(frozen=True, slots=True)
class JointJob:
    """What to train.

    Attributes:
        family: one of `FAMILIES`.
        text: to learn from, the target's own.
        loop: how long and how; its `seconds` are those of the whole job.
        num_draft_tokens: heads.
        draft_vocabulary: most tokens that they name.
        rank: of the updates of the target's matrices.
        command: that the card says made it; empty for the least one.
    """

    family: str
    text: TextJob
    loop: LoopSettings
    num_draft_tokens: int = 3
    draft_vocabulary: int = 8192
    rank: int = 16
    command: str = ""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            problem, remedy = f"{self.family!r} is not trained so", f"choose one of: {', '.join(FAMILIES)}"
            raise InvalidParameter("family", problem, remedy)
        check_wishes(self.num_draft_tokens, self.draft_vocabulary)


def train_joint(job: JointJob, config: EngineConfig, folder: Path, progress: NamedProgress = silent,
                watch: Watch = lambda now: None, tell: Tell = no_remarks,
                ) -> tuple[Progress, dict[str, float]]:  # fmt: skip
    """Do the job, or what is left of it: the changed target goes to `folder`/target, its heads to `folder`/heads.

    Args:
        tell: is given what the user should know besides, a line each.

    Returns:
        how training went, and how far the target is from what it was (`JointRecipe.drift`).

    Raises:
        InvalidParameter, UnsupportedModel: see `DraftNet`, `HeadWriter`, `save_model` and `Trainer`.
    """
    began, run = time.monotonic(), job.text.work / "runs" / f"joint-{job.family}-{job.rank}"
    loaded = load(job.text.model, config, progress)
    check_trainable(loaded.source.checkpoint.config)
    check_rank(job.rank, loaded.source.checkpoint.config)
    config_values(loaded.source.checkpoint.config)  # refuses now what could not be written at the end
    store = open_store(job.text, loaded)
    ready_text(job.text, loaded, config, store, progress, [run], tell)
    torch.set_num_threads(config.num_threads or torch.get_num_threads())
    torch.manual_seed(job.loop.seed)
    ids = chosen_vocabulary(job.draft_vocabulary, loaded, store, run)
    heads = recipe_of(job.family)(training_target(loaded.source), ids, job.num_draft_tokens)
    net = DraftNet(loaded.source.checkpoint)
    recipe = JointRecipe(net, heads, job.rank)
    spent = time.monotonic() - began
    loop = replace(job.loop, seconds=max(job.loop.seconds - spent, 1.0)) if job.loop.seconds else job.loop
    trainer = Trainer(recipe, store, loop, run, watch)
    before = trainer.progress.step
    done = trainer.run()
    tell_finished(before, done, run, tell)
    merged, weights = recipe.split(trainer.best_weights or trainer.mean.weights)
    held_out = [one for one in store.documents if one.conversation.is_held_out]
    drift = recipe.drift(store, held_out)
    card = _card(job, done, drift, text_card(store)) | {"tree": tree_card(recipe.rank_accuracies(store, held_out))}
    source = loaded.source
    with writing("output", folder):
        save_model(folder / "target", source.checkpoint.config, net.tensors(merged), source.tokenizer, card)
        heads.config = replace(heads.config, target=target_print(resolve_model(str(folder / "target"))))
        save_head(heads.record(weights, card), folder / "heads", storage="bfloat16")
    loaded.close()
    return done, drift


def _card(job: JointJob, done: Progress, drift: dict[str, float], text: dict[str, Any]) -> dict[str, object]:
    model = name_of(job.text.model)
    return {
        "licence": "as that of the target it was made from",
        "changed_target": f"{model} with low-rank updates of rank {job.rank} merged in: it says other text",
        "drift": {name: round(value, 5) for name, value in drift.items()},
        "training": {"command": job.command or f"paceline train joint {job.family} -m {model}", **text,
                     **run_card(done)},
        "held_out": shown(done.best or {}),
    }  # fmt: skip
