"""OpenAI's POST /v1/responses, as a translation of chat completions. Nothing is stored."""

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import InvalidParameter
from paceline.serving.dialects import SAME, Body, Dialect, listed, only, same, tool_of


class Responses(Dialect):
    """OpenAI's POST /v1/responses, without memory."""

    def __init__(self) -> None:
        self._id, self._item = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self._number = 0

    def request(self, body: Body) -> Body:
        """See `Dialect`."""
        if body.get("previous_response_id") is not None:
            raise InvalidParameter("previous_response_id", "nothing is stored here", "send the whole conversation")
        known = (*SAME, "input", "instructions", "max_output_tokens", "text", "tools", "include", "truncation",
                 "previous_response_id", "reasoning", "background")  # fmt: skip
        only(body, known)
        messages: list[Body] = []
        if body.get("instructions"):
            messages.append({"role": "system", "content": body["instructions"]})
        given = body.get("input")
        messages += (
            [{"role": "user", "content": given}] if isinstance(given, str) else self._turns(listed(body, "input"))
        )
        form = (body.get("text") or {}).get("format") or {}
        if form.get("type") == "json_schema":
            form = {"type": "json_schema", "json_schema": {"schema": form.get("schema")}}
        more: Body = {"messages": messages, "max_completion_tokens": body.get("max_output_tokens"),
                      "response_format": form or None}  # fmt: skip
        if body.get("tools"):
            more["tools"] = [tool_of(tool, "parameters") for tool in listed(body, "tools")]
        return same(body) | more

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
