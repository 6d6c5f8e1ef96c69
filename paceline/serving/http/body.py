"""Read request bodies: size limit, JSON content type, finite numbers; long ones are parsed off the event loop.

The content type is required because a web page may send other types to this server without a CORS preflight. For the
fields of bodies see `protocol/`.
"""

import asyncio
import json
from typing import NoReturn, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from paceline.errors import InvalidParameter
from paceline.serving.http.refusals import HttpRefusal
from paceline.serving.protocol.fields import wrong_field

_Model = TypeVar("_Model", bound=BaseModel)
_LONG = 1 << 16
"""Size in bytes from which a body is parsed on a thread."""
_PATIENCE = 60.0
"""Timeout in seconds for receiving a body."""
_HEAVIEST = 500_000
_CONTAINER, _FIELD = 16, 8
"""Cost of parsing a list or object, and a field of one, relative to a number. Parsing holds Python's lock, on whichever
thread; the most expensive allowed body takes about 40 ms."""


async def read_body(request: Request, kind: type[_Model], max_bytes: int) -> _Model:
    """The body of a request.

    Raises:
        HttpRefusal: 413 beyond `max_bytes`, counted while reading, or for too many values; 415 unless it is sent
            as JSON.
        InvalidParameter: it is not JSON, or a field is missing or has the wrong type.
    """
    sent_as = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if sent_as != "application/json" and not sent_as.endswith("+json"):
        raise HttpRefusal(415, f"the body is sent as {sent_as or 'nothing'!r}; send Content-Type: application/json")
    data = await _bytes(request, max_bytes)
    return await asyncio.to_thread(parse, data, kind) if len(data) > _LONG else parse(data, kind)


def parse(data: bytes, kind: type[_Model]) -> _Model:
    """Parse `data` as a `kind`. Raises InvalidParameter with the field's name, and HttpRefusal for too many values."""
    if len(data) > _LONG and weight(data) > _HEAVIEST:
        raise HttpRefusal(413, "the body holds too many values; send fewer prompts, messages or token ids at once")
    try:
        found = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        problem = f"is no JSON ({str(error)[:100] or 'nested too deeply'})"
        raise InvalidParameter("body", problem, "send one JSON object") from None
    if not isinstance(found, dict):
        raise InvalidParameter("body", f"is a {type(found).__name__}", "send one JSON object")
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        raise wrong_field(error) from None


def is_long(request: Request) -> bool:
    """Whether a body should be parsed on a thread, by its Content-Length."""
    announced = request.headers.get("content-length", "")
    return not announced.isdigit() or int(announced) > _LONG


def weight(data: bytes) -> int:
    """Estimated cost of parsing JSON, in units of a number: more for lists, objects and their fields."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    letters = np.frombuffer(data, dtype=np.uint8)
    outside = ~np.logical_xor.accumulate(letters == ord('"'))
    counts = {sign: int(np.count_nonzero((letters == ord(sign)) & outside)) for sign in ",[{:"}
    return counts[","] + _CONTAINER * (counts["["] + counts["{"]) + _FIELD * counts[":"]


async def _bytes(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    parts, size = [], 0
    try:
        async with asyncio.timeout(_PATIENCE):
            async for part in request.stream():
                size += len(part)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                parts.append(part)
    except TimeoutError:
        raise HttpRefusal(408, f"the body was not whole after {_PATIENCE:g} s; send it faster") from None
    return b"".join(parts)


def _too_large(max_bytes: int) -> HttpRefusal:
    return HttpRefusal(413, f"the body is larger than {max_bytes} bytes; send less, or raise --max-body-bytes")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
