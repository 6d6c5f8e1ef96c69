"""Training a draft head: generate text, train the network, return the head. Used by `paceline train head`.

Every part is resumable: text is kept in shards, the network in checkpoints. Not for how a family is trained
(`training/heads/recipes/`).
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from math import isclose
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.config import EngineConfig
from paceline.engine.setup.load import load
from paceline.errors import InvalidParameter
from paceline.models.heads.build import make_net
from paceline.models.heads.files import save_head
from paceline.models.heads.record import MOST_STEPS, HeadConfig, HeadRecord
from paceline.models.heads.registry import load_head
from paceline.models.heads.self_check import KEY, make_check, own_opening, own_text
from paceline.models.loaded import LoadedModel
from paceline.theory.tree_shape import best_tree, expected_tree_tokens
from paceline.training.heads.conversations import coverage, draft_vocabulary
from paceline.training.heads.evaluate import rank_accuracies
from paceline.training.heads.recipes import recipe_of
from paceline.training.heads.recipes.base import Recipe
from paceline.training.heads.recipes.medusa import MedusaRecipe
from paceline.training.heads.shards import TapStore
from paceline.training.heads.target import Target, training_target
from paceline.training.run.checkpoint import read_checkpoint
from paceline.training.run.loop import LoopSettings, Progress, Trainer, Watch
from paceline.training_jobs.card import name_of, run_card, shown
from paceline.training_jobs.long_text import clean_pieces, long_store, read_long, text_digest
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

_FIRST_STAGE, _SECOND_RATE = 0.7, 0.1
"""Fraction of the updates in the first stage, and learning rate of the second stage relative to the first (Wertheimer
et al. 2024)."""
_STEPS, _NAMED = 3, 8192
"""Defaults of the draft length and of the size of the draft vocabulary."""
_TREE_NODES = 16
_MOST_MEASURED = 64
_OF_LAYERS = (
    "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "norm_eps", "rope_theta", "rotary_dim",
    "rope_factor", "qk_norm", "attention_bias",
)  # fmt: skip
"""Settings of a head's layers that decide how they compute."""


@dataclass(frozen=True, slots=True)
class HeadJob:
    """What to train.

    Attributes:
        family: one of `RECIPES`.
        text: the training text.
        loop: settings of training; its `seconds` limit the whole job.
        num_draft_tokens: draft length; None for 3, or that of the resumed head.
        draft_vocabulary: largest size of the draft vocabulary; None for 8192, or that of the resumed head.
        long_text: token ids of ordinary text for a first stage of training; empty for none.
        resume: name or path of a head to train further; its family and draft vocabulary are kept.
        served: folder of a ring of served texts, to train on instead of generated text.
        command: the command line for the card; empty for the shortest one.

    Raises:
        InvalidParameter: a value out of range, or options that exclude each other.
    """

    family: str
    text: TextJob
    loop: LoopSettings
    num_draft_tokens: int | None = None
    draft_vocabulary: int | None = None
    long_text: Sequence[int] = ()
    resume: str | None = None
    served: Path | None = None
    command: str = ""

    def __post_init__(self) -> None:
        check_wishes(self.steps, self.most_named)
        if self.resume is None and self.served is not None:
            raise InvalidParameter("served", "is for a head that there is already", "name it with --resume")
        if self.resume is not None and self.long_text:
            raise InvalidParameter("text", "is for a new head", "leave --text or --resume out")
        if self.served is not None:
            check_nothing_given(self.text)

    @property
    def steps(self) -> int:
        """Draft length of a new head."""
        return _STEPS if self.num_draft_tokens is None else self.num_draft_tokens

    @property
    def most_named(self) -> int:
        """Largest size of a new head's draft vocabulary."""
        return _NAMED if self.draft_vocabulary is None else self.draft_vocabulary


