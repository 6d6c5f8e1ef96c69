"""`DemandedCall`: reads an answer that a grammar makes a call, ``{"name": ..., "arguments": ...}``, while it comes.

Its arguments are told as the model writes them. Not for calls that a model makes by itself (`tools.py`).
"""

import json
import re

_NAME = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")')
_ARGUMENTS = re.compile(r'\s*,\s*"arguments"\s*:\s*')


class DemandedCall:
    """One call.

    Attributes:
        name: of the function; None until it is whole.
        is_whole: the call has ended.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self.is_whole = False
        self._held, self._is_inside = "", False
        self._depth, self._in_string, self._is_escaped = 0, False, False

    def push(self, text: str) -> str:
        """More of the answer; returns more of the arguments."""
        if self._is_inside:
            return self._more(text)
        self._held += text
        if self.name is None:
            self._read_name()
        begun = _ARGUMENTS.match(self._held) if self.name is not None else None
        if begun is None or begun.end() == len(self._held):  # more blank space may follow
            return ""
        self._is_inside = True
        return self._more(self._held[begun.end() :])

    def _read_name(self) -> None:
        found = _NAME.match(self._held)
        if found is None:
            return
        try:
            self.name, self._held = json.loads(found[1]), self._held[found.end() :]
        except ValueError:
            return

    def _more(self, text: str) -> str:
        """The part of `text` that belongs to the arguments: all before the brace that ends the call."""
        if self.is_whole:
            return ""
        for place, char in enumerate(text):
            if self._in_string:
                self._in_string = self._is_escaped or char != '"'
                self._is_escaped = char == "\\" and not self._is_escaped
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth < 0:
                    self.is_whole = True
                    return text[:place]
        return text
