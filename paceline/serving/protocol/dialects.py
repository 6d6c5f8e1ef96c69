"""`Dialect`: another protocol as a translation of chat completions.

What it asks becomes a `ChatRequest`, what chat completions answer becomes its bodies and events. OpenAI's responses are
`responses.py`, Anthropic's messages `anthropic.py`.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from paceline.errors import InvalidParameter
from paceline.models.text.harmony import places_of_answer
from paceline.models.text.thought_tags import THOUGHT_TAGS
from paceline.serving.protocol.fields import not_served, wrong_field
from paceline.serving.protocol.openai import ChatRequest

Body = dict[str, Any]
_LONGEST_TAG = max(len(tags.closing) for tags in THOUGHT_TAGS)
_PLACE = re.compile(r"[.\[]")
"""What the place inside a field begins with."""
SAME = (
    "model", "temperature", "top_p", "top_k", "stream", "seed", "speculative", "prediction", "paceline", "metadata",
    "user", "store", "tool_choice", "parallel_tool_calls", "service_tier", "timeout",
    "cache_salt", "priority",
)  # fmt: skip
"""Fields that all protocols call the same."""


class AnyBody(BaseModel):
    """A JSON object."""

    model_config = ConfigDict(extra="allow")


Kind = Literal["thoughts", "text", "call"]
"""What a part of an answer is."""
_FIELDS: tuple[tuple[Kind, str], ...] = (("thoughts", "reasoning_content"), ("text", "content"))
"""Of a streamed message."""


class Dialect:
    """A protocol in terms of chat completions: an answer is a head, parts that come one after the other, and an end.

    Attributes:
        path: where it is served.
        names: what it calls fields of chat completions, where that is something else.
    """

    path: ClassVar[str] = ""
    names: ClassVar[Mapping[str, str]] = {}

    def request(self, body: Body) -> Body:
        """The chat completion that `body` asks for. Raises InvalidParameter."""
        raise NotImplementedError

    def answer(self, chat: Body) -> Body:
        """A whole answer."""
        raise NotImplementedError

    def begin(self, model: str, usage: Body) -> list[Body]:
        """Events before the first part; each has its ``type``."""
        raise NotImplementedError

    def open(self, kind: Kind, index: int, call: Body | None) -> list[Body]:
        """Events that open part number `index`; `call` is OpenAI's, for one."""
        raise NotImplementedError

    def more(self, kind: Kind, index: int, delta: str, scores: Sequence[Body]) -> list[Body]:
        """Events of a further piece of the part: of a call, its arguments; of a text, its log-probabilities too."""
        raise NotImplementedError

    def close(self, kind: Kind, index: int, whole: str) -> list[Body]:
        """Events that close the part, of which `whole` is the text."""
        raise NotImplementedError

    def end(self, model: str, choice: Body, usage: Body) -> list[Body]:
        """Events after the last part; `choice` is the last one that was told, with the reason of its end."""
        raise NotImplementedError

    @staticmethod
    def error(body: Body, status: int) -> Body:
        """OpenAI's error `body` as the protocol has it in a response of `status`, or of 500 where a stream fails."""
        return body

    @classmethod
    def error_event(cls, body: Body) -> Body:
        """The event that ends a stream with OpenAI's error `body`."""
        return {"type": "error"} | cls.error(body, 500)

    def sent_name(self, field: str) -> str:
        """What the client called a field of chat completions."""
        return self.names.get(_PLACE.split(field, maxsplit=1)[0], field)

    def chat_request(self, body: AnyBody) -> ChatRequest:
        """The request for chat completions. Raises InvalidParameter, which names the field as the client does."""
        asked = self.request(dict(body.model_extra or {}))
        try:
            return ChatRequest.model_validate(asked)
        except ValidationError as error:
            wrong = wrong_field(error)
            raise wrong.about(self.sent_name(wrong.field)) from None

    async def events(self, pieces: AsyncIterator[Body], model: str) -> AsyncIterator[Body]:
        """A stream's events, from those of chat completions (of one choice, with usage in each).

        That of an error is the last.
        """
        last: Body = {"finish_reason": None}
        usage: Body = {}
        has_begun = False
        parts = _Parts(self)
        async for piece in pieces:
            if "error" in piece:
                yield self.error_event(piece)
                return
            if not has_begun:
                has_begun = True
                for each in self.begin(model, piece.get("usage") or {}):
                    yield each
            usage = piece.get("usage") or usage
            for choice in piece.get("choices", ()):
                last = choice
                for each in parts.read(choice["delta"], scores_of(choice)):
                    yield each
        for each in (*parts.finish(), *self.end(model, last, usage)):
            yield each


