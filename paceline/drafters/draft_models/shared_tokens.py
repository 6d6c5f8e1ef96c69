"""`SharedTokens`: the common tokens of two vocabularies, and the translation of laws between them.

Ordinary tokens are matched by their bytes, special tokens by their text, and end tokens with each other. Not the place
for text that is tokenised differently (`retokenize.py`).
"""

from collections.abc import Collection

import numpy as np

from paceline.models.resolve import ModelSource
from paceline.sampling.law import Law

NOT_SHARED = -1
_MANY = 256
"""Laws over this number of tokens or more are sorted by scattering them, in a tenth of the time."""


class SharedTokens:
    """A one-to-one map between parts of two vocabularies.

    Args:
        target, draft: the models whose vocabularies they are.

    Attributes:
        draft_ids: [n] int64, draft ids of the shared tokens, ascending.
        target_ids: [n] int64, their target ids.
    """

    def __init__(self, target: ModelSource, draft: ModelSource) -> None:
        ours, theirs = _ids_by_text(target), _ids_by_text(draft)
        pairs = {theirs[text]: ours[text] for text in theirs.keys() & ours.keys()}
        taken = set(pairs.values())
        for theirs_end, ours_end in zip(draft.eos_token_ids, target.eos_token_ids, strict=False):
            if theirs_end not in pairs and ours_end not in taken:
                pairs[theirs_end] = ours_end
        self.draft_ids = np.array(sorted(pairs), dtype=np.int64)
        self.target_ids = np.array([pairs[i] for i in sorted(pairs)], dtype=np.int64)
        self._target_of = _table(self.draft_ids, self.target_ids)
        self._draft_of = _table(self.target_ids, self.draft_ids)

    def __len__(self) -> int:
        return len(self.draft_ids)

    def to_target(self, draft_id: int) -> int:
        """The target's id of a shared token."""
        return int(self._target_of[draft_id])

    def to_draft(self, target_id: int) -> int:
        """The draft's id of a shared token."""
        return int(self._draft_of[target_id])

    def shared_of(self, target_ids: Collection[int]) -> list[int]:
        """The draft ids of those of `target_ids` that are shared."""
        return self.draft_ids[np.isin(self.target_ids, list(target_ids))].tolist()

    def law_to_target(self, law: Law) -> Law:
        """Translate a law over shared draft ids to target ids."""
        return _renamed(law, self._target_of)

    def law_to_draft(self, law: Law) -> Law:
        """Translate a law over shared target ids to draft ids."""
        return _renamed(law, self._draft_of)

    def spread(self, logits: np.ndarray) -> np.ndarray:
        """Draft logits [draft vocab] over target ids [largest shared id + 1]; -inf where nothing is shared.

        The softmax of the result is the draft's law restricted to shared tokens and renormalised there.
        """
        spread = np.full(len(self._draft_of), -np.inf, dtype=logits.dtype)
        spread[self.target_ids] = logits[self.draft_ids]
        return spread


def _ids_by_text(source: ModelSource) -> dict[tuple[bytes, bool], int]:
    """(bytes, is it special) to the lowest id that spells them, of the tokens that the model has logits for."""
    ids: dict[tuple[bytes, bool], int] = {}
    tokenizer = source.tokenizer
    for token_id in range(min(tokenizer.vocab_size, source.checkpoint.config.vocab_size)):
        data = tokenizer.token_bytes(token_id)
        if data:
            ids.setdefault((data, token_id in tokenizer.special_token_ids), token_id)
    return ids


def _table(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """An array that holds values[i] at keys[i] and NOT_SHARED elsewhere."""
    table = np.full(int(keys.max(initial=-1)) + 1, NOT_SHARED, dtype=np.int64)
    table[keys] = values
    return table


def _renamed(law: Law, table: np.ndarray) -> Law:
    tokens = table[law.tokens]
    if len(tokens) < _MANY:
        order = np.argsort(tokens)
        return Law(tokens[order], law.probs[order])
    dense = np.zeros(int(tokens.max()) + 1, dtype=law.probs.dtype)
    dense[tokens] = law.probs
    return Law.from_dense(dense)
