"""`Message`: one turn of a conversation as clients send it, and what of it a chat template is given."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from paceline.errors import InvalidParameter
from paceline.models.text.messages import known_role

_SAID_OTHERWISE = ("tool_calls", "function_call", "refusal", "reasoning_content", "reasoning")
"""Fields of an assistant's turn that may stand in place of its content."""


class Part(BaseModel):
    """A piece of a message."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Message(BaseModel):
    """One turn of a conversation; fields a template may know (``name``, ``tool_calls``) are kept."""

    model_config = ConfigDict(extra="allow")
    role: str
    content: str | list[Part] | None = None

    def flat(self, where: str) -> dict[str, Any]:
        """The message with its content as one text.

        Raises:
            InvalidParameter: an unknown role, a part that is no text, or no content in a turn that must have one.
        """
        extra = {key: value for key, value in (self.model_extra or {}).items() if value is not None}
        return {"role": known_role(where, self.role), "content": self._text(where), **extra}

    def _text(self, where: str) -> str:
        if isinstance(self.content, str):
            return self.content
        is_absent = "content" not in self.model_fields_set
        if self.role == "assistant":  # which may call tools and say nothing
            is_missing = is_absent and not any((self.model_extra or {}).get(name) for name in _SAID_OTHERWISE)
        else:
            is_missing = is_absent or (not self.content and self.role != "tool")
        if is_missing:
            raise InvalidParameter(f"{where}.content", "is missing", "give a text, or a list of text parts")
        for number, part in enumerate(self.content or ()):
            if part.type not in ("text", "input_text", "output_text", "refusal"):
                remedy = "send text parts only: this model reads no images, sounds or files"
                raise InvalidParameter(f"{where}.content[{number}]", f"a part of type {part.type!r}", remedy)
            if part.text is None and part.refusal is None:
                problem = f"a part of type {part.type!r} without its text"
                raise InvalidParameter(f"{where}.content[{number}]", problem, "give it as text")
        return "".join(part.text or part.refusal or "" for part in self.content or ())


def check_text(field: str, text: str) -> None:
    """Raises InvalidParameter for what no UTF-8 file could hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidParameter(field, "holds half a surrogate pair", "send valid Unicode") from None
