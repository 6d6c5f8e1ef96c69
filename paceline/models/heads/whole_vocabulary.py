"""Lets a head of a reduced draft vocabulary name every token, for programs that use the target's whole output head.

The output head is the target's own, so logits of further tokens need no new weights; a bias of DSpark has none for them
and gives them zero. Not for heads with an output head of their own.
"""

from dataclasses import replace

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.heads.record import HeadRecord

_BIAS = "markov_head.markov_w2.weight"


def naming_all(record: HeadRecord) -> HeadRecord:
    """`record` without a draft vocabulary. Raises InvalidParameter where it has an output head of its own."""
    config, ids = record.config, record.draft_ids
    if ids is None:
        return record
    if config.owns_head:
        problem = f"has an output head of its own, for {len(ids)} of {config.target.vocab_size} tokens"
        raise InvalidParameter("head", problem, "convert a head that uses the target's")
    tensors = dict(record.tensors)
    if _BIAS in tensors:
        rows = tensors[_BIAS]
        tensors[_BIAS] = np.zeros((config.target.vocab_size, rows.shape[1]), rows.dtype)
        tensors[_BIAS][ids] = rows
    whole = replace(config, draft_vocab_size=config.target.vocab_size)
    return replace(record, config=whole, tensors=tensors, draft_ids=None)
