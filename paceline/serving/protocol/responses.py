"""OpenAI's POST /v1/responses, as a translation of chat completions. Nothing is stored."""

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from paceline.errors import InvalidParameter
from paceline.serving.protocol.dialects import (
    SAME,
    Body,
    Dialect,
    Kind,
    listed,
    of_text,
    only,
    same,
    scores_of,
    tool_of,
)

_ALSO = ("safety_identifier", "prompt_cache_key", "prompt_cache_retention", "top_logprobs")
"""Further fields that chat completions call the same."""
_LOGPROBS = "message.output_text.logprobs"
_INCLUDED = frozenset(
    (_LOGPROBS, "reasoning.encrypted_content", "message.input_image.image_url", "computer_call_output.output.image_url",
     "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
     "code_interpreter_call.outputs")
)  # fmt: skip
"""What may be asked for besides the answer. There is nothing here of which all but the log-probabilities could tell."""


_REPEATED = ("instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "reasoning", "temperature", "text",
             "tool_choice", "tools", "top_p", "truncation")  # fmt: skip
"""Fields of the request that an answer repeats."""


class Responses(Dialect):
    """OpenAI's POST /v1/responses, without memory."""

    path = "/v1/responses"
    names: ClassVar[Mapping[str, str]] = {
        "messages": "input", "max_completion_tokens": "max_output_tokens",
        "max_tokens": "max_output_tokens", "response_format": "text", "structured_outputs": "text",
        "reasoning_effort": "reasoning",
    }  # fmt: skip

    def __init__(self) -> None:
        self._id = f"resp_{uuid.uuid4().hex}"
        self._number = 0
        self._asked: Body = {}
        self._open: Body = {}
        self._output: list[Body] = []
        self._scores: list[Body] = []

    def request(self, body: Body) -> Body:
        """See `Dialect`."""
        if body.get("previous_response_id") is not None:
            raise InvalidParameter("previous_response_id", "nothing is stored here", "send the whole conversation")
        known = (*SAME, *_ALSO, "input", "instructions", "max_output_tokens", "text", "tools", "include", "truncation",
                 "previous_response_id", "reasoning", "background")  # fmt: skip
        only(body, known)
        _check_passed_over(body)
        self._asked = {name: body[name] for name in _REPEATED if body.get(name) is not None}
        messages: list[Body] = []
        if body.get("instructions"):
            messages.append({"role": "system", "content": body["instructions"]})
        given = body.get("input")
        messages += (
            [{"role": "user", "content": given}] if isinstance(given, str) else self._turns(listed(body, "input"))
        )
        text = body.get("text") or {}
        form = (text.get("format") if isinstance(text, Mapping) else text) or {}
        if not isinstance(form, Mapping):
            raise InvalidParameter("text", "its format is no object", "send {'format': {'type': 'text'}}")
        if form.get("type") == "json_schema":
            form = {"type": "json_schema", "json_schema": {k: each for k, each in form.items() if k != "type"}}
        more: Body = {"messages": messages, "max_completion_tokens": body.get("max_output_tokens"),
                      "response_format": form or None}  # fmt: skip
        more |= {key: body[key] for key in _ALSO if key in body} | {"logprobs": _wants_logprobs(body)}
        if body.get("reasoning"):
            more["reasoning_effort"] = body["reasoning"].get("effort")
        if body.get("tools"):
            more["tools"] = [tool_of(tool, "parameters") for tool in listed(body, "tools")]
        return same(body) | more

    def answer(self, chat: Body) -> Body:
        """See `Dialect`."""
        choice = chat["choices"][0]
        message = choice["message"]
        if message.get("reasoning_content"):
            self._finish(self._new("thoughts", None), message["reasoning_content"])
        if message["content"]:
            self._scores = [*of_text(scores_of(choice), bool(message.get("reasoning_content")))]
            self._finish(self._new("text", None), message["content"])
        for call in message.get("tool_calls") or ():
            self._finish(self._new("call", call), call["function"]["arguments"])
        return self._whole(chat["model"], choice, chat["usage"])

    def begin(self, model: str, usage: Body) -> list[Body]:
        """See `Dialect`."""
        head = self._head(model, "in_progress")
        return [self._event("response.created", response=head), self._event("response.in_progress", response=head)]

    def open(self, kind: Kind, index: int, call: Body | None) -> list[Body]:
        """See `Dialect`."""
        item, self._scores = self._new(kind, call), []
        self._open = item
        events = [self._event("response.output_item.added", output_index=index, item=item)]
        if kind != "call":
            events.append(self._event("response.content_part.added", part=_part(kind, "", ()), **self._place(index)))
        return events

    def more(self, kind: Kind, index: int, delta: str, scores: Sequence[Body]) -> list[Body]:
        """See `Dialect`."""
        if kind == "text":
            self._scores += scores
            return [self._event("response.output_text.delta", delta=delta, logprobs=[*scores], **self._place(index))]
        if kind == "thoughts":
            return [self._event("response.reasoning_text.delta", delta=delta, **self._place(index))]
        place = {"item_id": self._open["id"], "output_index": index}
        return [self._event("response.function_call_arguments.delta", delta=delta, **place)]

    def close(self, kind: Kind, index: int, whole: str) -> list[Body]:
        """See `Dialect`."""
        place = self._place(index)
        if kind == "call":
            named = {"item_id": self._open["id"], "output_index": index, "name": self._open["name"]}
            events = [self._event("response.function_call_arguments.done", arguments=whole, **named)]
        else:
            done = {"text": whole, "logprobs": self._scores} if kind == "text" else {"text": whole}
            name = "output_text" if kind == "text" else "reasoning_text"
            part = _part(kind, whole, self._scores)
            events = [self._event(f"response.{name}.done", **done, **place),
                      self._event("response.content_part.done", part=part, **place)]  # fmt: skip
        item = self._finish(self._open, whole)
        return [*events, self._event("response.output_item.done", output_index=index, item=item)]

    def end(self, model: str, choice: Body, usage: Body) -> list[Body]:
        """See `Dialect`."""
        whole = self._whole(model, choice, usage)
        return [self._event(f"response.{whole['status']}", response=whole)]

    def _whole(self, model: str, choice: Body, usage: Body) -> Body:
        """The answer of the items that are finished."""
        done = choice["finish_reason"] in ("stop", "tool_calls")
        spent = usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0)
        counts = {
            "input_tokens": usage.get("prompt_tokens", 0), "output_tokens": usage.get("completion_tokens", 0),
            "total_tokens": usage.get("total_tokens", 0),
            "input_tokens_details": usage.get("prompt_tokens_details", {"cached_tokens": 0}),
            "output_tokens_details": {"reasoning_tokens": spent},
        }  # fmt: skip
        details = None if done else {"reason": "max_output_tokens"}
        status = "completed" if done else "incomplete"
        return self._head(model, status) | {"output": self._output, "usage": counts, "incomplete_details": details}

    @staticmethod
    def _new(kind: Kind, call: Body | None) -> Body:
        """An item without its text."""
        number = uuid.uuid4().hex
        if call is not None:
            return {"type": "function_call", "id": f"fc_{number}", "call_id": call["id"], "status": "in_progress",
                    "name": call["function"]["name"], "arguments": ""}  # fmt: skip
        if kind == "thoughts":
            return {"type": "reasoning", "id": f"rs_{number}", "status": "in_progress", "summary": [], "content": []}
        return {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "in_progress", "content": []}

    def _finish(self, item: Body, text: str) -> Body:
        """The item with its text; it joins the answer."""
        kinds: dict[str, Kind] = {"message": "text", "reasoning": "thoughts"}
        told = (
            {"content": [_part(kinds[item["type"]], text, self._scores)]}
            if item["type"] in kinds
            else {"arguments": text}
        )
        self._output.append(item | told | {"status": "completed"})
        return self._output[-1]

    def _event(self, kind: str, **fields: Any) -> Body:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}

    def _place(self, index: int) -> Body:
        return {"item_id": self._open["id"], "output_index": index, "content_index": 0}

    def _head(self, model: str, status: str) -> Body:
        return {
            "id": self._id, "object": "response", "created_at": int(time.time()), "status": status, "model": model,
            "output": [], "error": None, "incomplete_details": None, "instructions": None, "metadata": {},
            "parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "temperature": None, "top_p": None,
            "max_output_tokens": None,
        } | self._asked  # fmt: skip

    @staticmethod
    def _turns(items: Sequence[Any]) -> list[Body]:
        """Items of a conversation as chat's messages; a thought goes to the assistant's turn that follows it."""
        turns: list[Body] = []
        thoughts = ""
        for number, item in enumerate(items):
            kind = item.get("type", "message") if isinstance(item, Mapping) else None
            if kind == "reasoning":
                thoughts += _thoughts(item, f"input[{number}]")
                continue
            if kind == "message":
                turns.append({"role": item.get("role"), "content": item.get("content")})
            elif kind == "function_call":
                if not isinstance(item.get("name"), str) or not isinstance(item.get("arguments"), str):
                    problem = "a function_call without a name or arguments"
                    raise InvalidParameter(f"input[{number}]", problem, "send the item as it was told")
                function = {"name": item["name"], "arguments": item["arguments"]}
                call = {"id": item.get("call_id"), "type": "function", "function": function}
                turns.append({"role": "assistant", "content": "", "tool_calls": [call]})
            elif kind == "function_call_output":
                turns.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")})
            else:
                raise InvalidParameter(f"input[{number}]", f"an item of type {str(kind)[:40]!r}", "send messages only")
            if thoughts and turns[-1]["role"] == "assistant":
                turns[-1]["reasoning_content"] = thoughts
            thoughts = ""
        return turns


