"""Evaluation (`figures.py`) of a head in training, from the target's hidden states of held-out text."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from paceline.models.heads.record import HeadConfig
from paceline.training.heads.batches import Batch, make_batch
from paceline.training.heads.figures import Evaluation, figures
from paceline.training.heads.losses import CHUNK, Read, logits_of
from paceline.training.heads.shards import Document, TapStore
from paceline.training.heads.target import Target

_ROWS = 2048
"""Least rows of a batch."""


class Drafts(Protocol):
    """A head that can be evaluated: what a `recipes.Recipe` reads for a batch, and what makes logits of it."""

    target: Target
    config: HeadConfig
    num_steps: int
    ids: Tensor
    rows: Tensor
    device: torch.device

    def read(self, batch: Batch) -> list[Read]:
        """What makes the logits of every step of the batch's anchors."""
        ...

    def in_halves(self) -> torch.autocast:
        """A context in which products are taken in bfloat16."""
        ...


@torch.no_grad()
def evaluate(head: Drafts, store: TapStore, documents: Sequence[Document]) -> Evaluation:
    """The evaluation of the head on these documents."""
    greedy = [one for one in documents if one.conversation.temperature == 0]
    sampled = [one for one in documents if one.conversation.temperature > 0]
    means = _acceptance(head, store, sampled) if sampled else []
    return figures(_stood(head, store, greedy), means, head.num_steps)


@torch.no_grad()
def rank_accuracies(head: Drafts, store: TapStore, documents: Sequence[Document],
                    num_ranks: int = 8) -> list[list[float]]:  # fmt: skip
    """Per step the share of greedy tokens that are the head's 1st, 2nd, ... most probable token: [steps][ranks].

    Shares are marginal, not cumulative over ranks. Medusa's tree is built from them (`theory.best_tree`), for heads
    whose predictions do not depend on earlier tokens of the draft.
    """
    greedy = [one for one in documents if one.conversation.temperature == 0]
    hits, places = torch.zeros(head.num_steps, num_ranks), torch.zeros(head.num_steps, 1)
    ids, most = head.ids, min(num_ranks, len(head.ids))
    for batch in _batches(head, store, greedy):
        for step, read in enumerate(_reads(head, batch)):
            kept = batch.labelled(step)
            guesses = ids[logits_of(read, head.rows)[kept].topk(most, dim=-1).indices]
            hits[step, :most] += (guesses == batch.tokens(step + 1)[kept, None]).sum(0).cpu()
            places[step] += int(kept.sum())
    return (hits / places.clamp(min=1)).tolist()


def _stood(head: Drafts, store: TapStore, documents: Sequence[Document]) -> list[Tensor]:
    """Per text [positions, steps] 1 where the drafted token is the text's, 0 where not, -1 after its end."""
    found = []
    for batch in _batches(head, store, documents):
        steps = []
        for step, read in enumerate(_reads(head, batch)):
            best = head.ids[logits_of(read, head.rows).argmax(-1)]
            stands = (best == batch.tokens(step + 1)).float()
            steps.append(torch.where(batch.labelled(step), stands, -1.0).cpu())
        found += _by_text(torch.stack(steps, dim=1), batch)
    return found


def _acceptance(head: Drafts, store: TapStore, documents: Sequence[Document]) -> list[float]:
    """Per step the mean acceptance probability, sum min(p, q)."""
    totals, places, whole = torch.zeros(head.num_steps), torch.zeros(head.num_steps), head.target.output_head()
    for batch in _batches(head, store, documents):
        for step, read in enumerate(_reads(head, batch)):
            teacher = batch.teacher(step)
            drafted = logits_of(read, head.rows)[batch.labelled(step)].softmax(-1)
            for start in range(0, len(teacher), CHUNK):  # whole laws of a large vocabulary take a megabyte each
                part = slice(start, start + CHUNK)
                law = whole.logits(teacher[part]).softmax(-1)[:, head.ids]
                totals[step] += float(torch.minimum(law, drafted[part]).sum())
            places[step] += len(drafted)
    return (totals / places.clamp(min=1)).tolist()


def _reads(head: Drafts, batch: Batch):
    with head.in_halves():
        return head.read(batch)


def _batches(head: Drafts, store: TapStore, documents: Sequence[Document]):
    waiting: list[Document] = []
    for one in documents:
        waiting.append(one)
        if sum(other.num_rows for other in waiting) >= _ROWS:
            yield make_batch(store, waiting, head.config.taps, 1.0, device=head.device)
            waiting = []
    if waiting:
        yield make_batch(store, waiting, head.config.taps, 1.0, device=head.device)


def _by_text(values: Tensor, batch: Batch) -> list[Tensor]:
    """`values` [S, steps] split by document, for documents that have anchors."""
    _, counts = torch.unique_consecutive(batch.ends, return_counts=True)
    return list(torch.split(values, counts.tolist()))
