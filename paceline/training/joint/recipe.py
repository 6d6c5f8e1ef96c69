"""Medusa-2 (Cai et al. 2024, section 2.2.2), joint blockwise training (Stern et al. 2018): the target is trained too.

    L = L_target + LAMBDA_0 * sum over k = 1..K of decay**k * (-log p_k(y_{t+k+1}))

`L_target` keeps the target near the original by self-distillation, KL(p_original || p) (the paper's section 2.3), with
the target without its low-rank updates as the teacher. The stored states are not used for that: they come from the
number format that wrote the text, so its rounding would be learnt, and reported as drift. As in the paper, the heads'
weight rises from 0 to LAMBDA_0 over the first part of the run, because untrained heads would change the target much
(warm-up), and the heads' learning rate is four times the target's. The trained target writes other text than the
original; `drift` measures the difference.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from paceline.models.torch_executor.heads.medusa import StateOnly
from paceline.training.drafts.divergences import criterion_of
from paceline.training.drafts.net import DraftNet
from paceline.training.drafts.texts import Texts, make_texts, stored_states
from paceline.training.heads.figures import Evaluation, figures
from paceline.training.heads.losses import Read, fused_loss, logits_of
from paceline.training.heads.recipes.base import Recipe
from paceline.training.heads.shards import Document, TapStore
from paceline.training.lora import add_lora, merged_state, without_updates
from paceline.training.run.trainee import Moment, Trainee

LAMBDA_0, WARM_UP = 0.2, 0.3
"""Weight of the heads' loss, and the share of the run over which it rises from 0."""
HEADS_RATE = 4.0
"""Learning rate of the heads divided by that of the target."""
_MOST_MEASURED = 24


class _Both(nn.Module):
    """The target with its low-rank updates, and the heads."""

    def __init__(self, target: DraftNet, heads: nn.Module) -> None:
        super().__init__()
        self.target, self.heads = target, heads