def check_wishes(num_draft_tokens: int, draft_vocabulary: int = 1) -> None:
    """Raises InvalidParameter for a draft length outside 1 to `MOST_STEPS`, or an empty draft vocabulary."""
    if num_draft_tokens < 1:
        raise InvalidParameter("num_draft_tokens", f"{num_draft_tokens} tokens are no draft", "give at least 1")
    if num_draft_tokens > MOST_STEPS:
        problem = f"{num_draft_tokens} tokens are more than any draft has"
        raise InvalidParameter("num_draft_tokens", problem, f"give at most {MOST_STEPS}; few are best")
    if draft_vocabulary < 1:
        problem = f"{draft_vocabulary} tokens are no vocabulary"
        raise InvalidParameter("draft_vocabulary", problem, "give at least 1; more than the model has means all")


def train_head(job: HeadJob, config: EngineConfig, progress: NamedProgress = silent,
               watch: Watch = lambda now: None, tell: Tell = no_remarks) -> tuple[HeadRecord, Progress]:  # fmt: skip
    """Run or resume the job and return (best head, progress of its training).

    Args:
        tell: called with each remark for the user.

    Raises:
        InvalidParameter, UnsupportedModel: see `recipe_of`, `HeadWriter`, `training_target` and `Trainer`.
    """
    began, recipe_type = time.monotonic(), recipe_of(job.family)
    loaded = load(job.text.model, config, progress)
    long_text = clean_pieces(job.long_text, loaded, job.text.benchmark) if job.long_text else []
    target, begun = training_target(loaded.source, config.device, recipe_type.learns_any_logits), _begun(job, loaded)
    recipe = None if begun is None else resumed(recipe_type, target, begun, job.steps)
    store = open_store(job.text, loaded) if job.served is None else open_served(job.served, job.text, loaded)
    runs, name = job.text.work / "runs", _run_name(job, begun, long_text)
    run = runs / name if job.served is None else run_on_ring(runs, name, store, tell)
    first_run = runs / f"{job.family}-long-{text_digest(long_text)}" if long_text else run
    begun_run = None
    if job.served is None:
        begun_run = ready_text(job.text, loaded, config, store, progress, [run, first_run], tell)
    torch.set_num_threads(config.num_threads or torch.get_num_threads())
    torch.manual_seed(job.loop.seed)
    if recipe is None:
        recipe = recipe_type(target, chosen_vocabulary(job.most_named, loaded, store, begun_run or run), job.steps)
    if recipe.config.layer is not None:
        longest = max((len(one.conversation.ids) for one in store.documents), default=0)
        longest = longest if begun is None else max(longest, begun.config.max_positions)
        recipe.config = replace(recipe.config, max_positions=longest)
    spent = time.monotonic() - began
    loop = replace(job.loop, seconds=max(job.loop.seconds - spent, 1.0)) if job.loop.seconds else job.loop
    first, loop = _first_stage(job, long_text, loaded, recipe, store, loop, first_run, progress, watch)
    trainer = Trainer(recipe, store, loop, run, watch)
    before = trainer.progress.step
    if begun is not None and not trainer.progress.curve:
        trainer.evaluate()  # so that the saved head is never worse than the resumed one
    done = trainer.run()
    tell_finished(before, done, run, tell)
    weights = trainer.best_weights or trainer.mean.weights
    made = card(job, target, store, recipe, done) | first | _tree(recipe, weights, store)
    record = recipe.record(weights, made)
    opening = own_opening(loaded.source.tokenizer)  # not of the store, which may hold a user's
    check = make_check(loaded.model, make_net(record, loaded), own_text(loaded.model, opening), len(opening))
    loaded.close()
    return replace(record, card={**record.card, KEY: check}), done


def resumed(recipe_type: type[Recipe], target: Target, begun: HeadRecord, num_steps: int = 3) -> Recipe:
    """A recipe that trains the head `begun` further.

    Args:
        num_steps: draft length, for the EAGLE family only, whose files do not store it.

    Raises:
        InvalidParameter: a head of another family, or with other parts or settings than the recipe trains.
    """
    check_family(recipe_type, begun)
    ids = np.arange(target.config.vocab_size, dtype=np.int32) if begun.draft_ids is None else begun.draft_ids
    steps = num_steps if begun.config.family == "eagle" else begun.config.num_steps
    recipe = recipe_type(target, ids, steps)
    shapes = {name: tuple(one.shape) for name, one in recipe.net.state_dict().items()}
    if shapes != {name: one.shape for name, one in begun.tensors.items()}:
        raise InvalidParameter("resume", "has other parts than the heads trained here", "train a new one")
    others = other_settings(recipe.config, begun.config)
    if others:
        problem = f"is a head with another {' and '.join(others)} than those trained here"
        raise InvalidParameter("resume", problem, "train a new one")
    recipe.net.load_state_dict({name: torch.from_numpy(np.array(one)) for name, one in begun.tensors.items()})
    return recipe


