"""Incremental retokenisation between two vocabularies: `Follower` of a growing text, `Respeller` of drafts.

Tokenizers work on whole words, so new text may change the last tokens of the old. Both classes keep the text since a
safe position (a blank before a word) and retokenise only that part, so a step costs as much as its new text. Exactness
does not depend on this module: a wrong tokenisation gives a bad draft, which the target rejects.
"""

import codecs
from collections.abc import Sequence

from paceline.drafters.same_text import CHECKED_TAIL, goes_on
from paceline.models.resolve import ModelSource
from paceline.models.text.tokenizer import Tokenizer

_CONTEXT = 24
"""Characters before new text that are retokenised with it."""
_LONGEST_OPEN = 512
"""Characters without a safe position after which any position is used (base64, scripts without blanks)."""
_WORDS = 16
"""Number of last tokens in which the beginning of the last word is searched."""


class Continuing:
    """Encodes text that follows other text: without special tokens, and without a tokenizer's leading blank."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._adds_blank = self._spelled(tokenizer.encode("a", add_special_tokens=False)) == b" a"

    def __call__(self, text: str) -> list[int]:
        if not self._adds_blank:
            return self.tokenizer.encode(text, add_special_tokens=False)
        if text.startswith(" "):
            return self.tokenizer.encode(text[1:], add_special_tokens=False)
        tokens = self.tokenizer.encode(text, add_special_tokens=False)
        return tokens[1:] if tokens and self.tokenizer.token_bytes(tokens[0]) == b" " else tokens

    def _spelled(self, tokens: Sequence[int]) -> bytes:
        return b"".join(self.tokenizer.token_bytes(token) for token in tokens)


class Follower:
    """One request's text, appended in the target's tokens and kept in the draft's.

    Args:
        target: the target's tokenizer.
        encode: of the draft.

    Attributes:
        tokens: the text in the draft's tokens, with BOS where the draft uses one.
    """

    def __init__(self, target: Tokenizer, encode: Continuing) -> None:
        self._target, self._encode = target, encode
        self.tokens = encode.tokenizer.encode("", add_special_tokens=True)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_read = 0
        self._tail: list[int] = []
        self._open_text, self._open_start = "", len(self.tokens)
        self._at_beginning = True

    @property
    def is_whole(self) -> bool:
        """False while the text ends inside a character, where the draft cannot continue it."""
        return not self._decoder.getstate()[0]

    def continues(self, token_ids: Sequence[int]) -> bool:
        """Whether `token_ids` continues the text read so far, judged by its length and last tokens."""
        return goes_on(token_ids, self._num_read, self._tail)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append the tokens of `token_ids` that are new."""
        new = token_ids[self._num_read :]
        if not self._num_read and new and new[0] == self._target.bos_token_id:
            new = new[1:]
        text = self._decoder.decode(b"".join(self._target.token_bytes(token) for token in new))
        self._num_read = len(token_ids)
        self._tail = list(token_ids[-CHECKED_TAIL:])
        if text:
            self._write(self._open_text + text)

    def _write(self, text: str) -> None:
        """Replace the tokens since the safe position by those of `text`, and advance the safe position.

        Where a text without safe positions is split depends on the text alone, so that reading it again gives the same
        tokens.
        """
        del self.tokens[self._open_start :]
        while len(text) > _LONGEST_OPEN:
            most = _LONGEST_OPEN - _CONTEXT
            text = self._close(text, safe_place(text, most) or most)
        if cut := safe_place(text, len(text) - _CONTEXT):
            text = self._close(text, cut)
        self._open_text, self._open_start = text, len(self.tokens)
        self.tokens += self._encoded(text)

    def _close(self, text: str, cut: int) -> str:
        """Fix the tokens of `text` up to `cut`; returns the rest of the text."""
        self.tokens += self._encoded(text[:cut])
        self._at_beginning = False
        return text[cut:]

    def _encoded(self, text: str) -> list[int]:
        if self._at_beginning:
            return self._encode.tokenizer.encode(text, add_special_tokens=False)
        return self._encode(text)


class Respeller:
    """Retokenises the draft's continuation with the target's tokenizer.

    Args:
        target, draft: the two models. Where the draft ends its answer, the target's first end token is proposed.
    """

    def __init__(self, target: ModelSource, draft: ModelSource) -> None:
        self._encode = Continuing(target.tokenizer)
        self._target, self._draft = target.tokenizer, draft.tokenizer
        self._draft_ends, self._end = draft.eos_token_ids, list(target.eos_token_ids[:1])

    def __call__(self, committed: Sequence[int], drafted: Sequence[int]) -> list[int]:
        """Target tokens after `committed` (target ids) for the text of `drafted` (draft ids), as far as possible."""
        words, ended = self._text_of(drafted)
        tokens = self._after(committed, words) if words else []
        spelled = _matching(tokens, words.encode(), self._target)
        return spelled + self._end if ended and len(spelled) == len(tokens) else spelled

    def _text_of(self, drafted: Sequence[int]) -> tuple[str, bool]:
        """(text of the drafted tokens up to the first special one, whether that one is an end token)."""
        data, ended = b"", False
        for token in drafted:
            if token in self._draft_ends or token in self._draft.special_token_ids:
                ended = token in self._draft_ends
                break
            data += self._draft.token_bytes(token)
        return codecs.getincrementaldecoder("utf-8")("replace").decode(data), ended

    def _after(self, committed: Sequence[int], words: str) -> list[int]:
        """Tokens of `words`, tokenised together with the end of the committed text where that keeps its tokens."""
        tail, text = self._tail(committed)
        together = self._encode(text + words)
        if tail and together[: len(tail)] == tail:
            return together[len(tail) :]
        return self._encode(words)

    def _tail(self, committed: Sequence[int]) -> tuple[list[int], str]:
        """The last few committed tokens, from one that begins a word, and their text."""
        tail: list[int] = []
        for token in reversed(committed[-_WORDS:]):
            if token in self._target.special_token_ids:
                break
            tail.insert(0, token)
            if len(tail) > 1 and self._target.token_bytes(token).startswith(b" "):
                break
        data = b"".join(self._target.token_bytes(token) for token in tail)
        return tail, data.decode("utf-8", "replace")


def safe_place(text: str, before: int) -> int:
    """The last position up to `before` where a blank between two words begins; 0 without one."""
    for place in range(min(before, len(text) - 2), 0, -1):
        if text[place] == " " and not text[place - 1].isspace() and not text[place + 1].isspace():
            return place
    return 0


def _matching(tokens: Sequence[int], data: bytes, tokenizer: Tokenizer) -> list[int]:
    """The longest prefix of `tokens` whose bytes are a prefix of `data`."""
    kept: list[int] = []
    place = 0
    for token in tokens:
        piece = tokenizer.token_bytes(token)
        if not piece or not data.startswith(piece, place):
            break
        kept.append(token)
        place += len(piece)
    return kept