class _Parts:
    """Follows the parts of a streamed answer: which is open, and what it says."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._kind: Kind | None = None
        self._index, self._texts = -1, list[str]()
        self._scores, self._has_thought, self._has_text = list[Body](), False, False

    def read(self, delta: Body, scores: Sequence[Body]) -> list[Body]:
        """Events of what a chunk adds to the message, with the log-probabilities of its tokens."""
        events: list[Body] = []
        self._scores += scores
        for kind, field in _FIELDS:
            if delta.get(field):
                events += [] if self._kind == kind else self._open(kind)
                events += self._more(delta[field], self._told(kind))
        for call in delta.get("tool_calls", ()):
            scores, arguments = self._told("call"), call["function"]["arguments"]
            events += self._open("call", call) if "id" in call else []
            events += self._more(arguments, scores) if arguments else []
        return events

    def _told(self, kind: Kind) -> Sequence[Body]:
        """The log-probabilities of the tokens since the last text that belong to a further piece of text."""
        if kind == "thoughts":
            self._has_thought = True
            return ()
        scores = of_text(self._scores, self._has_thought, self._has_text)
        self._scores, self._has_thought, self._has_text = [], False, kind == "text"
        return scores

    def finish(self) -> list[Body]:
        """Events that end the message, with the log-probabilities of last tokens that add no text."""
        is_left = self._kind == "text" and self._scores
        return [*(self._more("", self._told("text")) if is_left else ()), *self.close()]

    def close(self) -> list[Body]:
        """Events that close the part that is open, if one is."""
        if self._kind is None:
            return []
        closing = self._dialect.close(self._kind, self._index, "".join(self._texts))
        self._kind = None
        return closing

    def _open(self, kind: Kind, call: Body | None = None) -> list[Body]:
        closing = self.close()
        self._kind, self._texts = kind, []
        self._index += 1
        return [*closing, *self._dialect.open(kind, self._index, call)]

    def _more(self, delta: str, scores: Sequence[Body]) -> list[Body]:
        assert self._kind is not None
        self._texts.append(delta)
        return self._dialect.more(self._kind, self._index, delta, scores)


def scores_of(choice: Body) -> Sequence[Body]:
    """The log-probabilities of a choice's tokens, as chat tells them."""
    return (choice.get("logprobs") or {}).get("content") or ()


def of_text(scores: Sequence[Body], has_thought: bool, begun: bool = False) -> Sequence[Body]:
    """Those of the tokens that belong to the text of an answer.

    On the channels of gpt-oss that is all but headers, thoughts and calls; else, where there is a thought, what comes
    after the tag that ends it.

    Args:
        begun: the first of them go on with a text.
    """
    places = places_of_answer([each["token"] for each in scores], begun)
    if places is not None:
        return [scores[place] for place in places]
    text = ""
    for number, each in enumerate(scores if has_thought else (), 1):
        text = text[-_LONGEST_TAG:] + each["token"]
        if any(tags.closing in text for tags in THOUGHT_TAGS):
            return scores[number:]
    return scores


def only(body: Body, known: Sequence[str]) -> None:
    """Raise InvalidParameter for a field that is neither `known` nor null."""
    for key, value in body.items():
        if key not in known and value is not None:
            raise not_served(key, known)


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
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get(schema),
                "strict": tool.get("strict")}  # fmt: skip
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}
