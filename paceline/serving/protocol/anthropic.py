"""Anthropic's POST /v1/messages, as a translation of chat completions."""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from paceline.errors import InvalidParameter
from paceline.serving.protocol.dialects import SAME, Body, Dialect, Kind, listed, only, same, tool_of

_ERRORS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
           429: "rate_limit_error", 503: "overloaded_error"}  # fmt: skip
"""Anthropic's types of errors by status."""


class Messages(Dialect):
    """Anthropic's POST /v1/messages.

    Args:
        generates: an answer is wanted, which needs ``max_tokens``; else only a count of the prompt's tokens.
    """

    path = "/v1/messages"
    names: ClassVar[Mapping[str, str]] = {
        "stop": "stop_sequences", "messages": "messages", "continue_final_message": "messages",
        "response_format": "output_config", "structured_outputs": "output_config", "reasoning_effort": "output_config",
        "chat_template_kwargs": "thinking",
    }  # fmt: skip
    """Without the place inside the messages, because chat's are counted otherwise."""

    def __init__(self, generates: bool = True) -> None:
        self._generates = generates
        self._id = f"msg_{uuid.uuid4().hex}"

    def request(self, body: Body) -> Body:
        """See `Dialect`."""
        known = (*SAME, "messages", "system", "max_tokens", "stop_sequences", "tools", "thinking",
                 "output_config")  # fmt: skip
        only(body, known)
        thinks = _thinks(body.get("thinking"))
        messages: list[Body] = []
        if body.get("system"):
            messages.append({"role": "system", "content": _plain(body["system"], "system")})
        for number, message in enumerate(listed(body, "messages")):
            messages += self._turn(message, f"messages[{number}]")
        begun = bool(messages) and messages[-1]["role"] == "assistant"  # a prefill, which the answer goes on from
        if begun and messages[-1].get("tool_calls"):
            raise InvalidParameter("messages", "end with a tool_use", "send its tool_result too")
        if self._generates and body.get("max_tokens") is None:
            raise InvalidParameter("max_tokens", "Field required", "say how many tokens the answer may have")
        more: Body = {
            "messages": messages,
            "continue_final_message": begun,
            "max_tokens": body.get("max_tokens"),
            "stop": body.get("stop_sequences"),
        }
        if thinks is not None:
            more["chat_template_kwargs"] = {"enable_thinking": thinks}
        if body.get("output_config") is not None:
            more |= _output(body["output_config"])
        if body.get("tools"):
            more["tools"] = [tool_of(tool, "input_schema") for tool in listed(body, "tools")]
        choice = body.get("tool_choice")
        if isinstance(choice, Mapping) and choice.get("disable_parallel_tool_use") is not None:
            if not isinstance(choice["disable_parallel_tool_use"], bool):
                raise InvalidParameter("tool_choice", "disable_parallel_tool_use is no boolean", "send true or false")
            more["parallel_tool_calls"] = not choice["disable_parallel_tool_use"]
        return same(body) | more | {"tool_choice": self._choice(choice)}

    def answer(self, chat: Body) -> Body:
        """See `Dialect`."""
        choice = chat["choices"][0]
        message, content = choice["message"], list[Body]()
        if message.get("reasoning_content"):
            content.append({"type": "thinking", "thinking": message["reasoning_content"], "signature": ""})
        if message["content"]:
            content.append({"type": "text", "text": message["content"]})
        content += [self._used(call) for call in message.get("tool_calls") or ()]
        return self._head(chat["model"]) | self._ending(choice) | {"content": content, "usage": _counts(chat["usage"])}

    def begin(self, model: str, usage: Body) -> list[Body]:
        """See `Dialect`."""
        head = self._head(model) | {"usage": _counts(usage) | {"output_tokens": 0}}
        return [{"type": "message_start", "message": head}]

    def open(self, kind: Kind, index: int, call: Body | None) -> list[Body]:
        """See `Dialect`."""
        if call is not None:
            block: Body = self._used(call) | {"input": {}}
        else:
            block = {"type": "text", "text": ""} if kind == "text" else {
                "type": "thinking", "thinking": "", "signature": "",
            }  # fmt: skip
        return [{"type": "content_block_start", "index": index, "content_block": block}]

    def more(self, kind: Kind, index: int, delta: str, scores: Sequence[Body]) -> list[Body]:
        """See `Dialect`."""
        name = {"thoughts": "thinking", "text": "text", "call": "partial_json"}[kind]
        told = {"type": "input_json_delta" if kind == "call" else f"{name}_delta", name: delta}
        return [{"type": "content_block_delta", "index": index, "delta": told}]

    def close(self, kind: Kind, index: int, whole: str) -> list[Body]:
        """See `Dialect`."""
        return [{"type": "content_block_stop", "index": index}]

    def end(self, model: str, choice: Body, usage: Body) -> list[Body]:
        """See `Dialect`."""
        return [{"type": "message_delta", "delta": self._ending(choice), "usage": _counts(usage)},
                {"type": "message_stop"}]  # fmt: skip

    def _head(self, model: str) -> Body:
        return {"id": self._id, "type": "message", "role": "assistant", "model": model, "content": [],
                "stop_reason": None, "stop_sequence": None}  # fmt: skip

    @staticmethod
    def _ending(choice: Body) -> Body:
        """Why a choice ended."""
        if isinstance(choice.get("stop_reason"), str):
            return {"stop_reason": "stop_sequence", "stop_sequence": choice["stop_reason"]}
        known = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
        return {"stop_reason": known.get(choice["finish_reason"] or "", "end_turn"), "stop_sequence": None}

    @staticmethod
    def error(body: Body, status: int) -> Body:
        """See `Dialect`."""
        kind = _ERRORS.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return {"type": "error", "error": body["error"] | {"type": kind}}

    @staticmethod
    def _turn(message: Any, where: str) -> list[Body]:
        """A message as chat has it; results of tools are messages of their own."""
        if not isinstance(message, Mapping):
            raise InvalidParameter(where, "is no object", "send {'role': ..., 'content': ...}")
        content, role = message.get("content"), message.get("role")
        if isinstance(content, str):
            return [{"role": role, "content": content}]
        if content is None or (not content and role != "assistant"):
            raise InvalidParameter(f"{where}.content", "is missing", "send a text, or blocks")
        if not isinstance(content, list):
            raise InvalidParameter(where, "its content is neither a text nor a list", "send a text, or blocks")
        turns: list[Body] = []
        texts, calls, thoughts = [], [], []
        for block in content:
            kind = block.get("type") if isinstance(block, Mapping) else None
            if kind == "tool_result":
                told = _plain(block.get("content") or "", where)
                turns.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": told})
            elif kind == "tool_use":
                if not isinstance(block.get("name"), str) or not isinstance(block.get("input"), Mapping):
                    raise InvalidParameter(where, "a tool_use without a name or input", "send the block as it was told")
                function = {"name": block["name"], "arguments": block["input"]}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            elif kind == "thinking":
                if not isinstance(block.get("thinking"), str):
                    raise InvalidParameter(where, "a thinking block without its text", "send the block as it was told")
                thoughts.append(block["thinking"])
            elif kind != "redacted_thinking":
                texts.append(_plain([block], where))
        if texts or calls:
            turn = {"role": role, "content": "".join(texts), "tool_calls": calls or None}
            turns.append(turn | ({"reasoning_content": "".join(thoughts)} if any(thoughts) else {}))
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