def _thoughts(item: Mapping[str, Any], where: str) -> str:
    """The text of a reasoning item; empty where it holds none, as that of an encrypted one. Raises InvalidParameter."""
    parts = item.get("content") or []
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        raise InvalidParameter(where, "a reasoning item whose content is no list of parts", "send it as it was told")
    texts = [part.get("text") for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidParameter(where, "a reasoning item with a part that has no text", "send it as it was told")
    return "".join(map(str, texts))


def _check_passed_over(body: Body) -> None:
    """Raise InvalidParameter where a field that changes nothing here asks for something, or is of a wrong type."""
    if body.get("background"):
        raise InvalidParameter("background", "nothing is stored here", "leave it out, and wait for the answer")
    if body.get("truncation") not in (None, "disabled"):
        raise InvalidParameter("truncation", "a conversation is not cut here", "send 'disabled', and what fits")
    reasoning = body.get("reasoning") or {}
    if not isinstance(reasoning, Mapping) or not isinstance(reasoning.get("effort"), str | None):
        raise InvalidParameter("reasoning", "is no object", "send e.g. {'effort': 'low'}, or leave it out")


def _wants_logprobs(body: Body) -> bool:
    """Whether log-probabilities are to be included. Raises InvalidParameter for what cannot be."""
    included = body.get("include") or []
    if not isinstance(included, list):
        raise InvalidParameter("include", "is no list", "send a list, or leave it out")
    for each in included:
        if not isinstance(each, str) or each not in _INCLUDED:
            raise InvalidParameter("include", f"{str(each)[:60]!r} is unknown", f"use {_LOGPROBS!r}, or leave it out")
    if body.get("top_logprobs") and _LOGPROBS not in included:
        raise InvalidParameter("top_logprobs", "is given without log-probabilities", f"include {_LOGPROBS!r}")
    return _LOGPROBS in included


def _part(kind: Kind, text: str, scores: Sequence[Body]) -> Body:
    if kind == "thoughts":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": [*scores]}
