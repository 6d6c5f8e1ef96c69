"""Two further protocols as translations of chat completions: OpenAI's responses and Anthropic's messages.

What they ask becomes a `ChatRequest`, what chat completions answer becomes their bodies and events. Nothing is stored:
`previous_response_id` is refused. Longer than most modules because it is two protocols' names and nothing else.
"""

import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from paceline.errors import InvalidParameter
from paceline.serving.protocol import ChatRequest

Body = dict[str, Any]
_SAME = (
    "model", "temperature", "top_p", "top_k", "stream", "seed", "speculative", "prediction", "paceline", "metadata",
    "user", "store", "tool_choice", "parallel_tool_calls", "service_tier", "timeout", "top_logprobs",
)  # fmt: skip


class AnyBody(BaseModel):
    """A JSON object."""

    model_config = ConfigDict(extra="allow")


class Dialect:
    """A protocol in terms of chat completions."""

    prefix = ""

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


class Messages(Dialect):
    """Anthropic's POST /v1/messages."""

    def __init__(self) -> None:
        self._id = f"msg_{uuid.uuid4().hex}"

    def request(self, body: Body) -> Body:
        """See `Dialect`."""
        known = (*_SAME, "messages", "system", "max_tokens", "stop_sequences", "tools", "thinking")
        _only(body, known)
        messages: list[Body] = []
        if body.get("system"):
            messages.append({"role": "system", "content": _plain(body["system"], "system")})
        for number, message in enumerate(_listed(body, "messages")):
            messages += self._turn(message, f"messages[{number}]")
        more: Body = {"messages": messages, "max_tokens": body.get("max_tokens"), "stop": body.get("stop_sequences")}
        if body.get("tools"):
            more["tools"] = [_tool(tool, "input_schema") for tool in _listed(body, "tools")]
        return _same(body) | more | {"tool_choice": self._choice(body.get("tool_choice"))}

    def answer(self, chat: Body) -> Body:
        """See `Dialect`."""
        choice, usage = chat["choices"][0], chat["usage"]
        content = [{"type": "text", "text": choice["message"]["content"]}] if choice["message"]["content"] else []
        content += [self._used(call) for call in choice["message"].get("tool_calls") or ()]
        counts = {"input_tokens": usage.get("prompt_tokens", 0), "output_tokens": usage.get("completion_tokens", 0)}
        reason = _stop_reason(choice["finish_reason"])
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