class JointRecipe(Trainee):
    """A target and its heads in training.

    Args:
        target: the whole model; its linear layers get low-rank updates.
        recipe: of Medusa or blockwise heads for this target.
        rank: of the updates.
    """

    def __init__(self, target: DraftNet, recipe: Recipe, rank: int = 16) -> None:
        add_lora(target, rank, target.head.dtype)
        self.recipe, self.num_steps, self._target = recipe, recipe.num_steps, target
        self._heads, self.net = cast(StateOnly, recipe.net), _Both(target, recipe.net)
        self._criterion, self._ids = criterion_of("forward_kl"), torch.from_numpy(recipe.draft_ids).long()

    def loss(self, store: TapStore, documents: Sequence[Document], moment: Moment) -> Tensor:
        """See `Trainee.loss`."""
        texts = _texts(store, documents, moment)
        states = self._states(texts)[texts.labelled]
        head = self._target.head
        kept = fused_loss(Read(states), self._original(texts)[texts.labelled], head, texts.weights, self._criterion)
        weight = LAMBDA_0 * min(moment.done / WARM_UP, 1.0)
        return kept.loss + weight * self._heads_loss(states, texts)

    def _heads_loss(self, states: Tensor, texts: Texts) -> Tensor:
        """sum over k = 1..K of decay**k * cross entropy of the text's tokens that are in the draft vocabulary."""
        total = torch.zeros(())
        for step in range(self.num_steps):
            named, known = self._labels(texts, step)
            log_q = self._logits(step, states[known]).log_softmax(-1)
            losses = -log_q.gather(1, named[known, None])[:, 0]
            total = total + self.recipe.decay ** (step + 1) * (losses * texts.weights[known]).sum()
        return total

    def _labels(self, texts: Texts, step: int) -> tuple[Tensor, Tensor]:
        """[L] index in the draft vocabulary of the token that step `step` must predict, and [L] whether it has one."""
        ends = torch.tensor(texts.lengths).cumsum(0)
        document = torch.searchsorted(ends, texts.labelled, right=True)
        rows = texts.labelled + 1 + step
        tokens = texts.following[rows.clamp(max=len(texts.following) - 1)]
        own = torch.searchsorted(self._ids, tokens).clamp(max=len(self._ids) - 1)
        return own, (rows < ends[document]) & (self._ids[own] == tokens)

    def _states(self, texts: Texts) -> Tensor:
        """[N, hidden] float32 final states of the target with its updates."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self._target.head.dtype == torch.bfloat16):
            return self._target(texts.tokens, texts.lengths).float()

    @torch.no_grad()
    def _original(self, texts: Texts) -> Tensor:
        """[N, hidden] float32 final states of the original target."""
        with without_updates(self._target):
            return self._states(texts)

    def _logits(self, step: int, states: Tensor) -> Tensor:
        """[n, draft vocabulary] logits of head `step`; the output head's rows are frozen."""
        rows = self.recipe.rows
        with torch.autocast("cpu", torch.bfloat16, enabled=rows.dtype == torch.bfloat16):
            read = self._heads.read(step, states)
        return (read.to(rows.dtype) @ rows.T).float()

    @torch.no_grad()
    def evaluate(self, store: TapStore, documents: Sequence[Document]) -> Evaluation:
        """See `Trainee.evaluate`; drafts of the heads are compared with the changed target's law, not with the text."""
        stood, totals, places = [], torch.zeros(self.num_steps), torch.zeros(self.num_steps)
        for states, own, temperature in self._read(store, documents):
            found = torch.full((len(own), self.num_steps), -1.0)
            for step in range(self.num_steps):
                size = max(len(own) - 1 - step, 0)
                logits, later = self._logits(step, states[:size]), own[len(own) - size :]
                if temperature == 0:
                    found[:size, step] = (self._ids[logits.argmax(-1)] == later.argmax(-1)).float()
                else:
                    totals[step] += torch.minimum(later.softmax(-1)[:, self._ids], logits.softmax(-1)).sum()
                    places[step] += size
            if temperature == 0:
                stood.append(found)
        means = (totals / places.clamp(min=1)).tolist() if places.any() else []
        return figures(stood, means, self.num_steps)

    @torch.no_grad()
    def rank_accuracies(self, store: TapStore, documents: Sequence[Document], num_ranks: int = 8) -> list[list[float]]:
        """As `heads.evaluate.rank_accuracies`, over all answers, and against the changed target's best token."""
        most = min(num_ranks, len(self._ids))
        hits, places = torch.zeros(self.num_steps, num_ranks), torch.zeros(self.num_steps, 1)
        for states, own, _ in self._read(store, documents):
            for step in range(self.num_steps):
                size = max(len(own) - 1 - step, 0)
                guesses = self._ids[self._logits(step, states[:size]).topk(most, dim=-1).indices]
                hits[step, :most] += (guesses == own[len(own) - size :].argmax(-1)[:, None]).sum(0)
                places[step] += size
        return (hits / places.clamp(min=1)).tolist()

    def _read(self, store: TapStore, documents: Sequence[Document]) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Per document the changed target's states [L, hidden] and logits [L, vocabulary], and the temperature."""
        for one in documents[:_MOST_MEASURED]:
            texts = _texts(store, [one], None)
            states = self._states(texts)[texts.labelled]
            yield states, logits_of(Read(states), self._target.head), one.conversation.temperature

    @torch.no_grad()
    def drift(self, store: TapStore, documents: Sequence[Document]) -> dict[str, float]:
        """Difference to the original target: ``kl``, mean KL in nats; ``other_best_token``, share of positions."""
        divergence, changed, places = 0.0, 0.0, 0
        for one in documents[:_MOST_MEASURED]:
            texts = _texts(store, [one], None)
            now = logits_of(Read(self._states(texts)[texts.labelled]), self._target.head)
            before = logits_of(Read(self._original(texts)[texts.labelled]), self._target.head)
            divergence += float(self._criterion(now, before.softmax(-1))[0].sum())
            changed += float((now.argmax(-1) != before.argmax(-1)).sum())
            places += len(now)
        kl = max(0.0, divergence / max(places, 1))  # rounding takes that of equal laws a little below 0
        return {"kl": kl, "other_best_token": changed / max(places, 1)}

    def rate_factors(self) -> Mapping[str, float]:
        """`HEADS_RATE` for the heads, which begin untrained."""
        return {"heads.": HEADS_RATE}

    def about(self) -> dict[str, int | float | str]:
        """Those of the heads' recipe."""
        return self.recipe.about()

    def kept(self) -> dict[str, Tensor]:
        """The draft vocabulary."""
        return self.recipe.kept()

    def split(self, weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The target's layers with updates merged in, and the heads' weights, from the state dict of `net`."""
        self.net.load_state_dict(weights)
        return merged_state(self._target), dict(self._heads.state_dict())


def _texts(store: TapStore, documents: Sequence[Document], moment: Moment | None) -> Texts:
    ids, num_prompts = [one.conversation.ids for one in documents], [one.conversation.num_prompt for one in documents]
    share, random = (1.0, None) if moment is None else (moment.share, moment.random)
    return make_texts(ids, num_prompts, stored_states(store, documents), share, random)
