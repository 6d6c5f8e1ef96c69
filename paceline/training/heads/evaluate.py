"""What a head is worth on held-out text: expected accepted length, in the one definition used everywhere.

EAL = 1 + sum over k of the probability that the first k drafted tokens stand: tokens per pass of the target with chains
of that length. At temperature 0 a drafted token stands when it is the target's next token, and `replayed` walks
the texts as a decoder would; above, it stands with probability sum min(p, q), p over the whole vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.training.heads.batches import Batch, make_batch
from paceline.training.heads.losses import logits_of
from paceline.training.heads.recipes.base import Recipe, Target
from paceline.training.heads.shards import Document, TapStore

_ROWS = 2048
"""Rows of a batch."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of one evaluation.

    Attributes:
        greedy: share of drafted tokens that stand at each step, given that those before did, on greedy answers.
        eal: expected accepted length on greedy answers.
        replayed: tokens per pass when they are decoded with the head.
        sampled: mean acceptance of each step on sampled answers; empty where there are none.
        sampled_eal: expected accepted length there, 0 where there are none.
        num_places: places drafted from on greedy answers.
    """

    greedy: tuple[float, ...]
    eal: float
    replayed: float
    sampled: tuple[float, ...]
    sampled_eal: float
    num_places: int

    @property
    def score(self) -> float:
        """What checkpoints are chosen by: the mean of both lengths, or the one there is."""
        found = [value for value in (self.eal if self.num_places else 0.0, self.sampled_eal) if value]
        return sum(found) / len(found) if found else 0.0


def expected_length(rates: Sequence[float]) -> float:
    """1 + sum over k of the product of the first k conditional rates."""
    total, product = 1.0, 1.0
    for rate in rates:
        product *= rate
        total += product
    return total


@torch.no_grad()
def evaluate(recipe: Recipe, target: Target, store: TapStore, documents: Sequence[Document]) -> Evaluation:
    """The head's figures on these documents."""
    greedy = [one for one in documents if one.conversation.temperature == 0]
    sampled = [one for one in documents if one.conversation.temperature > 0]
    stood = _stood(recipe, store, greedy)
    rates, first = _rates(stood, recipe.num_steps)
    means = _acceptance(recipe, target, store, sampled) if sampled else []
    accepted = [one.clamp(min=0).cumprod(1).sum(1).tolist() for one in stood]
    return Evaluation(
        tuple(rates), expected_length(rates), replayed(accepted), tuple(means),
        expected_length(means) if means else 0.0, len(first),
    )  # fmt: skip


def replayed(accepted: Sequence[Sequence[int]]) -> float:
    """Tokens per pass of decoding texts in which a draft from place i has `accepted[text][i]` tokens that stand."""
    tokens = passes = 0
    for text in accepted:
        place = 0
        while place < len(text):
            length = min(1 + int(text[place]), len(text) - place)
            tokens, passes, place = tokens + length, passes + 1, place + length
    return tokens / passes if passes else 0.0


def _rates(stood: Sequence[Tensor], num_steps: int) -> tuple[list[float], Tensor]:
    """Per step the share that stands of the places that are reached and have a next token, and which stand."""
    if not stood:
        return [0.0] * num_steps, torch.zeros(0, num_steps)
    values = torch.cat(list(stood))
    first = values.clamp(min=0).cumprod(1)
    reached = torch.cat([torch.ones(len(first), 1), first[:, :-1]], dim=1) * (values >= 0)
    return (first.sum(0) / reached.sum(0).clamp(min=1)).tolist(), first


def _stood(recipe: Recipe, store: TapStore, documents: Sequence[Document]) -> list[Tensor]:
    """Per text [places, steps] 1 where the drafted token is the text's, 0 where not, -1 after its end."""
    found = []
    for batch in _batches(recipe, store, documents):
        steps = []
        for step, read in enumerate(_reads(recipe, batch)):
            best = torch.from_numpy(recipe.draft_ids)[logits_of(read, recipe.rows).argmax(-1)]
            stands = (best == batch.tokens(step + 1)).float()
            steps.append(torch.where(batch.labelled(step), stands, -1.0))
        found += _by_text(torch.stack(steps, dim=1), batch)
    return found


def _acceptance(recipe: Recipe, target: Target, store: TapStore, documents: Sequence[Document]) -> list[float]:
    """Per step the mean of sum min(p, q)."""
    totals, places = torch.zeros(recipe.num_steps), torch.zeros(recipe.num_steps)
    for batch in _batches(recipe, store, documents):
        for step, read in enumerate(_reads(recipe, batch)):
            kept = batch.labelled(step)
            teacher = batch.teacher(step).to(target.head.dtype)
            law = (teacher @ target.head.T).float().softmax(-1)[:, torch.from_numpy(recipe.draft_ids).long()]
            drafted = logits_of(read, recipe.rows)[kept].softmax(-1)
            totals[step] += torch.minimum(law, drafted).sum()
            places[step] += len(drafted)
    return (totals / places.clamp(min=1)).tolist()


def _reads(recipe: Recipe, batch: Batch):
    with torch.autocast("cpu", torch.bfloat16):
        return recipe.read(batch)


def _batches(recipe: Recipe, store: TapStore, documents: Sequence[Document]):
    waiting: list[Document] = []
    for one in documents:
        waiting.append(one)
        if sum(other.num_rows for other in waiting) >= _ROWS:
            yield make_batch(store, waiting, recipe.config.taps, 1.0)
            waiting = []
    if waiting:
        yield make_batch(store, waiting, recipe.config.taps, 1.0)


def _by_text(values: Tensor, batch: Batch) -> list[Tensor]:
    """`values` [S, steps] of each document that has anchors."""
    _, counts = torch.unique_consecutive(batch.ends, return_counts=True)
    return list(torch.split(values, counts.tolist()))
