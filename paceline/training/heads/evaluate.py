"""Evaluation (`figures.py`) of a head in training, from the target's hidden states of held-out text."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.training.heads.batches import Batch, make_batch
from paceline.training.heads.figures import Evaluation, figures
from paceline.training.heads.losses import logits_of
from paceline.training.heads.shards import Document, TapStore

if TYPE_CHECKING:
    from paceline.training.heads.recipes.base import Recipe

_ROWS = 2048
"""Least rows of a batch."""


@torch.no_grad()
def evaluate(recipe: "Recipe", store: TapStore, documents: Sequence[Document]) -> Evaluation:
    """The evaluation of the head on these documents."""
    greedy = [one for one in documents if one.conversation.temperature == 0]
    sampled = [one for one in documents if one.conversation.temperature > 0]
    means = _acceptance(recipe, store, sampled) if sampled else []
    return figures(_stood(recipe, store, greedy), means, recipe.num_steps)


@torch.no_grad()
def rank_accuracies(recipe: "Recipe", store: TapStore, documents: Sequence[Document],
                    num_ranks: int = 8) -> list[list[float]]:  # fmt: skip
    """Per step the share of greedy tokens that are the head's 1st, 2nd, ... most probable token: [steps][ranks].

    Shares are marginal, not cumulative over ranks. Medusa's tree is built from them (`theory.best_tree`), for heads
    whose predictions do not depend on earlier tokens of the draft.
    """
    greedy = [one for one in documents if one.conversation.temperature == 0]
    hits, places = torch.zeros(recipe.num_steps, num_ranks), torch.zeros(recipe.num_steps, 1)
    ids, most = recipe.ids, min(num_ranks, len(recipe.draft_ids))
    for batch in _batches(recipe, store, greedy):
        for step, read in enumerate(_reads(recipe, batch)):
            kept = batch.labelled(step)
            guesses = ids[logits_of(read, recipe.rows)[kept].topk(most, dim=-1).indices]
            hits[step, :most] += (guesses == batch.tokens(step + 1)[kept, None]).sum(0).cpu()
            places[step] += int(kept.sum())
    return (hits / places.clamp(min=1)).tolist()


def _stood(recipe: "Recipe", store: TapStore, documents: Sequence[Document]) -> list[Tensor]:
    """Per text [positions, steps] 1 where the drafted token is the text's, 0 where not, -1 after its end."""
    found = []
    for batch in _batches(recipe, store, documents):
        steps = []
        for step, read in enumerate(_reads(recipe, batch)):
            best = recipe.ids[logits_of(read, recipe.rows).argmax(-1)]
            stands = (best == batch.tokens(step + 1)).float()
            steps.append(torch.where(batch.labelled(step), stands, -1.0).cpu())
        found += _by_text(torch.stack(steps, dim=1), batch)
    return found


def _acceptance(recipe: "Recipe", store: TapStore, documents: Sequence[Document]) -> list[float]:
    """Per step the mean acceptance probability, sum min(p, q)."""
    totals, places = torch.zeros(recipe.num_steps), torch.zeros(recipe.num_steps)
    for batch in _batches(recipe, store, documents):
        for step, read in enumerate(_reads(recipe, batch)):
            kept = batch.labelled(step)
            teacher = batch.teacher(step).to(recipe.target.head.dtype)
            law = (teacher @ recipe.target.head.T).float().softmax(-1)[:, recipe.ids]
            drafted = logits_of(read, recipe.rows)[kept].softmax(-1)
            totals[step] += float(torch.minimum(law, drafted).sum())
            places[step] += len(drafted)
    return (totals / places.clamp(min=1)).tolist()


def _reads(recipe: "Recipe", batch: Batch):
    with recipe.in_halves():
        return recipe.read(batch)


def _batches(recipe: "Recipe", store: TapStore, documents: Sequence[Document]):
    waiting: list[Document] = []
    for one in documents:
        waiting.append(one)
        if sum(other.num_rows for other in waiting) >= _ROWS:
            yield make_batch(store, waiting, recipe.config.taps, 1.0, device=recipe.device)
            waiting = []
    if waiting:
        yield make_batch(store, waiting, recipe.config.taps, 1.0, device=recipe.device)


def _by_text(values: Tensor, batch: Batch) -> list[Tensor]:
    """`values` [S, steps] split by document, for documents that have anchors."""
    _, counts = torch.unique_consecutive(batch.ends, return_counts=True)
    return list(torch.split(values, counts.tolist()))
