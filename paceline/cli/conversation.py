"""`Conversation`: the turns of a chat, and which of them still fit into the model's context.

Knows neither the terminal (`chat.py`) nor the engine: only how to turn messages into token ids.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from paceline.errors import InvalidParameter

Message = Mapping[str, str]


class Conversation:
    """The messages so far.

    Args:
        encode: token ids of messages in the chat template, ready for the answer (`LLM.chat_prompt`).
        max_model_len: largest number of tokens of prompt and answer together.
        reserve: number of tokens to leave for the answer.
        system: the system message, which always stays.
    """

    def __init__(
        self, encode: Callable[[Sequence[Message]], list[int]], max_model_len: int, reserve: int, system: str | None
    ) -> None:
        self._encode = encode
        self._room = max_model_len - min(reserve, max_model_len // 4)
        self._opening = [{"role": "system", "content": system}] if system else []
        self.clear()

    def clear(self) -> None:
        """Forget every turn."""
        self._messages: list[dict[str, str]] = []
        self._first = 0

    def ask(self, text: str) -> tuple[list[int], int]:
        """Add a user message; returns (token ids of the prompt, number of old messages that no longer fit).

        The oldest questions are dropped with their answers until the rest fits and leaves room for an answer.

        Raises:
            InvalidParameter: the message is not valid Unicode or does not fit alone; nothing is changed.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidParameter(
                "message", "is not valid UTF-8", "convert it; the conversation is as it was"
            ) from None
        self._messages.append({"role": "user", "content": text})
        before = self._first
        for first in range(before, len(self._messages), 2):
            ids = self._try(first)
            if ids is not None:
                self._first = first
                return ids, first - before
        self._messages.pop()
        remedy = "shorten it; the conversation is as it was"
        raise InvalidParameter("message", f"it does not fit into {self._room} tokens", remedy)

    def _try(self, first: int) -> list[int] | None:
        """Token ids of the prompt from message `first` on; None if it does not fit."""
        try:
            ids = self._encode([*self._opening, *self._messages[first:]])
        except InvalidParameter as error:
            if error.field != "prompt":  # the template refuses the messages: dropping turns will not help
                self._messages.pop()
                raise
            return None
        return ids if len(ids) <= self._room else None

    def answer(self, text: str) -> None:
        """Add the model's answer."""
        self._messages.append({"role": "assistant", "content": text})

    def take_back(self) -> None:
        """Remove a question without an answer."""
        self._messages.pop()

    def save(self, path: Path) -> int:
        """Write all turns as text, including those that no longer fit; returns their number.

        Raises:
            InvalidParameter: the file cannot be written.
        """
        text = "\n\n".join(f"{m['role']}: {m['content']}" for m in (*self._opening, *self._messages))
        try:
            path.expanduser().write_text(text + "\n", encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InvalidParameter("save", f"{path} cannot be written ({error})", "name another file") from None
        return len(self._messages)