class Responses(Dialect):
    """OpenAI's POST /v1/responses, without memory."""

    def __init__(self) -> None:
        self._id, self._item = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self._number = 0

    def request(self, body: Body) -> Body:
        """See `Dialect`."""
        if body.get("previous_response_id") is not None:
            raise InvalidParameter("previous_response_id", "nothing is stored here", "send the whole conversation")
        known = (*_SAME, "input", "instructions", "max_output_tokens", "text", "tools", "include", "truncation",
                 "previous_response_id", "reasoning", "background")  # fmt: skip
        _only(body, known)
        messages: list[Body] = []
        if body.get("instructions"):
            messages.append({"role": "system", "content": body["instructions"]})
        given = body.get("input")
        messages += (
            [{"role": "user", "content": given}] if isinstance(given, str) else self._turns(_listed(body, "input"))
        )
        form = (body.get("text") or {}).get("format") or {}
        if form.get("type") == "json_schema":
            form = {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
        more: Body = {"messages": messages, "max_completion_tokens": body.get("max_output_tokens"),
                      "response_format": form or None}  # fmt: skip
        if body.get("tools"):
            more["tools"] = [_tool(tool, "parameters") for tool in _listed(body, "tools")]
        return _same(body) | more

    def answer(self, chat: Body) -> Body:
        """See `Dialect`."""
        choice, usage = chat["choices"][0], chat["usage"]
        done = choice["finish_reason"] in ("stop", "tool_calls")
        output: list[Body] = []
        if choice["message"]["content"]:
            output.append(self._message(choice["message"]["content"]))
        for call in choice["message"].get("tool_calls") or ():
            output.append({"type": "function_call", "id": f"fc_{uuid.uuid4().hex}", "call_id": call["id"],
                           "status": "completed", **call["function"]})  # fmt: skip
        counts = {
            "input_tokens": usage.get("prompt_tokens", 0), "output_tokens": usage.get("completion_tokens", 0),
            "total_tokens": usage.get("total_tokens", 0),
            "input_tokens_details": usage.get("prompt_tokens_details", {"cached_tokens": 0}),
            "output_tokens_details": {"reasoning_tokens": 0},
        }  # fmt: skip
        details = None if done else {"reason": "max_output_tokens"}
        status = "completed" if done else "incomplete"
        return self._head(chat["model"], status) | {"output": output, "usage": counts, "incomplete_details": details}

    def begin(self, model: str) -> list[Body]:
        """See `Dialect`."""
        head = self._head(model, "in_progress")
        item = self._message("") | {"status": "in_progress", "content": []}
        return [
            self._event("response.created", response=head),
            self._event("response.in_progress", response=head),
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", part={"type": "output_text", "text": "", "annotations": []},
                        **self._place()),
        ]  # fmt: skip

    def text(self, delta: str) -> Body:
        """See `Dialect`."""
        return self._event("response.output_text.delta", delta=delta, logprobs=[], **self._place())

    def end(self, chat: Body) -> list[Body]:
        """See `Dialect`."""
        whole, text = self.answer(chat), chat["choices"][0]["message"]["content"]
        part = {"type": "output_text", "text": text, "annotations": []}
        events = [
            self._event("response.output_text.done", text=text, logprobs=[], **self._place()),
            self._event("response.content_part.done", part=part, **self._place()),
            self._event("response.output_item.done", output_index=0, item=self._message(text)),
        ]
        calls = [item for item in whole["output"] if item["type"] == "function_call"]
        for index, item in enumerate(calls, 1):
            events += [self._event("response.output_item.added", output_index=index, item=item),
                       self._event("response.output_item.done", output_index=index, item=item)]  # fmt: skip
        return [*events, self._event(f"response.{whole['status']}", response=whole)]

    def _event(self, kind: str, **fields: Any) -> Body:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _place(self) -> Body:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _message(self, text: str) -> Body:
        part = {"type": "output_text", "text": text, "annotations": []}
        return {"type": "message", "id": self._item, "role": "assistant", "status": "completed", "content": [part]}

    def _head(self, model: str, status: str) -> Body:
        return {
            "id": self._id, "object": "response", "created_at": int(time.time()), "status": status, "model": model,
            "output": [], "error": None, "incomplete_details": None, "instructions": None, "metadata": {},
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "temperature": None, "top_p": None,
        }  # fmt: skip

    @staticmethod
    def _turns(items: Sequence[Any]) -> list[Body]:
        """Items of a conversation as chat's messages."""
        turns: list[Body] = []
        for number, item in enumerate(items):
            kind = item.get("type", "message") if isinstance(item, Mapping) else None
            if kind == "message":
                turns.append({"role": item.get("role"), "content": item.get("content")})
            elif kind == "function_call":
                function = {"name": item.get("name"), "arguments": item.get("arguments")}
                call = {"id": item.get("call_id"), "type": "function", "function": function}
                turns.append({"role": "assistant", "content": "", "tool_calls": [call]})
            elif kind == "function_call_output":
                turns.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
            elif kind != "reasoning":
                raise InvalidParameter(f"input[{number}]", f"an item of type {str(kind)[:40]!r}", "send messages only")
        return turns


def _only(body: Body, known: Sequence[str]) -> None:
    for key, value in body.items():
        if key not in known and value is not None:
            raise InvalidParameter(key, "is not served", "leave it out")


def _same(body: Body) -> Body:
    return {key: body[key] for key in _SAME if key in body}


def _listed(body: Body, field: str) -> list[Any]:
    value = body.get(field)
    if not isinstance(value, list) or not value:
        raise InvalidParameter(field, "is no list, or empty", "send at least one")
    return value


def _plain(content: Any, where: str) -> str:
    """A text, or the texts of blocks."""
    if isinstance(content, str):
        return content
    for block in content if isinstance(content, list) else [content]:
        if not isinstance(block, Mapping) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise InvalidParameter(where, "holds a block that is no text", "send text blocks only")
    return "".join(block["text"] for block in content)


def _tool(tool: Any, schema: str) -> Body:
    """A tool as chat has it."""
    if not isinstance(tool, Mapping) or tool.get("type", "function") not in ("function", "custom"):
        raise InvalidParameter("tools", "a tool of the server's", "send functions of your own")
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get(schema)}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def _stop_reason(reason: str | None) -> str:
    return {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}.get(reason or "", "end_turn")


def _object_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {}


def _text_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
