"""`CommonTokens`: the first tokens of a draft model's vocabulary, for texts that keep to them.

A small model spends much of a pass on its output head, which is as wide as the vocabulary. Byte-pair tokens are
numbered in the order in which they were merged, so the first are the most frequent, and a draft that scores these alone
loses few acceptances (Zhao et al. 2025, FR-Spec, where tokens are counted in a corpus). What is never proposed is never
accepted: the law of a draft is zero there, and the text stays the target's. Not for draft heads, which bring a
vocabulary of their own (`models/heads/draft_ids.py`).
"""

from collections.abc import Sequence

import numpy as np

from paceline.drafters.base import DraftContext
from paceline.errors import InvalidParameter, UnsupportedModel
from paceline.models.base import CausalLM, NarrowsVocabulary

COMMON = 32_768
"""Tokens that are scored by default, of vocabularies at least twice as large: FR-Spec's choice. They are 93 to 96 % of
English novels, of this project's code and documents, and of grade-school maths in Qwen 2.5's vocabulary of 151,936."""
_WINDOW = 128
"""Latest tokens of a text that say whether it keeps to the common ones."""
_LEAST = 0.85
"""Share of them that has to be common: with fewer, as in languages that were merged late, more drafts fall than the
smaller head pays for."""


class CommonTokens:
    """Scores the ids below `size` with `model`'s weights.

    Args:
        always: for any text; else for those whose latest tokens mostly lie below `size`.

    Raises:
        InvalidParameter: `size` is below 1.
        UnsupportedModel: the executor scores whole vocabularies only.
    """

    def __init__(self, model: CausalLM, size: int, always: bool = False) -> None:
        if size < 1:
            remedy = "leave it out, or give the vocabulary's size for all tokens"
            raise InvalidParameter("draft_vocab_size", f"{size} is not 1 or more", remedy)
        if not isinstance(model, NarrowsVocabulary):
            raise UnsupportedModel(
                "draft_vocab_size: this executor scores whole vocabularies only; leave it out, or use executor='numba'"
            )
        self.model, self._whole = model.with_vocabulary(size), model
        self.ids = np.arange(min(size, model.config.vocab_size))
        self._always = always

    def narrowed(self, contexts: Sequence[DraftContext]) -> tuple[Sequence[DraftContext], CausalLM]:
        """Contexts and the model to draft with together: the common tokens alone where all texts keep to them."""
        if all([self.cover(context.token_ids) for context in contexts]):
            return [context.over(self.ids) for context in contexts], self.model
        return contexts, self._whole

    def cover(self, token_ids: Sequence[int]) -> bool:
        """Whether a draft of what follows `token_ids` should keep to these tokens."""
        latest = token_ids[-_WINDOW:]
        return self._always or sum([token < len(self.ids) for token in latest]) >= _LEAST * len(latest)


def common_tokens(model: CausalLM, size: int | None) -> CommonTokens | None:
    """`size` tokens for all texts; None: `COMMON` where they are less than half; None for the whole vocabulary.

    Raises:
        InvalidParameter, UnsupportedModel: see `CommonTokens`, for a `size` that is given.
    """
    num_tokens = model.config.vocab_size
    if size is not None:
        return None if size >= num_tokens else CommonTokens(model, size, always=True)
    few = num_tokens < 2 * COMMON or not isinstance(model, NarrowsVocabulary)
    return None if few else CommonTokens(model, COMMON)
