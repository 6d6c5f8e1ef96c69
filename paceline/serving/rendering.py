"""Bodies of answers as JSON, written beside the event loop and piece by piece where they are large.

Python's encoder holds up every other thread until it has ended; thousands of log-probabilities would be noticed.
"""

import asyncio
import json
from typing import Any

from starlette.responses import Response

_DEEP = 7
"""Levels that are written by hand: body, choices, choice, log-probabilities, list, token, its alternatives."""


async def response(body: Any) -> Response:
    """An answer of `body`."""
    return Response(await rendered(body), media_type="application/json")


async def rendered(body: Any) -> bytes:
    """`body` as JSON."""
    return await asyncio.to_thread(dumps, body) if _is_large(body) else _plain(body).encode()


def dumps(value: Any, depth: int = _DEEP) -> bytes:
    """`value` as `json.dumps` writes it compactly, other threads getting their turns."""
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
    """Whether there are single tokens to tell of."""
    return any(choice.get("logprobs") or "prompt_logprobs" in choice for choice in body.get("choices", ()))
