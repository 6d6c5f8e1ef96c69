"""Answers in OpenAI's harmony format (gpt-oss), told as others tell theirs: ``<think>`` and ``<tool_call>`` tags.

An answer is several messages, each ``<|channel|>NAME<|message|>TEXT`` up to ``<|end|>``, ``<|call|>`` or
``<|return|>``. Thoughts are on the channel ``analysis``, a call of a tool is addressed ``to=functions.NAME``, and all
else is the answer. Not for prompts, which the model's chat template writes.
"""

import json
import re
from collections.abc import Sequence

from paceline.models.text.tokenizer import StreamDecoder, Tokenizer

_NAMES = _START, _CHANNEL, _MESSAGE, *_ENDS = (
    "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"
)  # fmt: skip
_RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")
_FIRST = re.compile(r"\s*(?:t|to|to=[\w.-]*\s*)?")
"""The first text of an answer while it may be a recipient: the ``<|start|>assistant`` before it is in the prompt."""


def decoder_of(tokenizer: Tokenizer) -> StreamDecoder:
    """A decoder of one answer of the model."""
    return HarmonyDecoder(tokenizer) if tokenizer.speaks_harmony else StreamDecoder(tokenizer)


def _is_thought(header: str) -> bool:
    """Whether a message with that header, in which a tab stands for <|channel|>, is a thought."""
    return header.rpartition("\t")[2].split(maxsplit=1)[:1] == ["analysis"]


def places_of_answer(tokens: Sequence[str], begun: bool) -> list[int] | None:
    """Which of the `tokens` of an answer are neither headers nor thoughts nor calls; None if none opens a channel.

    Args:
        begun: the first of them go on with a message that is neither.
    """
    if _CHANNEL not in tokens:
        return None
    places: list[int] = []
    is_told, header = begun, None if begun else ""  # an answer may begin with the recipient of a call
    for place, token in enumerate(tokens):
        if token in (_START, _CHANNEL):
            header = (header or "") + "\t" * (token == _CHANNEL)
        elif header is None:
            places += [place] * is_told
            is_told = is_told and token not in _ENDS
        elif token == _MESSAGE:
            is_told, header = _RECIPIENT.search(header) is None and not _is_thought(header), None
        else:
            header += token
    return places


class HarmonyDecoder(StreamDecoder):
    """Decodes an answer that may be in the harmony format; any other text is decoded as it is."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer)
        start, channel, message, *ends = map(tokenizer.control_id, _NAMES)
        self._begins, self._channel, self._message, self._ends = {start, channel}, channel, message, set(ends)
        self._header: str | None = None  # the text of a message's header so far, in which a tab stands for <|channel|>
        self._first: str | None = ""  # the first text, while it may belong to a header
        self._thinks = self._calls = self._has_told = False

    def push(self, token_id: int) -> str:
        """See `StreamDecoder.push`; headers become tags."""
        if self._first is not None and token_id in (*self._begins, self._message):
            self._header, self._first = self._first, None
        if token_id in self._begins:
            rest = super().flush() if self._header is None else ""
            self._header = (self._header or "") + "\t" * (token_id == self._channel)
            return rest
        if token_id in self._ends:
            return self.flush()
        if self._header is None:
            return self._told(super().push(token_id))
        if token_id != self._message:
            self._header += " " if token_id in self._skipped else super().push(token_id)
            return ""
        header, self._header = self._header, None
        return self._open(header)

    def flush(self) -> str:
        """See `StreamDecoder.flush`; closes a call that is still open."""
        first, self._first = self._first or "", None
        return first + super().flush() + self._end()

    def _told(self, text: str) -> str:
        """`text` of a message, unless it is the first one and may be a recipient."""
        if self._first is not None:
            self._first += text
            if _FIRST.fullmatch(self._first):
                return ""
            text, self._first = self._first, None
        self._has_told = self._has_told or bool(text)
        return text

    def _open(self, header: str) -> str:
        """What comes before the text of a message with that header."""
        to, before = _RECIPIENT.search(header), self._end()
        if to is None and _is_thought(header):
            before += "\n" if self._thinks else "<think>"
            self._thinks = True
            return before
        if self._thinks:
            before, self._thinks = before + "</think>", False
        before += "\n\n" if before.endswith("</think>") or self._has_told else ""
        self._calls = to is not None
        return before + f'<tool_call>{{"name": {json.dumps(to[1])}, "arguments": ' if to else before

    def _end(self) -> str:
        """What comes after the text of a message."""
        closing, self._calls = "}</tool_call>" if self._calls else "", False
        return closing
