"""What a round of a real engine takes besides what a profile prices: timed on a few short answers.

A profile times passes one after the other. An engine also builds trees, warps and judges the rows of a draft, and
between two proposals its pass pushes the drafter's weights out of the caches. Nothing is learnt about acceptance here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.engine.llm import LLM
from paceline.evaluation.advise.replay import Text
from paceline.scheduling.profile import Profile
from paceline.types import SamplingParams

ANSWERS, TOKENS = 3, 32
"""Answers that are timed, and tokens of each; one more is said before, to warm up."""
_PLAIN = {"method": "plain", "num_draft_tokens": 0}


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a round of one request.

    Attributes:
        overhead: besides the target's pass and the proposal; negative where the profile's passes are too dear.
        proposal: of the proposal.
    """

    overhead: float
    proposal: float = 0.0


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Of plain decoding, and of rounds that draft."""

    plain: StepCost
    drafting: StepCost

    def overhead(self, num_requests: int) -> float:
        """Of a round that so many requests share: trees and verdicts are made one request after the other."""
        return self.plain.overhead + num_requests * (self.drafting.overhead - self.plain.overhead)


def step_cost(llm: LLM, spec: Mapping[str, Any] | None, texts: Sequence[Text], profile: Profile) -> StepCost:
    """Time a drafter, or plain decoding, on the prompts of some texts, one request at a time.

    Args:
        spec: how it drafts; None for plain decoding.
        profile: of the target, whose price of the passes is subtracted.
    """
    drafting = llm.drafting_with(spec or _PLAIN)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    chosen = list(texts[:: max(1, len(texts) // ANSWERS)][:ANSWERS])
    drafting.generate([list(chosen[0].prompt)], params)
    passes, besides, proposals = 0, 0.0, 0.0
    for text in chosen:
        output = drafting.generate([list(text.prompt)], params)[0]
        stats, metrics = output.stats, output.metrics
        count = max(1, stats.num_target_passes)
        seconds = metrics.total_seconds - (metrics.first_token_seconds or 0.0)
        rows = 1 + stats.num_draft_tokens / count
        priced = count * profile.batch_seconds(rows, 1, len(text.prompt) + TOKENS / 2)
        passes, proposals = passes + count, proposals + stats.draft_seconds
        besides += seconds - stats.draft_seconds - priced
    return StepCost(besides / passes, proposals / passes)
