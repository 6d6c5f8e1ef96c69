"""`TableModel`: a target small enough to enumerate the law of its texts, with a minimal decode loop.

The loop is propose, verify, commit, observe. Not the engine: no cache, no scheduler.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.drafters.base import DraftContext, Drafter
from paceline.sampling import ROOT, Law, Randomness, Verifier
from paceline.speculation import RequestOutcome
from paceline.types import SamplingParams

Tokens = tuple[int, ...]


class TableModel:
    """A Markov model with random transition probabilities.

    Args:
        vocab_size: number of tokens, 0 .. vocab_size - 1.
        order: number of last tokens that the next one's law depends on.
        seed: of the probabilities.
        greedy: every law is one-hot at its most probable token, as at temperature 0.
    """

    def __init__(self, vocab_size: int = 3, order: int = 2, seed: int = 0, greedy: bool = False) -> None:
        self.vocab_size, self.order, self.greedy = vocab_size, order, greedy
        self._seed = seed
        self._rows: dict[Tokens, Law] = {}

    def law(self, prefix: Sequence[int]) -> Law:
        """The law after `prefix`; some tokens may have probability 0."""
        key = tuple(prefix[-self.order :])
        if key not in self._rows:
            rng = np.random.default_rng([self._seed, *key])
            weights = rng.integers(0, 6, self.vocab_size).astype(float)
            weights[rng.integers(self.vocab_size)] += 1
            law = Law.from_dense(weights / weights.sum())
            self._rows[key] = Law.one_hot(law.mode) if self.greedy else law
        return self._rows[key]

    def context(
        self, request_id: str, token_ids: Sequence[int], randomness: Randomness, budget: int, **changes: Any
    ) -> DraftContext:
        """The context that an engine would pass to a drafter; `warp` is a softmax over the tokens of this model."""

        def warp(logits: np.ndarray, path: Sequence[int]) -> Law:
            known = np.asarray(logits, dtype=float)[: self.vocab_size]
            if self.greedy:
                return Law.one_hot(int(np.argmax(known)))
            weights = np.exp(known - known.max())
            return Law.from_dense(weights / weights.sum())

        params = SamplingParams(temperature=0.0 if self.greedy else 1.0)
        num_prompt = min(2, len(token_ids))
        return DraftContext(request_id, token_ids, num_prompt, budget, params, warp, randomness, **changes)


def run(
    model: TableModel,
    drafter: Drafter,
    rule: Verifier,
    randomness: Randomness,
    num_tokens: int,
    *,
    prompt: Tokens = (0, 1),
    budget: int = 2,
    request_id: str = "checked",
    coupled: bool = False,
) -> Tokens:
    """Run the decode loop and return the first `num_tokens` tokens after `prompt`."""
    text = list(prompt)
    while len(text) < len(prompt) + num_tokens:
        context = model.context(request_id, list(text), randomness, budget, coupled=coupled)
        outcome = _step(model, drafter, rule, context)
        outcome.finished = len(outcome.token_ids) >= len(prompt) + num_tokens
        drafter.observe(outcome)
        text = list(outcome.token_ids)
    drafter.release(request_id)
    return tuple(text[len(prompt) : len(prompt) + num_tokens])


def _step(model: TableModel, drafter: Drafter, rule: Verifier, context: DraftContext) -> RequestOutcome:
    """Propose and verify once; returns the outcome."""
    text = list(context.token_ids)
    [tree] = drafter.propose([context])
    tree = tree.prune(context.budget)

    def target(node: int) -> Law:
        return model.law([*text, *tree.tokens_to(node)])

    verdict = rule(tree, target, context.randomness, len(text))
    emitted = [*(tree.tokens[node] for node in verdict.path), verdict.token]
    picks = None
    if drafter.traits.watches and len(tree):
        picks = np.array([target(node).mode for node in range(ROOT, len(tree))])
    return RequestOutcome(
        context.request_id, [*text, *emitted], len(emitted),
        num_draft_tokens=len(tree), depth=tree.depth,
        tokens=tree.tokens, parents=tree.parents, num_accepted=len(verdict.path), num_rejected=verdict.num_rejected,
        level_rejected=verdict.kind == "recovered", asked=True, picks=picks,
    )  # fmt: skip


def plain_law(model: TableModel, num_tokens: int, prompt: Tokens = (0, 1)) -> dict[Tokens, float]:
    """Text to probability of the first `num_tokens` tokens after `prompt`, by the chain rule."""
    texts: dict[Tokens, float] = {(): 1.0}
    for _ in range(num_tokens):
        texts = {
            (*text, int(token)): chance * float(prob)
            for text, chance in texts.items()
            for law in [model.law((*prompt, *text))]
            for token, prob in zip(law.tokens, law.probs, strict=True)
        }
    return texts
