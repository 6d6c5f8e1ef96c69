"""Log-probabilities of tokens in the forms of OpenAI and vLLM. The answers around them are `answers.py`'s."""

import codecs
import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.serving.models.job import Piece

_IMPOSSIBLE = -9999.0
"""Log-probability written for minus infinity, which JSON lacks; the same as in vLLM."""


def chat_logprobs(pieces: Sequence[Piece]) -> dict[str, Any]:
    """Log-probabilities in chat format: one entry per token, alternatives in descending order."""
    return {"content": [_scored(p) for p in pieces if p.logprob is not None], "refusal": None}


class TextOffsets:
    """Character offsets of tokens in their text; a token inside a character has that character's offset."""

    def __init__(self) -> None:
        self._decoder, self._length = codecs.getincrementaldecoder("utf-8")("replace"), 0

    def next(self, spelling: bytes) -> int:
        """The offset of the next token, whose bytes are `spelling`."""
        before = self._length
        self._length += len(self._decoder.decode(spelling))
        return before


def text_logprobs(pieces: Sequence[Piece], offsets: TextOffsets) -> dict[str, Any]:
    """Log-probabilities in completions format: four lists over tokens; the first token of a prompt has none.

    A token that is no whole text is spelled as OpenAI does, ``bytes:\\xf0\\x9f``, so that it is not taken for another.
    """
    return {
        "tokens": [_key(piece.spelling) for piece in pieces],
        "token_logprobs": [_number(piece.logprob) for piece in pieces],
        "top_logprobs": [None if piece.logprob is None else _by_key(piece) for piece in pieces],
        "text_offset": [offsets.next(piece.spelling) for piece in pieces],
    }


def _by_key(piece: Piece) -> dict[str, float | None]:
    """The most probable tokens, and the token itself; of those that are spelled alike the most probable one."""
    found: dict[str, float | None] = {}
    for spelling, logprob in (*((spelling, logprob) for _, spelling, logprob in piece.top),
                              (piece.spelling, piece.logprob)):  # fmt: skip
        found.setdefault(_key(spelling), _number(logprob))
    return found


def _key(spelling: bytes) -> str:
    try:
        return spelling.decode()
    except UnicodeDecodeError:
        plain = (chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in spelling)
        return f"bytes:{''.join(plain)}"


def mean_logprob(pieces: Sequence[Piece]) -> float:
    """Mean log-probability of a sample's tokens; 0 without tokens."""
    known = [piece.logprob for piece in pieces if piece.logprob is not None]
    return sum(known) / len(known) if known else 0.0


def _scored(piece: Piece) -> dict[str, Any]:
    top = [_entry(spelling, logprob) for _, spelling, logprob in piece.top]
    return _entry(piece.spelling, piece.logprob) | {"top_logprobs": top}


def _entry(spelling: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": spelled(spelling), "logprob": _number(logprob), "bytes": list(spelling)}


def alternatives(piece: Piece) -> Mapping[str, Any] | None:
    """Alternatives in vLLM's prompt format: by token id, including the token itself."""
    if piece.logprob is None:
        return None
    told = {str(token_id): {"logprob": _number(logprob), "rank": rank, "decoded_token": spelled(spelling)}
            for rank, (token_id, spelling, logprob) in enumerate(piece.top, 1)}  # fmt: skip
    own = {"logprob": _number(piece.logprob), "rank": piece.rank, "decoded_token": spelled(piece.spelling)}
    return {str(piece.token_id): own} | told


def _number(logprob: float | None) -> float | None:
    return None if logprob is None else logprob if math.isfinite(logprob) else _IMPOSSIBLE


def spelled(spelling: bytes) -> str:
    """A token's bytes as text; parts of characters become U+FFFD."""
    return spelling.decode("utf-8", "replace")
