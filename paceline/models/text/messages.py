"""Conversations as users of OpenAI's and vLLM's interfaces write them, checked and put into the form templates expect.

A content may be a list of parts, an assistant turn that calls tools may have none, and calls have their arguments as
JSON in a text. Not for rendering (`chat_template.py`).
"""

import json
import re
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import InvalidParameter

_ROLES = ("system", "developer", "user", "assistant", "tool")
_ARGUMENTS = ("messages", "tools", "add_generation_prompt", "continue_final_message")
"""Names that a template is given in another way than as a variable."""
_REMEDY = "give a list of {'role': ..., 'content': ...}"
_TEXTS = ("text", "input_text", "output_text")
_THOUGHTS = re.compile(r"\A<think>(.*?)(?:</think>\s*|\Z)", re.DOTALL)


def plain_messages(messages: Any) -> list[dict[str, Any]]:
    """The turns with their contents as single texts and the arguments of calls as objects.

    Raises:
        InvalidParameter: no list of turns, a turn without a role or a content, or a part that is no text.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise InvalidParameter("messages", f"{reprlib.repr(messages)} is no list of messages", _REMEDY)
    if not messages:
        raise InvalidParameter("messages", "the list is empty", _REMEDY)
    return [_plain(f"messages[{number}]", message) for number, message in enumerate(messages)]


def known_role(where: str, role: str) -> str:
    """The role of the message at `where` as templates know it: a developer's message is a system message.

    Raises:
        InvalidParameter: the role is unknown.
    """
    if role not in _ROLES:
        raise InvalidParameter(f"{where}.role", f"{role[:40]!r} is unknown", f"use {', '.join(_ROLES)}")
    return "system" if role == "developer" else role


def check_variables(variables: Any) -> None:
    """Raise InvalidParameter for `chat_template_kwargs` that are no mapping, or name what is given in another way."""
    if not isinstance(variables, Mapping):
        raise InvalidParameter("chat_template_kwargs", f"{reprlib.repr(variables)} is no mapping", "give a mapping")
    for name in _ARGUMENTS:
        if name in variables:
            raise InvalidParameter("chat_template_kwargs", f"holds {name!r}", f"give {name} beside it, by that name")


def check_continued(last: Mapping[str, Any]) -> None:
    """Raise InvalidParameter for a final message that an answer cannot continue."""
    if last["role"] != "assistant" or last.get("tool_calls"):
        problem = "the final message is no text of the assistant's"
        raise InvalidParameter("continue_final_message", problem, "end with one, or leave it out")


def thoughts_apart(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The turn with the assistant's thoughts, tagged or as `reasoning_content`, where gpt-oss's template expects them.

    It repeats them, as `thinking`, before the calls of a turn that says nothing else, and leaves out those before an
    answer. Models that write the tags have templates that know them.
    """
    content = message.get("content") or ""
    if message.get("role") != "assistant" or not isinstance(content, str):
        return message
    tagged = _THOUGHTS.match(content)
    said = content[tagged.end() :] if tagged else content
    thoughts = message.get("reasoning_content") or (tagged[1] if tagged else "")
    if thoughts and not said and message.get("tool_calls"):
        return {"thinking": thoughts, **message, "content": ""}
    return {**message, "content": said} if tagged else message


def _plain(name: str, message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise InvalidParameter(name, f"{reprlib.repr(message)} is no message", "give {'role': ..., 'content': ...}")
    if not isinstance(message.get("role"), str):
        raise InvalidParameter(f"{name}.role", _fault(message, "role"), "give e.g. 'user'")
    content = message.get("content")
    if content is None and message.get("tool_calls"):
        content = ""
    elif isinstance(content, Sequence) and not isinstance(content, str | bytes):
        content = "".join(_text(f"{name}.content[{number}]", part) for number, part in enumerate(content))
    elif not isinstance(content, str):
        raise InvalidParameter(f"{name}.content", _fault(message, "content"), "give a text, or a list of text parts")
    kept = {key: value for key, value in message.items() if key != "tool_calls" or value}  # templates ask for the key
    return _readable_calls({**kept, "content": content})


def _fault(message: Mapping[str, Any], key: str) -> str:
    return f"{reprlib.repr(message[key])} is not a text" if key in message else "is missing"


def _text(name: str, part: Any) -> str:
    """The text of one part of a content."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidParameter(name, f"{reprlib.repr(part)} is no part", "give {'type': 'text', 'text': ...}")
    if kind not in _TEXTS:
        raise InvalidParameter(name, f"a part of type {kind!r}", "give text parts only: no other kind is read")
    if not isinstance(part.get("text"), str):
        raise InvalidParameter(f"{name}.text", _fault(part, "text"), "give a text")
    return part["text"]


def _readable_calls(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have arguments as templates want them: objects, not JSON in a text."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    return message | {"tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    return {**call, "function": {**function, "arguments": read_arguments(function["arguments"])}}


def read_arguments(text: str) -> Any:
    """The arguments of a call as the object that `text` is in JSON; a text that is none, as of a call that was cut off,
    stays one."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
