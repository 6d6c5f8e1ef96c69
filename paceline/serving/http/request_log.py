"""`RequestLog`: one line of JSON for each answered request. No prompts, no answers, no keys."""

import json
import re
import time
import uuid
from collections import Counter
from typing import IO, Any

_FOREIGN = re.compile(r"[^A-Za-z0-9._-]")


class RequestLog:
    """ASGI middleware: writes a line when an answer has ended, and counts answers by path and status.

    Args:
        app: what answers.
        stream: where lines go; None writes none.
        paths: those that are counted by name; others count as ``other``.
    """

    def __init__(self, app: Any, stream: IO[str] | None, paths: frozenset[str]) -> None:
        self._app, self._stream, self._paths = app, stream, paths
        self.counts: Counter[tuple[str, int]] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope["headers"])
        scope.setdefault("state", {})["request_id"] = request_id
        began, status = time.time(), 0

        async def noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = message | {"headers": [*message["headers"], (b"x-request-id", request_id.encode())]}
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            self._note(scope, request_id, status, began)

    def _note(self, scope: Any, request_id: str, status: int, began: float) -> None:
        path = scope["path"] if scope["path"] in self._paths else "other"
        self.counts[path, status] += 1
        if self._stream is None:
            return
        line = {
            "time": round(began, 3), "event": "request", "id": request_id, "method": scope["method"],
            "path": scope["path"][:200], "status": status, "seconds": round(time.time() - began, 4),
        }  # fmt: skip
        line |= scope["state"].get("noted", {})
        self._stream.write(json.dumps(line) + "\n")
        self._stream.flush()


def _request_id(headers: list[tuple[bytes, bytes]]) -> str:
    """The client's own id, cut to 64 plain characters, or a new one."""
    given = next((value.decode("latin-1") for name, value in headers if name == b"x-request-id"), "")
    return _FOREIGN.sub("", given)[:64] or uuid.uuid4().hex
