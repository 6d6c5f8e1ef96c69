"""Training a pool of drafts, boost-tuned one after the other. Used by `paceline train draft --pool`.

Not for selecting what each draft is trained on (`training/drafts/boost.py`).
"""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paceline.config import EngineConfig
from paceline.disk import writing
from paceline.errors import InvalidParameter
from paceline.training.drafts.boost import Lessons, hits_on, pool_tokens_per_pass
from paceline.training.drafts.distill import DistillRecipe
from paceline.training.heads.shards import Document
from paceline.training.run.loop import Progress, Watch
from paceline.training_jobs.draft import DraftJob, DraftSetup, save_draft, set_up, train_member
from paceline.training_jobs.remarks import Tell, no_remarks
from paceline.types import NamedProgress, silent

_MOST_MEASURED = 24


@dataclass(frozen=True, slots=True)
class PoolReport:
    """Evaluation of a pool on held-out greedy text.

    Attributes:
        folders: of the drafts.
        texts, places: number of texts and of positions that each draft was trained on.
        alone: tokens per pass of each draft alone.
        merged: tokens per pass of all drafts merged into one tree.
        runs: progress of each training.
    """

    folders: tuple[str, ...]
    texts: tuple[int, ...]
    places: tuple[int, ...]
    alone: tuple[float, ...]
    merged: float
    runs: tuple[Progress, ...]


def train_pool(job: DraftJob, size: int, match: float | None, config: EngineConfig, folder: Path,
               progress: NamedProgress = silent, watch: Watch = lambda now: None, tell: Tell = no_remarks,
               ) -> PoolReport:  # fmt: skip
    """Train `size` drafts, each in an equal part of the job's seconds, and write them to `folder`/1, `folder`/2, ...

    Args:
        match: see `Lessons`.
        tell: called with each remark for the user.

    Raises:
        InvalidParameter: fewer than 2 drafts, a `match` out of range, or no text left for a later draft.
        UnsupportedModel: as `train_draft`.
    """
    if size < 2:
        raise InvalidParameter("pool", f"{size} drafts are no pool", "give 2 or more")
    Lessons((), match)
    label = "places" if match is None else f"{match:g}"
    folders = [job.text.work / "runs" / f"{job.name}-pool-{label}-{number}" for number in range(1, size + 1)]
    setup = set_up(job, config, progress, folders, tell)
    loop = replace(setup.loop, seconds=None if setup.loop.seconds is None else setup.loop.seconds / size)
    learnt_from = [one for one in setup.store.documents if not one.conversation.is_held_out]
    lessons = Lessons(learnt_from, match, job.text.raw)
    recipes, runs, learnt = [], [], []
    for number, run in enumerate(folders, 1):
        learnt.append(lessons)
        recipe, done = train_member(job, setup, loop, run, watch, lessons.documents, lessons.known, tell)
        about = {"number": number, "of": size, "match": match, "places": lessons.num_places}
        save_draft(job, setup, recipe, done, folder / str(number), {"pool": about})
        recipes.append(recipe)
        runs.append(done)
        if number < size:
            lessons = lessons.after(_hits(recipe, setup, lessons.documents, run, progress))
    alone, merged = _worth(recipes, setup)
    setup.loaded.close()
    return PoolReport(
        folders=tuple(str(folder / str(number)) for number in range(1, size + 1)),
        texts=tuple(len(each.documents) for each in learnt),
        places=tuple(each.num_places for each in learnt),
        alone=tuple(alone), merged=merged, runs=tuple(runs),
    )  # fmt: skip


def _hits(recipe: DistillRecipe, setup: DraftSetup, documents: Sequence[Document], run: Path,
          progress: NamedProgress) -> Sequence[Tensor]:  # fmt: skip
    """Per document, bool: which answer tokens are the draft's guess; cached in `run` under a digest of its weights."""
    path = run / f"hits-{_digest(recipe)}.npy"
    sizes = [len(one.conversation.answer) for one in documents]
    if path.exists():
        with suppress(ValueError, EOFError):  # truncated, or of other text: computed again
            kept = np.load(path)
            if kept.dtype == bool and kept.shape == (sum(sizes),):
                return torch.from_numpy(kept).split(sizes)
    found = hits_on(recipe, setup.store, documents, lambda done, total: progress("looking for misses", done, total))
    with writing("work", path):
        np.save(path, torch.cat(found).numpy())
    return found


def _digest(recipe: DistillRecipe) -> str:
    """SHA-256 of a draft's weights, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for name, values in sorted(recipe.net.state_dict().items()):
        digest.update(name.encode())
        digest.update(values.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


def _worth(recipes: Sequence[DistillRecipe], setup: DraftSetup) -> tuple[list[float], float]:
    greedy = [one for one in setup.store.documents if one.conversation.is_held_out and not one.conversation.temperature]
    hits = [[recipe.hits(setup.store, one) for one in greedy[:_MOST_MEASURED]] for recipe in recipes]
    return pool_tokens_per_pass(hits, recipes[0].num_steps)
