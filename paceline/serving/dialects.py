"""`Dialect`: another protocol as a translation of chat completions.

What it asks becomes a `ChatRequest`, what chat completions answer becomes its bodies and events. OpenAI's responses are
`responses.py`, Anthropic's messages `anthropic.py`.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from paceline.errors import InvalidParameter
from paceline.serving.protocol import ChatRequest

Body = dict[str, Any]
SAME = (
    "model", "temperature", "top_p", "top_k", "stream", "seed", "speculative", "prediction", "paceline", "metadata",
    "user", "store", "tool_choice", "parallel_tool_calls", "service_tier", "timeout", "top_logprobs",
    "cache_salt", "priority",
)  # fmt: skip
"""Fields that all protocols call the same."""


class AnyBody(BaseModel):
    """A JSON object."""

    model_config = ConfigDict(extra="allow")


class Dialect:
    """A protocol in terms of chat completions."""

    def request(self, body: Body) -> Body:
        """The chat completion that `body` asks for. Raises InvalidParameter."""
        raise NotImplementedError

    def answer(self, chat: Body) -> Body:
        """A whole answer."""
        raise NotImplementedError

    def begin(self, model: str) -> list[Body]:
        """Events before the first text; each has its ``type``."""
        raise NotImplementedError

    def text(self, delta: str) -> Body:
        """The event of a piece of text."""
        raise NotImplementedError

    def end(self, chat: Body) -> list[Body]:
        """Events after the last text, from the whole answer."""
        raise NotImplementedError

    def chat_request(self, body: AnyBody) -> ChatRequest:
        """The request for chat completions. Raises InvalidParameter, which names the field."""
        try:
            return ChatRequest.model_validate(self.request(dict(body.model_extra or {})))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            field = str(first["loc"][0]) if first["loc"] else "body"
            raise InvalidParameter(field, first["msg"][:200], "see docs/serving.md") from None

    async def events(self, pieces: AsyncIterator[Body], model: str) -> AsyncIterator[Body]:
        """A stream's events, from those of chat completions (of one choice, with usage at the end)."""
        for each in self.begin(model):
            yield each
        texts: list[str] = []
        calls: list[Body] = []
        last: Body = {"finish_reason": None}
        usage: Body = {}
        async for piece in pieces:
            usage = piece.get("usage") or usage
            for choice in piece.get("choices", ()):
                delta, last = choice["delta"], choice
                calls += delta.get("tool_calls", [])
                if delta.get("content"):
                    texts.append(delta["content"])
                    yield self.text(delta["content"])
        message = {"content": "".join(texts), "tool_calls": calls}
        chat = {
            "model": model,
            "choices": [{"message": message, "finish_reason": last["finish_reason"]}],
            "usage": usage,
        }
        for each in self.end(chat):
            yield each


def only(body: Body, known: Sequence[str]) -> None:
    """Raise InvalidParameter for a field that is neither `known` nor null."""
    for key, value in body.items():
        if key not in known and value is not None:
            raise InvalidParameter(key, "is not served", "leave it out")


def same(body: Body) -> Body:
    """The fields that chat completions call the same."""
    return {key: body[key] for key in SAME if key in body}


def listed(body: Body, field: str) -> list[Any]:
    """A list that is not empty. Raises InvalidParameter."""
    value = body.get(field)
    if not isinstance(value, list) or not value:
        raise InvalidParameter(field, "is no list, or empty", "send at least one")
    return value


def tool_of(tool: Any, schema: str) -> Body:
    """A tool as chat has it."""
    if not isinstance(tool, Mapping) or tool.get("type", "function") not in ("function", "custom"):
        raise InvalidParameter("tools", "a tool of the server's", "send functions of your own")
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get(schema)}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}