def _thinks(thinking: Any) -> bool | None:
    """Whether the model is to think, as far as its chat template can be told; None where nothing is said."""
    if not thinking:
        return None
    kind = thinking.get("type") if isinstance(thinking, Mapping) else thinking
    if kind not in ("enabled", "adaptive", "disabled"):
        problem = f"{str(kind)[:40]!r} is no type of it"
        raise InvalidParameter("thinking", problem, "send {'type': 'enabled'}, 'adaptive' or 'disabled'")
    return kind != "disabled"


def _output(config: Any) -> Body:
    """Effort and form of an answer as chat has them. Raises InvalidParameter for other wishes."""
    config = config if isinstance(config, Mapping) else {"": config}
    for key, value in config.items():
        if key not in ("format", "effort") and value is not None:
            raise InvalidParameter("output_config", f"{str(key)[:40]!r} is not served", "send format or effort only")
    effort, form = config.get("effort"), config.get("format")
    asked: Body = {} if effort is None else {"reasoning_effort": "xhigh" if effort == "max" else effort}
    if form is None:
        return asked
    if not isinstance(form, Mapping) or form.get("type") != "json_schema":
        remedy = "send {'type': 'json_schema', 'schema': {...}}"
        raise InvalidParameter("output_config.format", "is of no known type", remedy)
    return asked | {"response_format": _json_schema(form.get("schema"))}


def _json_schema(schema: Any) -> Body:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}


def _plain(content: Any, where: str) -> str:
    """A text, or the texts of blocks."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else [content]
    for block in blocks:
        if not isinstance(block, Mapping) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise InvalidParameter(where, "holds a block that is no text", "send text blocks only")
    return "".join(block["text"] for block in blocks)


def _counts(usage: Body) -> Body:
    """Counts of tokens; those found in the cache are told apart from the rest of the prompt."""
    cached = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return {
        "input_tokens": usage.get("prompt_tokens", 0) - cached,
        "output_tokens": usage.get("completion_tokens", 0),
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
    }


def _object_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {}
