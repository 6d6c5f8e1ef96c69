"""`DrawnChains`: chains drawn from the laws of one runner, one pass per level for all requests.

Shared by drafters that differ only in their runner (those of `self_drafts/`). For trees, and for drafters that must
prefill the text: `draft_models/draft_model.py`.
"""

from collections.abc import Sequence
from typing import Protocol

from paceline.drafters.base import DraftContext
from paceline.drafters.runners.common_tokens import CommonTokens
from paceline.drafters.runners.growing import Runner, drafted
from paceline.drafters.trees.drawn import Drawn
from paceline.models.base import CausalLM
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.speculation.traits import DrafterTraits


class ForgetfulRunner(Runner, Protocol):
    """A runner with `release`, and that can switch to a reduced vocabulary."""

    def score_with(self, model: CausalLM) -> None:
        """Switch to another view of the same weights; the cache stays valid."""
        ...

    def release(self, request_id: str) -> None:
        """Forget a request."""
        ...


class DrawnChains:
    """A drafter around `runner`.

    Args:
        cost_ratio: cost of one of its passes over that of a target pass.
        common: reduced vocabulary, used where it covers all texts that are drafted together.
    """

    def __init__(
        self, name: str, runner: ForgetfulRunner, cost_ratio: float = 1.0, common: CommonTokens | None = None
    ) -> None:
        self.name, self.runner, self._common = name, runner, common
        self.traits = DrafterTraits(cost_ratio=cost_ratio)

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """One chain per context, drawn from the runner's own laws."""
        if self._common is not None:
            contexts, model = self._common.narrowed(contexts)
            self.runner.score_with(model)
        return drafted(self.runner, [Drawn(context) for context in contexts])

    def observe(self, outcome: RequestOutcome) -> None:
        """Release a finished request."""
        if outcome.finished:
            self.release(outcome.request_id)

    def release(self, request_id: str) -> None:
        """Forget a request."""
        self.runner.release(request_id)
