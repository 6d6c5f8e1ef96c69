"""`Jacobi`: Jacobi decoding: the target's predictions at guessed positions are the next guesses.

Santilli et al. 2023 (the baseline of Fu et al. 2024): the next k tokens are a fixed point of y_i = argmax p(. | y_<i),
iterated for all i at once. A chain of guesses is verified; the target's prediction after each of them, accepted or not,
is the guess for that position in the next step. Needs only the target and k rows a step, and gains little, because a
prediction after a wrong token is rarely right. `Lookahead` keeps the n-grams that this discards.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.drafters.base import DraftContext
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.traits import DrafterTraits


@dataclass(slots=True)
class _Guesses:
    """tokens[i] is guessed for absolute position start + i."""

    start: int
    tokens: list[int]


class Jacobi:
    """Drafts as many guesses as the budget allows; new positions start with a random token of the prompt."""

    name = "jacobi"
    traits = DrafterTraits(whole=True, watches=True)

    def __init__(self) -> None:
        self._guesses: dict[str, _Guesses] = {}

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One chain of guesses per context."""
        return [TokenTree.chain(self._chain(context)) for context in contexts]

    def observe(self, outcome: RequestOutcome) -> None:
        """Take the target's predictions as the guesses of the next step."""
        guesses = self._guesses.get(outcome.request_id)
        if guesses is not None and outcome.picks is not None:
            guesses.tokens = outcome.picks.tolist()
        if outcome.finished:
            self.release(outcome.request_id)

    def release(self, request_id: str) -> None:
        """Forget a request."""
        self._guesses.pop(request_id, None)

    def _chain(self, context: DraftContext) -> list[int]:
        position = len(context.token_ids)
        old = self._guesses.get(context.request_id)
        known = old.tokens[position - old.start :][: context.longest] if old and old.start <= position else []
        prompt = context.token_ids[: context.num_prompt_tokens]
        unknown = range(position + len(known), position + context.longest)
        tokens = known + [random.Random(at).choice(prompt) for at in unknown]
        self._guesses[context.request_id] = _Guesses(position, tokens)
        return tokens
