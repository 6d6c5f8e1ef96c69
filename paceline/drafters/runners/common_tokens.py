"""`CommonTokens`: the first tokens of a draft model's vocabulary, for texts that keep to them.

A small model spends much of a pass on its output head, which is as wide as the vocabulary. Byte-pair tokens are
numbered in the order in which they were merged, so the first are the most frequent, and a draft that scores only these
loses few acceptances (Zhao et al. 2025, FR-Spec, where tokens are counted in a corpus). The draft law is 0 elsewhere,
so verification stays exact. The same holds for a target's own prediction layer, but not for draft heads, which have a
vocabulary of their own (`models/heads/draft_ids.py`).
"""

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.architecture.config import ModelConfig
from paceline.models.base import NarrowsVocabulary

COMMON = 32_768
"""Number of tokens scored by default, for vocabularies at least twice as large (FR-Spec's choice). In Qwen 2.5's
vocabulary of 151,936 they cover 93 to 96 % of English novels, of this project's code and documents, and of grade-school
maths."""
_WINDOW = 128
"""Number of latest tokens that decide whether a text uses the common ones."""
_LEAST = 0.85
"""Fraction of these that must be common. With fewer, as in languages merged late, the lost acceptances cost more than
the smaller head saves."""


class Scores(Protocol):
    """What scores tokens: a model, or the net of a prediction layer."""

    @property
    def config(self) -> ModelConfig:
        """The architecture."""
        ...


M = TypeVar("M", bound=Scores)


class CommonTokens(Generic[M]):
    """A view of `model` that scores only the token ids below `size`.

    Args:
        always: use it for every text; otherwise only where most of the latest tokens are below `size`.

    Raises:
        InvalidParameter: `size` is below 1.
        UnsupportedModel: the executor can only score the whole vocabulary.
    """

    def __init__(self, model: M, size: int, always: bool = False) -> None:
        if size < 1:
            remedy = "leave it out, or give the vocabulary's size for all tokens"
            raise InvalidParameter("draft_vocab_size", f"{size} is not 1 or more", remedy)
        if not isinstance(model, NarrowsVocabulary):
            raise UnsupportedModel(
                "draft_vocab_size: this executor scores whole vocabularies only; leave it out, or use executor='numba'"
            )
        narrow: Any = model.with_vocabulary(size)
        self.model: M = narrow
        self._whole: M = model
        self.ids = np.arange(min(size, model.config.vocab_size))
        self._always = always

    def narrowed(self, contexts: Sequence[DraftContext]) -> tuple[Sequence[DraftContext], M]:
        """(contexts, model) to draft with: on the common tokens only, if `cover` holds for all texts of the batch."""
        if all([self.cover(context.token_ids) for context in contexts]):
            return [context.over(self.ids) for context in contexts], self.model
        return contexts, self._whole

    def cover(self, token_ids: Sequence[int]) -> bool:
        """Whether drafts after `token_ids` should use only the common tokens."""
        latest = token_ids[-_WINDOW:]
        return self._always or sum([token < len(self.ids) for token in latest]) >= _LEAST * len(latest)


def common_tokens(model: M, size: int | None) -> CommonTokens[M] | None:
    """The `CommonTokens` of a model or net that drafts; None to score the whole vocabulary.

    Args:
        size: number of tokens, used for every text. None takes `COMMON` tokens, if that is at most half the vocabulary
            and the executor supports it.

    Raises:
        InvalidParameter, UnsupportedModel: see `CommonTokens`, only with a given `size`.
    """
    num_tokens = model.config.vocab_size
    if size is not None:
        return None if size >= num_tokens else CommonTokens(model, size, always=True)
    few = num_tokens < 2 * COMMON or not isinstance(model, NarrowsVocabulary)
    return None if few else CommonTokens(model, COMMON)
