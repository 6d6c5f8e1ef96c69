"""Ordinary text with the target's hidden states, for a first stage of training heads.

Wertheimer et al. (2024, section 3) train their speculator first on ordinary text, which is cheap and plentiful, and
then on the target's own answers. Not for those answers (`text.py`).
"""

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paceline.errors import InvalidParameter
from paceline.models.base import pages_for
from paceline.models.files.bfloat16 import to_bfloat16
from paceline.models.loaded import LoadedModel
from paceline.models.rows import Part, build_rows
from paceline.training.heads.conversations import Conversation, is_contaminated
from paceline.training.heads.origins import ORDINARY, Origin
from paceline.training.heads.shards import TapStore
from paceline.types import NamedProgress

PIECE = 256
"""Tokens of a document."""
_HEAD = 8
"""First tokens of a document, which count as its prompt and decide whether it is held out."""
_SHARD = 128
"""Documents per shard; an interrupted run resumes after the last one."""


def pieces(ids: Sequence[int]) -> list[np.ndarray]:
    """`ids` cut into documents, [PIECE] int32 each; the remainder is dropped.

    Raises:
        InvalidParameter: the text is shorter than one document.
    """
    found = [np.asarray(ids[start : start + PIECE], np.int32) for start in range(0, len(ids) - PIECE + 1, PIECE)]
    if not found:
        raise InvalidParameter("text", f"has {len(ids)} tokens, a document has {PIECE}", "give a longer text")
    return found


def clean_pieces(ids: Sequence[int], loaded: LoadedModel, benchmark: frozenset[tuple[str, ...]]) -> list[np.ndarray]:
    """`pieces` without those that share a run of words with the benchmark.

    Raises:
        InvalidParameter: as `pieces`, or none is left.
    """
    found, decode, words = pieces(ids), loaded.source.tokenizer.decode, set(benchmark)
    kept = [one for one in found if not (words and is_contaminated(decode(one.tolist()), words))]
    if not kept:
        raise InvalidParameter("text", "is in the benchmark that --exclude names, all of it", "give another text")
    return kept


def long_store(work: Path, documents: Sequence[np.ndarray], taps: Sequence[int]) -> TapStore:
    """The store of these documents, empty or filled by an earlier run; its folder is named by their digest."""
    return TapStore(work / f"long-{text_digest(documents)}", taps)


def text_digest(documents: Sequence[np.ndarray]) -> str:
    """CRC-32 of the documents as hexadecimal digits, for names of folders."""
    return f"{zlib.crc32(np.concatenate(list(documents)).tobytes()):08x}"


def read_long(loaded: LoadedModel, documents: Sequence[np.ndarray], store: TapStore, progress: NamedProgress) -> None:
    """Compute the hidden states of the documents that are not in the store yet, and add them."""
    for start in range(len(store.documents), len(documents), _SHARD):
        progress("text read", start, len(documents))
        part = documents[start : start + _SHARD]
        states = [_states(loaded, ids, store.taps) for ids in part]
        store.add([Conversation(ids, _HEAD, 1.0) for ids in part], states, Origin(ORDINARY))
    progress("text read", len(documents), len(documents))


def _states(loaded: LoadedModel, ids: np.ndarray, taps: tuple[int, ...]) -> np.ndarray:
    """[ids - 1, taps, hidden] hidden states of one document, bfloat16 as uint16."""
    pages = list(range(pages_for(len(ids))))
    rows = build_rows([Part(pages, 0, ids[:-1].tolist(), logits="none")])
    found = loaded.model.forward(rows, loaded.model.new_cache(len(pages)), taps).taps
    return to_bfloat16(np.stack([found[tap] for tap in taps], axis=1))
