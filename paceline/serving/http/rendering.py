"""Render response bodies as JSON; large ones on a thread and in pieces.

Python's encoder holds the interpreter lock until it is done, which is noticeable with thousands of log-probabilities.
"""

import asyncio
import json
from typing import Any

from starlette.responses import Response

_DEEP = 7
"""Nesting levels encoded piecewise: body, choices, choice, log-probabilities, list, token, its alternatives."""


async def response(body: Any) -> Response:
    """An answer of `body`."""
    return Response(await rendered(body), media_type="application/json")


async def rendered(body: Any) -> bytes:
    """`body` as JSON."""
    return await asyncio.to_thread(dumps, body) if _is_large(body) else _plain(body).encode()


def dumps(value: Any, depth: int = _DEEP) -> bytes:
    """`value` as compact JSON, encoded in pieces so that other threads can run in between."""
    return _written(value, depth).encode()


def _written(value: Any, depth: int) -> str:
    if depth and isinstance(value, dict):
        return "{" + ",".join([f"{json.dumps(str(k))}:{_written(each, depth - 1)}" for k, each in value.items()]) + "}"
    if depth and isinstance(value, list) and value and isinstance(value[0], dict | list):
        return "[" + ",".join([_written(each, depth - 1) for each in value]) + "]"
    return _plain(value)


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _is_large(body: Any) -> bool:
    """Whether the body contains per-token data."""
    return any(choice.get("logprobs") or "prompt_logprobs" in choice for choice in body.get("choices", ()))
