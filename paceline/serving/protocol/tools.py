"""Tools: what a chat request offers, as prompt and grammar, and the calls that an answer makes, as OpenAI tells them.

A call is written in the model's format (`models/text/call_formats.py`). One that is demanded is a JSON object alone,
and a grammar sees to it that it fits. Nothing here ever runs a tool.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import InvalidParameter
from paceline.models.text.call_formats import HERMES, CallFormat
from paceline.models.text.call_texts import Schemas
from paceline.models.text.messages import read_arguments
from paceline.models.text.tools import checked_tools
from paceline.serving.protocol.call_schema import calls_schema
from paceline.serving.protocol.demanded_call import DemandedCall
from paceline.serving.protocol.thoughts import overlap

_MOST_CLOSINGS = 4
"""Closing tags of which one may close a call; more would be read again with every piece of a text without a call."""


class ToolChoice:
    """Which tools a request offers, and whether it demands a call.

    Args:
        tools: OpenAI's list.
        choice: ``none``, ``auto``, ``required``, or the function that must be called.
        is_parallel: an answer may hold several calls; else only the first one is told.

    Raises:
        InvalidParameter: a tool without a name or with parameters that are no schema, or a choice that is none of them.
    """

    def __init__(self, tools: Sequence[Any], choice: Any = None, is_parallel: bool = True) -> None:
        self.tools = checked_tools(tools)
        known = [tool["function"]["name"] for tool in self.tools]
        self.demanded = self._demanded(choice, known)
        self.is_active = bool(self.tools) and choice != "none"
        self._is_parallel = is_parallel

    @staticmethod
    def _demanded(choice: Any, known: list[str]) -> list[str]:
        """Names of which one must be called; empty when none has to."""
        if choice in (None, "auto", "none"):
            return []
        if not known:
            raise InvalidParameter("tool_choice", "is given without tools", "send tools too")
        if choice == "required":
            return known
        named = choice.get("function", choice) if isinstance(choice, Mapping) else None
        name = named.get("name") if isinstance(named, Mapping) else None
        if name not in known:
            problem = f"{str(choice)[:80]} names no tool of the request"
            raise InvalidParameter("tool_choice", problem, "use none, auto, required, or one of the functions")
        return [name]

    @property
    def grammar(self) -> dict[str, Any] | None:
        """What a demanded call must look like, as `SamplingParams.structured_outputs`; None where none is demanded."""
        if not self.demanded:
            return None
        functions = [tool["function"] for tool in self.tools]
        return {"json": calls_schema([each for each in functions if each["name"] in self.demanded])}

    def reader(self, form: CallFormat = HERMES) -> "CallReader":
        """Reads one answer; see `CallReader`."""
        functions = [tool["function"] for tool in self.tools]
        schemas = {each["name"]: each.get("parameters") or {} for each in functions}
        return CallReader(schemas, bool(self.demanded), form, self._is_parallel)


class CallReader:
    """Takes the calls out of an answer while it comes; what is no call stays text.

    Args:
        schemas: name to parameters of the tools.
        is_call: the whole answer is one call, which is told piece by piece; others are told once they are whole.
        form: how calls are written.
        is_parallel: all calls are told; else those after the first are left out.

    Attributes:
        calls: OpenAI's, those told so far.
        is_cut: the demanded call ended before it was whole.
    """

    def __init__(
        self, schemas: Schemas, is_call: bool, form: CallFormat = HERMES, is_parallel: bool = True
    ) -> None:  # fmt: skip
        self._schemas, self._form = schemas, form
        self._demanded = DemandedCall() if is_call else None
        self._is_parallel, self.is_cut = is_parallel, False
        self._held, self._blank, self._is_text = "", "", False
        self.calls: list[dict[str, Any]] = []

    def push(self, text: str, ended: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """(text that is no call for certain, what there is of calls, as OpenAI streams them); at the end all of it.

        Blank space at the end of a text waits for more of it: before a call and after one it is no content.
        """
        if self._is_text:
            told, self._blank = self._blank + text, ""
            return told, []
        if self._demanded is not None:
            return self._push_demanded(self._demanded, text, ended)
        more, calls = self._push(text, ended)
        told = (self._blank + more).rstrip()
        self._blank = (self._blank + more)[len(told) :]
        return told + self._blank if ended and not self.calls else told, calls

    def _push(self, text: str, ended: bool) -> tuple[str, list[dict[str, Any]]]:
        """`push` with all blank space."""
        self._held += text
        opening = self._form.opening
        if not opening and self._held.lstrip()[:1] in ("", "{", "["):
            return ("", []) if not ended else self._last("", self._held)
        if not opening:
            told, self._held, self._is_text = self._held, "", True
            return told, []
        shown, before = "", len(self.calls)
        while (closed := self._closed(ended)) is not None:
            ahead, inside, self._held = closed
            shown += ahead + self._taken(inside)
        if ended:
            more, _ = self._last(*self._split())
            return shown + more, self._told(before)
        plain = len(self._held) - overlap(self._held, opening)
        keep = self._split()[0] if opening in self._held else self._held[:plain]
        self._held = self._held[len(keep) :]
        return shown + keep, self._told(before)

    def _closed(self, ended: bool) -> tuple[str, str, str] | None:
        """What is held before, inside and after the first pair of tags; None where there may be more inside.

        A closing tag inside a value closes nothing, if there is a call up to a later one.
        """
        opening, closing = self._form.opening, self._form.closing
        ahead, _, rest = self._held.partition(opening)
        first = at = rest.find(closing) if closing else -1
        for _ in range(_MOST_CLOSINGS):
            if at < 0:
                break
            if self._form.read(rest[:at], self._schemas):
                return ahead, rest[:at], rest[at + len(closing) :]
            at = rest.find(closing, at + len(closing))
        if first < 0 or (at < 0 and not ended and self._form.is_cut(rest[:first])):
            return None
        return ahead, rest[:first], rest[first + len(closing) :]

    def _push_demanded(self, call: DemandedCall, text: str, ended: bool) -> tuple[str, list[dict[str, Any]]]:
        """`push` of an answer that is one call: first its name, then its arguments as they come."""
        more = call.push(text)
        if call.name is None or call.name not in self._schemas:
            self._held += text
            return (self._held if ended else ""), []
        told: list[dict[str, Any]] = []
        if not self.calls:
            self.calls.append(_call(call.name, ""))
            told.append({"index": 0, **self.calls[0], "function": {"name": call.name, "arguments": ""}})
        if more:
            self.calls[0]["function"]["arguments"] += more
            told.append({"index": 0, "function": {"arguments": more}})
        self.is_cut = ended and not call.is_whole
        return "", told

    def _told(self, first: int) -> list[dict[str, Any]]:
        """The calls from number `first` on, as deltas."""
        return [{"index": first + place, **call} for place, call in enumerate(self.calls[first:])]

    def _split(self) -> tuple[str, str]:
        """What is held: before a call that has begun, and from there on."""
        ahead, opening, inside = self._held.partition(self._form.opening)
        return ahead, opening + inside

    def _last(self, ahead: str, rest: str) -> tuple[str, list[dict[str, Any]]]:
        """The end of the answer: a call that was never closed may be whole all the same."""
        before, self._held = len(self.calls), ""
        shown = ahead + self._taken(rest.removeprefix(self._form.opening), rest) if rest else ahead
        return shown, self._told(before)

    def _taken(self, inside: str, instead: str | None = None) -> str:
        """Nothing where `inside` is a call, which is noted; else the text to show instead."""
        is_whole = instead is None or self._form.ends_itself
        found = self._form.read(inside, self._schemas) if is_whole else []
        told = [(name, _written(arguments)) for name, arguments in found if name in self._schemas]
        if not told or len(told) < len(found) or not all(text for _, text in told):
            return f"{self._form.opening}{inside}{self._form.closing}" if instead is None else instead
        for name, text in told if self._is_parallel else told[: 1 - len(self.calls)]:
            self.calls.append(_call(name, text or ""))
        return ""


def _call(name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function}


def _written(arguments: Any) -> str | None:
    """The arguments of a call as OpenAI tells them, an object as JSON; None for what is none."""
    try:
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
        text = json.dumps(found, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, TypeError, RecursionError):
        return None
    return (arguments if isinstance(arguments, str) else text) if isinstance(found, dict) else None


def readable_calls(message: dict[str, Any], where: str) -> dict[str, Any]:
    """A message whose calls have arguments as templates want them: objects, not JSON in a text.

    Raises:
        InvalidParameter: its calls are malformed; names the place below `where`.
    """
    if message.get("function_call") is not None:
        raise InvalidParameter(f"{where}.function_call", "is not served", "send tool_calls")
    calls = message.get("tool_calls")
    if calls is None:
        return message
    if not isinstance(calls, list):
        raise InvalidParameter(f"{where}.tool_calls", "is no list", "send a list of calls, or leave it out")
    read = [_with_object(call, f"{where}.tool_calls[{number}]") for number, call in enumerate(calls)]
    return message | {"tool_calls": read}


def _with_object(call: Any, where: str) -> dict[str, Any]:
    remedy = "send {'type': 'function', 'function': {'name': ..., 'arguments': ...}}"
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or call.get("type") not in (None, "function"):
        raise InvalidParameter(where, "is no call of a function", remedy)
    if not isinstance(call.get("id", ""), str | None):
        raise InvalidParameter(f"{where}.id", "is no text", "send the id as it was told")
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise InvalidParameter(f"{where}.function.name", "is no name", remedy)
    arguments = function.get("arguments")
    if not isinstance(arguments, str | Mapping | None):
        raise InvalidParameter(f"{where}.function.arguments", "is neither a text nor an object", remedy)
    return {**call, "function": {**function, "arguments": _object(arguments)}}


def _object(arguments: str | Mapping[str, Any] | None) -> Any:
    """The arguments of a call, none as an empty object; see `read_arguments`."""
    if not isinstance(arguments, str):
        return arguments or {}
    return read_arguments(arguments) if arguments.strip() else {}
