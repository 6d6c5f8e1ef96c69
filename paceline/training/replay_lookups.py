"""Counts the target passes that recorded greedy answers take with a lookup drafter, without running a model.

A greedy text is the same whatever is drafted, so its passes follow from the text alone. Not for sampled answers, whose
acceptance depends on the draws, and not for times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.drafters.base import DraftContext, Drafter
from paceline.sampling.randomness import CounterRandomness
from paceline.sampling.tree import TokenTree
from paceline.speculation.traits import DEFAULT_NUM_DRAFT_TOKENS
from paceline.training.heads.conversations import Conversation
from paceline.types import SamplingParams

GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True, slots=True)
class LookupReport:
    """Counts over the answers of some conversations.

    Attributes:
        tokens: answer tokens, except each answer's first, which comes from the prompt's pass.
        passes: decoding passes of the target.
        drafted: drafted tokens that were verified.
    """

    tokens: int
    passes: int
    drafted: int

    @property
    def tokens_per_pass(self) -> float:
        """Acceptance length; 1 without drafts."""
        return self.tokens / self.passes if self.passes else 1.0

    @property
    def drafted_per_pass(self) -> float:
        """Mean number of drafted tokens in a pass."""
        return self.drafted / self.passes if self.passes else 0.0


def replay_lookups(
    drafter: Drafter, conversations: Sequence[Conversation], budget: int = DEFAULT_NUM_DRAFT_TOKENS
) -> LookupReport:
    """Replay the answers one after the other; `drafter` proposes at most `budget` tokens before each pass.

    Each answer is released before the next one begins.
    """
    tokens = passes = drafted = 0
    for number, one in enumerate(conversations):
        text = one.ids.tolist()
        end = one.num_prompt + 1
        while end < len(text):
            context = DraftContext(
                str(number), text[:end], one.num_prompt, budget, GREEDY, _no_law, CounterRandomness(0)
            )
            [tree] = drafter.propose([context])
            stands = _accepted(tree, text[end:])
            end += stands + 1
            passes, drafted = passes + 1, drafted + len(tree)
        drafter.release(str(number))
        tokens += max(0, len(one.answer) - 1)
    return LookupReport(tokens, passes, drafted)


def _accepted(tree: TokenTree, text: Sequence[int]) -> int:
    """Number of drafted tokens that the text accepts; the text's last token is left to the target."""
    node, depth = -1, 0
    for child, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        if parent == node and depth < len(text) - 1 and token == text[depth]:
            node, depth = child, depth + 1
    return depth


def _no_law(*_: Any) -> Any:
    raise AssertionError("a lookup has no logits to warp")
