"""A pool of drafts, boost-tuned one after the other. What `paceline train draft --pool` does.

Not for what a draft learns from those before it (`training/drafts/boost.py`).
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.config import EngineConfig
from paceline.disk import writing
from paceline.engine.build import silent
from paceline.errors import InvalidParameter
from paceline.evaluation.draft_training import DraftJob, DraftSetup, save_draft, set_up, train_member
from paceline.training.drafts.boost import check_match, missed, pool_tokens_per_pass
from paceline.training.drafts.distill import DistillRecipe
from paceline.training.heads.shards import Document
from paceline.training.run.loop import Progress, Watch
from paceline.types import NamedProgress

_MOST_MEASURED = 24


@dataclass(frozen=True, slots=True)
class PoolReport:
    """What a pool is worth on held-out greedy text.

    Attributes:
        folders: of the drafts.
        texts: that each learnt from.
        alone: tokens per pass of each by itself.
        merged: of all of them in one tree.
        runs: how each training went.
    """

    folders: tuple[str, ...]
    texts: tuple[int, ...]
    alone: tuple[float, ...]
    merged: float
    runs: tuple[Progress, ...]


def train_pool(job: DraftJob, size: int, match: float, config: EngineConfig, folder: Path,
               progress: NamedProgress = silent, watch: Watch = lambda now: None) -> PoolReport:  # fmt: skip
    """Train `size` drafts within the job's budget, equal parts each, and write them to `folder`/1, `folder`/2, ...

    Raises:
        InvalidParameter: fewer than 2 drafts, a `match` out of range, or a draft that leaves nothing to learn.
        UnsupportedModel: as `train_draft`.
    """
    if size < 2:
        raise InvalidParameter("pool", f"{size} drafts are no pool", "give 2 or more")
    check_match(match)
    setup = set_up(job, config, progress)
    loop = replace(setup.loop, seconds=None if setup.loop.seconds is None else setup.loop.seconds / size)
    documents: Sequence[Document] = [one for one in setup.store.documents if not one.conversation.is_held_out]
    recipes, runs, texts = [], [], []
    for number in range(1, size + 1):
        run = job.text.work / "runs" / f"{job.name}-pool-{match:g}-{number}"
        texts.append(len(documents))
        recipe, done = train_member(job, setup, loop, run, watch, documents)
        save_draft(job, setup, recipe, done, folder / str(number))
        recipes.append(recipe)
        runs.append(done)
        if number < size:
            documents = _left(recipe, setup, documents, match, run / "missed.json")
    alone, merged = _worth(recipes, setup)
    setup.loaded.close()
    folders = tuple(str(folder / str(number)) for number in range(1, size + 1))
    return PoolReport(folders, tuple(texts), tuple(alone), merged, tuple(runs))


def _left(recipe: DistillRecipe, setup: DraftSetup, documents: Sequence[Document], match: float,
          path: Path) -> Sequence[Document]:  # fmt: skip
    """What the next draft learns from, as found now or in an earlier run: numbers among the documents are kept."""
    if path.exists():
        with suppress(ValueError, IndexError):  # cut short, or of other text: it is found again
            return [documents[i] for i in json.loads(path.read_text())]
    left = missed(recipe, setup.store, documents, match)
    if not left:
        problem = f"every text is matched at {match:g} of its places, so there is nothing left to learn"
        raise InvalidParameter("match", problem, "give a larger share, or a smaller pool")
    chosen = set(map(id, left))
    with writing("work", path):
        path.write_text(json.dumps([i for i, one in enumerate(documents) if id(one) in chosen]))
    return left


def _worth(recipes: Sequence[DistillRecipe], setup: DraftSetup) -> tuple[list[float], float]:
    greedy = [one for one in setup.store.documents if one.conversation.is_held_out and not one.conversation.temperature]
    hits = [[recipe.hits(setup.store, one) for one in greedy[:_MOST_MEASURED]] for recipe in recipes]
    return pool_tokens_per_pass(hits, recipes[0].num_steps)
