"""Anthropic's POST /v1/messages, as a translation of chat completions."""

import json
import uuid
from collections.abc import Mapping
from typing import Any

from paceline.errors import InvalidParameter
from paceline.serving.dialects import SAME, Body, Dialect, listed, only, same, tool_of


class Messages(Dialect):
    """Anthropic's POST /v1/messages."""

    def __init__(self) -> None:
        self._id = f"msg_{uuid.uuid4().hex}"

    def request(self, body: Body) -> Body:
        """See `Dialect`."""
        known = (*SAME, "messages", "system", "max_tokens", "stop_sequences", "tools", "thinking")
        only(body, known)
        messages: list[Body] = []
        if body.get("system"):
            messages.append({"role": "system", "content": _plain(body["system"], "system")})
        for number, message in enumerate(listed(body, "messages")):
            messages += self._turn(message, f"messages[{number}]")
        more: Body = {"messages": messages, "max_tokens": body.get("max_tokens"), "stop": body.get("stop_sequences")}
        if body.get("tools"):
            more["tools"] = [tool_of(tool, "input_schema") for tool in listed(body, "tools")]
        return same(body) | more | {"tool_choice": self._choice(body.get("tool_choice"))}

    def answer(self, chat: Body) -> Body:
        """See `Dialect`."""
        choice, usage = chat["choices"][0], chat["usage"]
        content = [{"type": "text", "text": choice["message"]["content"]}] if choice["message"]["content"] else []
        content += [self._used(call) for call in choice["message"].get("tool_calls") or ()]
        counts = {"input_tokens": usage.get("prompt_tokens", 0), "output_tokens": usage.get("completion_tokens", 0)}
        reason = _stop_reason_of(choice["finish_reason"])
        return self._head(chat["model"]) | {"content": content, "stop_reason": reason, "usage": counts}

    def begin(self, model: str) -> list[Body]:
        """See `Dialect`."""
        head = self._head(model) | {"usage": {"input_tokens": 0, "output_tokens": 0}}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return [{"type": "message_start", "message": head}, block]

    def text(self, delta: str) -> Body:
        """See `Dialect`."""
        return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": delta}}

    def end(self, chat: Body) -> list[Body]:
        """See `Dialect`."""
        whole = self.answer(chat)
        events: list[Body] = [{"type": "content_block_stop", "index": 0}]
        for index, block in enumerate((b for b in whole["content"] if b["type"] == "tool_use"), 1):
            empty, arguments = block | {"input": {}}, _text_of(block["input"])
            delta = {"type": "input_json_delta", "partial_json": arguments}
            events += [{"type": "content_block_start", "index": index, "content_block": empty},
                       {"type": "content_block_delta", "index": index, "delta": delta},
                       {"type": "content_block_stop", "index": index}]  # fmt: skip
        ended = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
        return [*events, {"type": "message_delta", "delta": ended, "usage": whole["usage"]}, {"type": "message_stop"}]

    def _head(self, model: str) -> Body:
        return {"id": self._id, "type": "message", "role": "assistant", "model": model, "content": [],
                "stop_reason": None, "stop_sequence": None}  # fmt: skip

    @staticmethod
    def _turn(message: Any, where: str) -> list[Body]:
        """A message as chat has it; results of tools are messages of their own."""
        if not isinstance(message, Mapping):
            raise InvalidParameter(where, "is no object", "send {'role': ..., 'content': ...}")
        content, role = message.get("content"), message.get("role")
        if isinstance(content, str):
            return [{"role": role, "content": content}]
        turns: list[Body] = []
        texts, calls = [], []
        for block in content or ():
            kind = block.get("type") if isinstance(block, Mapping) else None
            if kind == "tool_result":
                told = _plain(block.get("content") or "", where)
                turns.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": told})
            elif kind == "tool_use":
                function = {"name": block.get("name"), "arguments": block.get("input")}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            else:
                texts.append(_plain([block], where))
        if texts or calls:
            turns.append({"role": role, "content": "".join(texts), "tool_calls": calls or None})
        return turns

    @staticmethod
    def _choice(choice: Any) -> Any:
        kind = choice.get("type") if isinstance(choice, Mapping) else choice
        if kind == "tool":
            return {"type": "function", "function": {"name": choice.get("name")}}
        return {"any": "required"}.get(kind, kind) if isinstance(kind, str) else kind

    @staticmethod
    def _used(call: Body) -> Body:
        function = call["function"]
        return {
            "type": "tool_use",
            "id": call["id"],
            "name": function["name"],
            "input": _object_of(function["arguments"]),
        }


def _plain(content: Any, where: str) -> str:
    """A text, or the texts of blocks."""
    if isinstance(content, str):
        return content
    for block in content if isinstance(content, list) else [content]:
        if not isinstance(block, Mapping) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise InvalidParameter(where, "holds a block that is no text", "send text blocks only")
    return "".join(block["text"] for block in content)


def _stop_reason_of(reason: str | None) -> str:
    return {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}.get(reason or "", "end_turn")


def _object_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {}


def _text_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
