"""The draft vocabulary: the target ids of a head's outputs, in files and in records.

Files store offsets (``d2t``: target id = i + d2t[i]) or ids; records hold ids. Other interpretations, which some
programs silently accept, are refused.
"""

import hashlib

import numpy as np

from paceline.errors import InvalidParameter

_TELLING = 256
"""Draft ids among which two are neighbours in every vocabulary, so that offsets repeat; target ids never do."""


def from_offsets(offsets: np.ndarray, draft_size: int, vocab_size: int, source: object) -> np.ndarray:
    """[draft_size] int32 target ids from the file's ``d2t``.

    Raises:
        InvalidParameter: the length differs from `draft_size`, or ids are repeated or outside the vocabulary.
    """
    if offsets.shape != (draft_size,):
        raise InvalidParameter(
            f"{source}: d2t", f"has {offsets.size} entries, the config says draft_vocab_size={draft_size}",
            "config and weights are of different heads: get both again",
        )  # fmt: skip
    offsets = _whole(offsets, f"{source}: d2t")
    ids = np.arange(draft_size) + offsets
    outside = ids.max() >= vocab_size > offsets.max()
    absolute = offsets.min() >= 0 and len(np.unique(offsets)) == draft_size and (outside or draft_size >= _TELLING)
    if absolute:
        raise InvalidParameter(
            f"{source}: d2t", "holds target ids, where the format has offsets from the draft id",
            "subtract 0, 1, 2, ... from it and save the head again",
        )  # fmt: skip
    return checked_ids(ids, vocab_size, f"{source}: d2t")


def checked_ids(ids: np.ndarray, vocab_size: int, field: str) -> np.ndarray:
    """`ids` as int32, after checking that they are distinct target ids.

    Raises:
        InvalidParameter: naming `field`.
    """
    ids = _whole(ids, field)
    if ids.ndim != 1 or ids.size == 0 or ids.min() < 0 or ids.max() >= vocab_size:
        raise InvalidParameter(
            field, f"leads out of the target's vocabulary of {vocab_size}", "use a head of this target"
        )
    if len(np.unique(ids)) != ids.size:
        raise InvalidParameter(field, "names a target token twice", "get the head again from its source")
    return ids.astype(np.int32)


def _whole(values: np.ndarray, field: str) -> np.ndarray:
    """`values` as int64. Raises InvalidParameter, naming `field`, for numbers that are not whole."""
    if values.dtype.kind not in "iu":
        raise InvalidParameter(field, f"holds {values.dtype} numbers, where ids are whole", "get the head again")
    return values.astype(np.int64)


def to_offsets(ids: np.ndarray) -> np.ndarray:
    """[n] int64 offsets, the tensor ``d2t`` of files."""
    return ids.astype(np.int64) - np.arange(ids.size)


def to_mask(ids: np.ndarray, vocab_size: int) -> np.ndarray:
    """[vocab_size] bool, True for drafted ids: the tensor ``t2d`` of files."""
    mask = np.zeros(vocab_size, bool)
    mask[ids] = True
    return mask


def ids_digest(ids: np.ndarray | None) -> str:
    """SHA-256 of the ids, to distinguish draft vocabularies of the same size; empty for the whole vocabulary."""
    return "" if ids is None else hashlib.sha256(np.ascontiguousarray(ids, np.int32).tobytes()).hexdigest()
