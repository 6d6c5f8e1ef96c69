"""OpenAI's batch format, offline and resumable: from a file of requests to a file of answers, without HTTP."""

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from paceline.disk import cut_off, whole_lines
from paceline.errors import InvalidParameter
from paceline.serving.http.body import parse
from paceline.serving.http.front import Front, as_sent
from paceline.serving.http.refusals import refusal_of
from paceline.serving.protocol.openai import ChatRequest, CompletionRequest

KINDS = {"/v1/chat/completions": ChatRequest, "/v1/completions": CompletionRequest}
"""Request types by the ``url`` of a line."""


def read_requests(path: Path) -> list[dict[str, Any]]:
    """The lines of a batch file, each with ``custom_id`` and ``body``; what is wrong with a ``url`` is its answer.

    Raises:
        InvalidParameter: the file cannot be read, a line has no id or body, or two lines have the same id.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # JSON keeps other ends of lines in its strings
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter("input", f"{path} cannot be read ({error})", "give a JSON Lines file") from None
    requests = [_request(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    seen: set[str] = set()
    for request in requests:
        if request["custom_id"] in seen:
            problem = f"custom_id {request['custom_id']!r} is there twice"
            raise InvalidParameter("input", problem, "give every line its own")
        seen.add(request["custom_id"])
    return requests


def answered(path: Path) -> set[str]:
    """Ids that an earlier run has answered. An incomplete last line is removed from the file."""
    if not path.exists():
        return set()
    try:
        lines = [json.loads(line) for line in whole_lines(path) if line.strip()]
        found = {line["custom_id"] for line in lines}
    except (ValueError, KeyError, TypeError):
        raise InvalidParameter("output", f"{path} holds something else", "name a new file") from None
    if any("url" in line for line in lines):
        raise InvalidParameter("output", f"{path} holds requests, not answers", "name a new file")
    cut_off(path)
    return found


def num_refused(path: Path, requests: Sequence[dict[str, Any]]) -> int:
    """How many of `requests` have an error in place of an answer in the file of answers at `path`."""
    lines = [json.loads(line) for line in whole_lines(path) if line.strip()]
    status = {line["custom_id"]: (line.get("response") or {}).get("status_code") for line in lines}
    return sum(status.get(request["custom_id"]) != 200 for request in requests)


async def run_batch(front: Front, requests: list[dict[str, Any]], write: Callable[[dict[str, Any]], None]) -> None:
    """Answer all `requests`, as many at once as `front` admits; calls `write` with each answer as it finishes."""
    waiting: Iterator[dict[str, Any]] = iter(requests)

    async def work() -> None:
        for request in waiting:
            write(await _answer(front, request))

    await asyncio.gather(*(work() for _ in range(min(front.settings.max_running, len(requests)))))


async def _answer(front: Front, request: dict[str, Any]) -> dict[str, Any]:
    """A line of the output, with status and error for a rejected request."""
    head = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": request["custom_id"]}
    try:
        whole = {key: value for key, value in request["body"].items() if key not in ("stream", "stream_options")}
        body = parse(json.dumps(whole).encode(), _kind(request))
        with as_sent(body.sent_name):
            jobs, answer = front.prepared(body)
            status, told = 200, await front.whole(body, jobs, answer)
    except Exception as error:
        refusal = refusal_of(error)
        status, told = refusal.status, refusal.body
    return head | {"response": {"status_code": status, "request_id": head["id"], "body": told}, "error": None}


def _kind(request: dict[str, Any]) -> type[CompletionRequest] | type[ChatRequest]:
    """The type of a request. Raises InvalidParameter for a ``url`` that batches do not serve."""
    url = request.get("url")
    if isinstance(url, str) and url in KINDS:
        return KINDS[url]
    problem = "is missing" if url is None else f"{url!r} is not served in a batch"
    raise InvalidParameter("url", problem, f"use one of {', '.join(KINDS)}")


def _request(path: Path, number: int, line: str) -> dict[str, Any]:
    where = f"{path} line {number}"
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidParameter("input", f"{where} is no JSON", "write one request per line") from None
    if not isinstance(found, dict) or not isinstance(found.get("body"), dict):
        raise InvalidParameter("input", f"{where} has no body", "see docs/serving.md")
    if not isinstance(found.get("custom_id"), str):
        raise InvalidParameter("input", f"{where} has no custom_id", "give every line its own text")
    return found
