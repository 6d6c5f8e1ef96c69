"""`Message`: one turn of a conversation as clients send it, and what of it a chat template is given."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from paceline.errors import InvalidParameter
from paceline.models.text.messages import known_role


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
            InvalidParameter: an unknown role, or a part that is no text.
        """
        extra = {key: value for key, value in (self.model_extra or {}).items() if value is not None}
        return {"role": known_role(where, self.role), "content": self._text(where), **extra}

    def _text(self, where: str) -> str:
        if not isinstance(self.content, list):
            return self.content or ""
        for number, part in enumerate(self.content):
            if part.type not in ("text", "input_text", "output_text", "refusal"):
                remedy = "send text parts only: this model reads no images, sounds or files"
                raise InvalidParameter(f"{where}.content[{number}]", f"a part of type {part.type!r}", remedy)
        return "".join(part.text or part.refusal or "" for part in self.content)


def check_text(field: str, text: str) -> None:
    """Raises InvalidParameter for what no UTF-8 file could hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidParameter(field, "holds half a surrogate pair", "send valid Unicode") from None
