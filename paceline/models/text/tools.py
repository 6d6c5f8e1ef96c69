"""Tools in a prompt: their definitions checked, and told in words to models whose chat template has no place for them.

Earlier calls become text for these models too, as Hermes and Qwen write them. Not for reading the calls of an answer
(`serving/protocol/tools.py`).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import InvalidParameter
from paceline.models.text.call_formats import HERMES

_MOST_TOOLS = 128
_EXPLAINED = """You may call these functions:
{tools}
To call one, answer with {open}{{"name": NAME, "arguments": OBJECT}}{close} and nothing else."""
_SHAPE = "{'type': 'function', 'function': {'name': ..., 'arguments': ...}}"


def checked_tools(tools: Any) -> list[dict[str, Any]]:
    """OpenAI's list of tools, with the fields that templates know.

    Raises:
        InvalidParameter: no list, too many, or a tool without a name or with parameters that are no schema.
    """
    if not isinstance(tools, list | tuple):
        raise InvalidParameter("tools", "is no list", "give a list of tools, or leave it out")
    if len(tools) > _MOST_TOOLS:
        raise InvalidParameter("tools", f"{len(tools)} tools", f"send at most {_MOST_TOOLS}")
    return [_checked(number, tool) for number, tool in enumerate(tools)]


def explained(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """`messages` with `tools` told in words, in the system message."""
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    told = _EXPLAINED.format(tools=listed, open=HERMES.opening, close=HERMES.closing)
    if messages and messages[0].get("role") == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{told}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": told}, *messages]


def written_calls(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """`messages` with their calls as text.

    Raises:
        InvalidParameter: what stands among the calls is none; names its place.
    """
    return [
        _with_calls_written(f"messages[{number}].tool_calls", message) if message.get("tool_calls") else message
        for number, message in enumerate(messages)
    ]


def _with_calls_written(where: str, message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message["tool_calls"]
    if not isinstance(calls, list | tuple):
        raise InvalidParameter(where, "is no list", f"give a list of {_SHAPE}")
    written = [_written(f"{where}[{number}]", call) for number, call in enumerate(calls)]
    text = "\n".join([message["content"], *written] if message["content"] else written)
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": text}


def _written(where: str, call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidParameter(where, "is no call of a function", f"give {_SHAPE}")
    plain = {"name": function["name"], "arguments": function.get("arguments") or {}}
    return f"{HERMES.opening}{json.dumps(plain, ensure_ascii=False)}{HERMES.closing}"


def _checked(number: int, tool: Any) -> dict[str, Any]:
    found = tool.get("function") if isinstance(tool, Mapping) else None
    function: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    name = function.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= 64:
        raise InvalidParameter("tools", f"tools[{number}] has no name", "send {'type': 'function', 'function': {...}}")
    if not isinstance(function.get("parameters") or {}, Mapping):
        raise InvalidParameter("tools", f"tools[{number}].function.parameters is no schema", "send a JSON schema")
    if not isinstance(function.get("strict"), bool | None):
        problem = f"tools[{number}].function.strict is no boolean"
        raise InvalidParameter("tools", problem, "send true or false, or leave it out")
    return {"type": "function", "function": dict(function)}
