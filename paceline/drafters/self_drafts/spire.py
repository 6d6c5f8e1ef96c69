"""`spire`: a few layers of the target with sparse attention and a feedback memory draft a chain (SPIRe, 2504.06419).

The draft's state per request does not grow with the text: keys and values of the latest `window` tokens and of the
first few (attention sinks). It pays where reading the target's keys costs more than reading the draft's weights: long
contexts, many concurrent requests (`theory/long_context.py`). Trained by ``paceline train draft --sparse``. Of a prompt
only the sinks and the last `window` tokens are computed, in a few passes; later tokens one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from paceline.drafters.draft_models.load import load_draft
from paceline.drafters.runners.common_tokens import common_tokens
from paceline.drafters.runners.draft_pages import common_prefix
from paceline.drafters.runners.drawn_chains import DrawnChains
from paceline.drafters.services import DraftServices
from paceline.drafters.trees.growth import Growth
from paceline.models.base import CausalLM
from paceline.models.feedback import FeedbackWeights, read_card
from paceline.models.feedback_draft import FeedbackDraft
from paceline.sampling.randomness import ROOT

_FEW = 8
"""Most missing tokens that are computed one by one; with more, the text is read again as a whole."""


class Reads(Protocol):
    """Interface of the draft model; see `models/feedback_draft.py`.

    Attributes:
        slack: number of rows that can be rolled back.
    """

    @property
    def slack(self) -> int:
        """See the class."""
        ...

    def new_memory(self) -> Any:
        """The memory of an empty text."""
        ...

    def score_with(self, model: CausalLM) -> None:
        """Go on with another view of the same weights, whose caches are the same."""
        ...

    def release(self, memory: Any) -> None:
        """Give its room to others."""
        ...

    def read(self, memory: Any, tokens: Sequence[int]) -> None:
        """Take in a text from its beginning."""
        ...

    def step(self, memories: Sequence[Any], tokens: Sequence[int], positions: Sequence[int]) -> np.ndarray:
        """[n, vocab] logits after one more row of each text."""
        ...


@dataclass(slots=True)
class _Text:
    """A memory and the tokens that it has read."""

    memory: Any
    tokens: list[int] = field(default_factory=list)


class SpireRunner:
    """Scores chains with `draft`; see `growing.Runner`, and `DraftRunner` for `vocab_size`."""

    def __init__(self, draft: Reads, vocab_size: int | None = None) -> None:
        self._draft, self._vocab_size = draft, vocab_size
        self._texts: dict[str, _Text] = {}

    def can_hold(self, growth: Growth) -> bool:
        """Whether the chain can be rolled back; the size of a memory does not depend on the text's length."""
        return growth.context.longest <= self._draft.slack

    def admit(self, growths: Sequence[Growth]) -> Sequence[Growth]:
        """Admit all of them, with their texts read except for the last token."""
        missing = [self._missing(growth.context.request_id, growth.context.token_ids[:-1]) for growth in growths]
        while missing := [(text, tokens) for text, tokens in missing if tokens]:
            self._step([text for text, _ in missing], [tokens[0] for _, tokens in missing])
            missing = [(text, tokens[1:]) for text, tokens in missing]
        return growths

    def score(self, work: Sequence[tuple[Growth, Sequence[int]]]) -> list[np.ndarray]:
        """Compute one row for each admitted growth: the logits [1, vocab] after its node."""
        texts = [self._texts[growth.context.request_id] for growth, _ in work]
        logits = self._step(texts, [_token(growth, node) for growth, [node] in work])
        return list(logits[:, None, : self._vocab_size].copy())

    def score_with(self, model: CausalLM) -> None:
        """Go on with another view of the same weights, whose caches are the same."""
        self._draft.score_with(model)

    def release(self, request_id: str) -> None:
        """Forget a request."""
        text = self._texts.pop(request_id, None)
        if text is not None:
            self._draft.release(text.memory)

    def _missing(self, request_id: str, tokens: Sequence[int]) -> tuple[_Text, Sequence[int]]:
        """(the request's text, the last few of `tokens` that it has not read); with more missing, it is read again."""
        text = self._texts.get(request_id) or _Text(self._draft.new_memory())
        self._texts[request_id] = text
        same = common_prefix(text.tokens, tokens)
        if len(text.tokens) - same > self._draft.slack or len(tokens) - same > _FEW:
            self._draft.read(text.memory, tokens)
            text.tokens = list(tokens)
            return text, ()
        del text.tokens[same:]
        return text, tokens[same:]

    def _step(self, texts: Sequence[_Text], tokens: Sequence[int]) -> np.ndarray:
        """[n, vocab] logits after one more token of each text, good until the next."""
        logits = self._draft.step([one.memory for one in texts], tokens, [len(one.tokens) for one in texts])
        for text, token in zip(texts, tokens, strict=True):
            text.tokens.append(token)
        return logits


def make_spire(
    services: DraftServices, model: str, dtype: str | None = None, draft_vocab_size: int | None = None
) -> DrawnChains:
    """A drafter with the draft model in the folder `model`, with weights in `dtype` (default: the target's).

    `draft_vocab_size` limits proposals to the first that many tokens; for the default see `common_tokens`.

    Raises:
        UnsupportedModel: it has another vocabulary than the target, or cannot score a part of it.
        CorruptWeights: it was not trained with a feedback memory.
        InvalidParameter: a vocabulary below 1.
    """
    draft = load_draft(services, model, dtype)
    checkpoint = draft.source.checkpoint
    sparse, mix = read_card(checkpoint)
    common = common_tokens(draft.model, draft_vocab_size)
    ratio = services.cost_ratio([(draft, dtype)], None if common is None else len(common.ids))
    vocab_size = services.target.model.config.vocab_size
    runner = SpireRunner(FeedbackDraft(draft.model, FeedbackWeights(checkpoint, mix), sparse), vocab_size)
    return DrawnChains("spire", runner, ratio, common)


def _token(growth: Growth, node: int) -> int:
    return growth.context.token_ids[-1] if node == ROOT else growth.tokens[node]