def check_family(recipe_type: type[Recipe], begun: HeadRecord) -> None:
    """Raises InvalidParameter for a head that this recipe does not train."""
    if begun.config.family != recipe_type.family:
        problem = f"is a head of the family {begun.config.family}, not {recipe_type.family}"
        raise InvalidParameter("resume", problem, f"train {begun.config.family}")


def other_settings(ours: HeadConfig, theirs: HeadConfig) -> list[str]:
    """Names of the settings that differ and that change what a head computes from the same weights."""
    free = {"target", "layer", "num_steps", "draft_vocab_size", "max_positions", "embedding_scale"}
    found = [one.name for one in fields(ours) if one.name not in free and _differ(ours, theirs, one.name)]
    if not isclose(ours.embedding_scale, theirs.embedding_scale, rel_tol=1e-3):
        found.append("embedding_scale")
    if ours.layer is None or theirs.layer is None:
        return found
    return found + [f"layer.{name}" for name in _OF_LAYERS if _differ(ours.layer, theirs.layer, name)]


def _differ(one: object, other: object, name: str) -> bool:
    return getattr(one, name) != getattr(other, name)


def _begun(job: HeadJob, loaded: LoadedModel) -> HeadRecord | None:
    """The head to resume, checked against the job's options; None without one."""
    if job.resume is None:
        return None
    begun = load_head(job.resume, loaded.source)
    check_family(recipe_of(job.family), begun)
    steps = begun.config.num_steps
    if job.num_draft_tokens not in (None, steps) and begun.config.family != "eagle":
        problem = f"is {job.num_draft_tokens}, and the head to continue drafts {steps}"
        raise InvalidParameter("num_draft_tokens", problem, "leave it out, or train a new head")
    size = loaded.source.checkpoint.config.vocab_size
    named = size if begun.draft_ids is None else len(begun.draft_ids)
    if job.draft_vocabulary is not None and _num_named(job.draft_vocabulary, _always_named(loaded), size) != named:
        problem = f"is {job.draft_vocabulary} tokens, and the head to continue names {named}"
        raise InvalidParameter("draft_vocabulary", problem, "leave it out, or train a new head")
    return begun


def _run_name(job: HeadJob, begun: HeadRecord | None, long_text: Sequence[np.ndarray]) -> str:
    """Name of the checkpoint's folder; another resumed head or another long text has another one."""
    if begun is None:
        return f"{job.family}-two-stages-{text_digest(long_text)}" if long_text else job.family
    digest = hashlib.sha256()
    for name in sorted(begun.tensors):
        digest.update(np.ascontiguousarray(begun.tensors[name]).tobytes())
    return f"{job.family}-resumed-{digest.hexdigest()[:12]}"


def _first_stage(job: HeadJob, documents: Sequence[np.ndarray], loaded: LoadedModel, recipe: Recipe, store: TapStore,
                 loop: LoopSettings, run: Path, progress: NamedProgress, watch: Watch,
                 ) -> tuple[dict[str, Any], LoopSettings]:  # fmt: skip
    """Train on the long text, if there is one; returns (entries for the card, loop settings of the second stage)."""
    if not documents:
        return {}, loop
    text = long_store(job.text.work, documents, store.taps)
    read_long(loaded, documents, text, progress)
    first, second = (_part(loop, share) for share in (_FIRST_STAGE, 1 - _FIRST_STAGE))
    trainer = Trainer(recipe, text, first, run, watch)
    done = trainer.run()
    recipe.net.load_state_dict(trainer.best_weights or trainer.mean.weights)
    card = {"first_stage": {"tokens": sum(map(len, documents)), **run_card(done), **shown(done.best or {})}}
    return card, replace(second, rate=loop.rate * _SECOND_RATE)


