"""`Spire`: a few layers of the target with sparse attention and a feedback memory draft a chain (SPIRe, 2504.06419).

What a draft keeps of a request does not grow with its text: keys and values of `window` tokens and of the first few, in
as many layers as the draft has. It pays where reading the target's keys costs more than reading the draft's weights:
long contexts, many requests at once (`theory/long_context.py`). Trained by ``paceline train draft --sparse``; runs in
torch. Prompts are read from their sinks and last `window` tokens only, in a few passes, then token by token.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from paceline.drafters.draft_pages import common_prefix
from paceline.drafters.drawn_chains import DrawnChains
from paceline.drafters.services import DraftServices
from paceline.drafters.trees.growth import Growth
from paceline.errors import UnsupportedModel
from paceline.models.resolve import resolve_model
from paceline.models.size import num_parameters, stored_bytes
from paceline.sampling.randomness import ROOT

_FEW = 8
"""Missing tokens that are read one by one; more are read anew, all at once."""


class Reads(Protocol):
    """What drafts: `models/torch_executor/feedback_draft.py`.

    Attributes:
        slack: rows that may be taken back.
    """

    @property
    def slack(self) -> int:
        """See the class."""
        ...

    def new_memory(self) -> Any:
        """Of an empty text."""
        ...

    def read(self, memory: Any, tokens: Sequence[int]) -> None:
        """Take in a text from its beginning."""
        ...

    def step(self, memories: Sequence[Any], tokens: Sequence[int], positions: Sequence[int]) -> np.ndarray:
        """[n, vocab] logits after one more row of each text."""
        ...


@dataclass(slots=True)
class _Text:
    """What a memory has taken in."""

    memory: Any
    tokens: list[int] = field(default_factory=list)


class SpireRunner:
    """Scores chains with `draft`; see `draft_runner.Runner`."""

    def __init__(self, draft: Reads) -> None:
        self._draft = draft
        self._texts: dict[str, _Text] = {}

    def can_hold(self, growth: Growth) -> bool:
        """Always: a memory has one size, and a chain is shorter than what may be taken back."""
        return growth.context.longest <= self._draft.slack

    def admit(self, growths: Sequence[Growth]) -> Sequence[Growth]:
        """All of them, their texts taken in but for the last token."""
        for growth in growths:
            self._take_in(growth.context.request_id, growth.context.token_ids[:-1])
        return growths

    def score(self, work: Sequence[tuple[Growth, Sequence[int]]]) -> list[np.ndarray]:
        """One row for each admitted growth: the logits [1, vocab] below its node."""
        texts = [self._texts[growth.context.request_id] for growth, _ in work]
        tokens = [_token(growth, node) for growth, [node] in work]
        logits = self._draft.step([one.memory for one in texts], tokens, [len(one.tokens) for one in texts])
        for text, token in zip(texts, tokens, strict=True):
            text.tokens.append(token)
        return list(logits[:, None].copy())

    def release(self, request_id: str) -> None:
        """Forget a request."""
        self._texts.pop(request_id, None)

    def _take_in(self, request_id: str, tokens: Sequence[int]) -> None:
        """Bring a request's memory to exactly `tokens`."""
        text = self._texts.get(request_id) or _Text(self._draft.new_memory())
        self._texts[request_id] = text
        same = common_prefix(text.tokens, tokens)
        if len(text.tokens) - same > self._draft.slack or len(tokens) - same > _FEW:
            self._draft.read(text.memory, tokens)
            text.tokens = list(tokens)
            return
        del text.tokens[same:]
        for token in tokens[same:]:
            self._draft.step([text.memory], [token], [len(text.tokens)])
            text.tokens.append(token)


class Spire(DrawnChains):
    """Chains of a `SpireRunner`; `cost_ratio` as of `DrawnChains`."""

    def __init__(self, draft: Reads, cost_ratio: float = 1.0) -> None:
        super().__init__("spire", SpireRunner(draft), cost_ratio)


def make_spire(services: DraftServices, model: str) -> Spire:
    """The drafter around the draft in the folder `model`.

    Raises:
        UnsupportedModel: it has another vocabulary than the target.
        CorruptWeights: it was not trained with a feedback memory.
    """
    from paceline.models.torch_executor.feedback import feedback_net
    from paceline.models.torch_executor.feedback_draft import FeedbackDraft

    source, target = resolve_model(model), services.target
    if not target.source.tokenizer.same_vocabulary(source.tokenizer):
        raise UnsupportedModel(f"model: {model} has another vocabulary than {target.source.name}; train one for it")
    card = getattr(source.checkpoint, "path", None)
    card = None if card is None else card / "paceline.json"
    values = json.loads(card.read_text()) if card is not None and card.is_file() else {}
    net = feedback_net(source.checkpoint, values)
    read = 4 * num_parameters(source.checkpoint.config)
    ratio = read / stored_bytes(target.model.config, services.dtype)
    return Spire(FeedbackDraft(net, target.model.config.vocab_size), ratio)


def _token(growth: Growth, node: int) -> int:
    return growth.context.token_ids[-1] if node == ROOT else growth.tokens[node]