def _part(loop: LoopSettings, share: float) -> LoopSettings:
    """`loop` with the fraction `share` of its updates and seconds."""
    steps = None if loop.num_steps is None else max(round(loop.num_steps * share), 1)
    return replace(loop, num_steps=steps, seconds=None if loop.seconds is None else loop.seconds * share)


def save_trained(record: HeadRecord, folder: Path, release: bool) -> Path:
    """Save a head in bfloat16, which other programs read, or with int8 weights for a release."""
    return save_head(record, folder, storage="int8" if release else "bfloat16")


def card(job: HeadJob, target: Target, store: TapStore, recipe: Recipe, done: Progress) -> dict[str, Any]:
    """The card of a head: text, training run, draft vocabulary and held-out evaluation."""
    best = done.best or {}
    counts = store.counts(target.config.vocab_size)
    return {
        "licence": "as the target's: the text was written by it",
        "training": {
            "command": job.command or f"paceline train head {job.family} -m {name_of(job.text.model)}",
            **text_card(store),
            **run_card(done),
        },
        "draft_vocabulary": {"tokens": len(recipe.draft_ids), "coverage": coverage(counts, recipe.draft_ids)},
        "held_out": shown(best),
    }


def _tree(recipe: Recipe, weights: dict[str, torch.Tensor], store: TapStore) -> dict[str, Any]:
    """The card's entry on the best static tree, for Medusa heads, whose positions are independent; else empty."""
    if not isinstance(recipe, MedusaRecipe):
        return {}
    recipe.net.load_state_dict(weights)
    held_out = [one for one in store.documents if one.conversation.is_held_out]
    accuracies = rank_accuracies(recipe, store, held_out[:_MOST_MEASURED])
    return {"tree": tree_card(accuracies)} if any(map(any, accuracies)) else {}


def chosen_vocabulary(most: int, loaded: LoadedModel, store: TapStore, run: Path) -> np.ndarray:
    """[tokens] int32 ids of a head's draft vocabulary, of `_num_named` size; from the run's checkpoint if there is one.

    Raises:
        InvalidParameter: the checkpoint's draft vocabulary has another size.
    """
    always, size = _always_named(loaded), loaded.source.checkpoint.config.vocab_size
    most = _num_named(most, always, size)
    state = read_checkpoint(run)
    if state is None or "draft_ids" not in state:
        return draft_vocabulary(store.counts(size), most, always)
    ids = state["draft_ids"].numpy()
    if len(ids) != most:
        problem = f"is {most} tokens, and the run in {run} has {len(ids)}"
        raise InvalidParameter("draft_vocabulary", problem, f"give {len(ids)}, or another --work, or delete that run")
    return ids


def _always_named(loaded: LoadedModel) -> list[int]:
    """Ascending ids that are in every draft vocabulary: special tokens and whitespace."""
    tokenizer, size = loaded.source.tokenizer, loaded.source.checkpoint.config.vocab_size
    blank = [i for i in range(min(tokenizer.vocab_size, size)) if not tokenizer.decode([i]).strip()]
    always = {*tokenizer.special_token_ids, *loaded.source.eos_token_ids, *blank}
    return sorted(i for i in always if i < size)


def _num_named(most: int, always: Sequence[int], size: int) -> int:
    """Size of the draft vocabulary: `most`, but at least all of `always`, and at most `size`."""
    return min(max(most, len(always)), size)


def tree_card(accuracies: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The card's entry on the best static tree of independent heads (`theory.best_tree`)."""
    paths = best_tree(accuracies, _TREE_NODES)
    return {
        "rank_accuracies": [[round(share, 4) for share in row] for row in accuracies],
        "paths": [list(path) for path in paths],
        "tokens_per_pass": float(expected_tree_tokens(accuracies, paths)),
        "use": f"--draft-option tree=static --draft-option paths='{json.dumps(paths)}'",
    }
