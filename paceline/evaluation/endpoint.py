"""Client of servers with OpenAI's API, for benches and audits: timed answers, and statistics where there are any.

Servers differ in what they report besides text: `dialect_of` tells which one it is. What a server does not report is
None, never 0. Standard library only. Not for serving (`serving/`).
"""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException
from typing import Any

from paceline.errors import InvalidParameter, first_line
from paceline.evaluation.bench.arms import Answer
from paceline.types import SamplingParams

TIMEOUT = 600.0
_QUICK = 10.0
_FAILURES = (OSError, ValueError, HTTPException)
"""Exceptions of a failed request: no connection, invalid JSON, invalid or incomplete HTTP."""
_PROBES = (
    ("llama-server", "/props"),
    ("sglang", "/get_server_info"),
    ("vllm", "/version"),
    ("ollama", "/api/version"),
)
_COUNTER = re.compile(
    r"^[a-z_:]*spec_decode_num_(drafts|draft_tokens|accepted_tokens)(?:_total)?(?:\{[^}]*\})? ([0-9.e+]+)$"
)
_NO_CACHE: dict[str, dict[str, Any]] = {"llama-server": {"cache_prompt": False}}
"""Fields of the request that disable prefix caching, by dialect."""


@dataclass(frozen=True, slots=True)
class Server:
    """One endpoint.

    Attributes:
        url: base URL, without ``/v1``.
        model: name of the model in requests.
        dialect: ``vllm``, ``sglang``, ``llama-server``, ``ollama``, ``paceline`` or ``openai``.
        has_metrics: whether ``/metrics`` has counters of speculation.
        field: the option that gave the URL, for errors.
    """

    url: str
    model: str
    dialect: str = "openai"
    has_metrics: bool = False
    field: str = "url"


def connect(url: str, model: str | None = None, field: str = "url") -> Server:
    """The server at `url` with its dialect and model, by default the first it lists; errors name the option `field`.

    Raises:
        InvalidParameter: nothing answers there, or it lists no model and none is named.
    """
    base = url.rstrip("/").removesuffix("/v1")
    listed = _get_json(base + "/v1/models")
    if listed is None and model is None:
        raise InvalidParameter(field, f"{url} does not answer GET /v1/models", "start the server, or check the address")
    name = model or next((entry.get("id") for entry in _entries(listed)), None)
    if name is None:
        raise InvalidParameter(field, f"{url} lists no model", "name one: LABEL=URL#MODEL")
    return Server(base, str(name), dialect_of(base, listed), counters(base) is not None, field)


def connect_to(address: str, field: str = "url") -> Server:
    """`connect` to ``URL`` or ``URL#MODEL``."""
    url, _, model = address.partition("#")
    return connect(url, model or None, field)


def _entries(listed: Any) -> list[Mapping[str, Any]]:
    """The entries of a ``/v1/models`` response; empty if it has another form."""
    found = listed.get("data") if isinstance(listed, Mapping) else None
    return [entry for entry in found if isinstance(entry, Mapping)] if isinstance(found, list) else []


def dialect_of(base: str, listed: Any = None) -> str:
    """The dialect of the server at `base`, from `listed` or by probing; ``openai`` if unknown."""
    owners = {str(entry.get("owned_by")) for entry in _entries(listed)}
    for known, name in (("llamacpp", "llama-server"), ("vllm", "vllm"), ("sglang", "sglang"), ("paceline", "paceline")):
        if known in owners:
            return name
    return next((name for name, path in _PROBES if isinstance(_get_json(base + path), Mapping)), "openai")


def counters(base: str) -> dict[str, float] | None:
    """``drafts``, ``draft_tokens`` and ``accepted_tokens`` from ``/metrics``; None if it has none of them."""
    text = _get(base + "/metrics")
    found: dict[str, float] = {}
    for line in (text or "").splitlines():
        match = _COUNTER.match(line)
        if match:
            found[match[1]] = found.get(match[1], 0.0) + float(match[2])
    return found or None


def complete(
    server: Server,
    prompt: str,
    params: SamplingParams,
    raw: bool = False,
    extra: Mapping[str, Any] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Answer:
    """Request one answer as a stream, and time it.

    Args:
        raw: request a completion of the text instead of a chat answer.
        extra: further fields of the request.

    Raises:
        InvalidParameter: the server refuses the request or cannot be reached; its message is included.
    """
    path = "/v1/completions" if raw else "/v1/chat/completions"
    body = request_body(server, prompt, params, raw) | dict(extra or {})
    pieces: list[str] = []
    usage: Mapping[str, Any] = {}
    timings: Mapping[str, Any] = {}
    started = clock()
    first = last = None
    for event in _events(server, path, body):
        if event.get("error"):
            raise InvalidParameter(server.field, f"{server.url} failed: {event['error']}", "see the server's log")
        piece = _piece(event)
        if piece:
            last = clock()
            first = first or last
            pieces.append(piece)
        usage, timings = event.get("usage") or usage, event.get("timings") or timings
    tokens = int(usage.get("completion_tokens") or timings.get("predicted_n") or len(pieces))
    ended = last or clock()
    read = usage.get("prompt_tokens")
    answer = Answer(tokens, "".join(pieces), (first or ended) - started, ended - started, prompt_tokens=read)
    return _with_timings(answer, timings)


def request_body(server: Server, prompt: str, params: SamplingParams, raw: bool) -> dict[str, Any]:
    """The JSON body of a request."""
    what: dict[str, Any] = {"prompt": prompt} if raw else {"messages": [{"role": "user", "content": prompt}]}
    body = what | {
        "model": server.model,
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if params.seed is not None:
        body["seed"] = params.seed
    if params.ignore_eos and server.dialect in ("vllm", "sglang", "llama-server", "paceline"):
        body["ignore_eos"] = True
    return body | _NO_CACHE.get(server.dialect, {})


def _with_timings(answer: Answer, timings: Mapping[str, Any]) -> Answer:
    """`answer` with llama-server's drafted and accepted tokens, 0 where nothing was drafted; unchanged without any."""
    if "draft_n" not in timings and "predicted_n" not in timings:
        return answer
    drafted, accepted = int(timings.get("draft_n", 0)), int(timings.get("draft_n_accepted", 0))
    passes = max(answer.tokens - 1 - accepted, 0)
    return replace(answer, passes=passes, drafted=drafted, accepted=accepted)


def _piece(event: Mapping[str, Any]) -> str:
    """The new text in one event, or an empty string."""
    choice = (event.get("choices") or [{}])[0]
    delta = choice.get("delta") or {}
    return delta.get("content") or delta.get("reasoning_content") or choice.get("text") or ""


def _events(server: Server, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream of server-sent events; exactly one from a server that does not stream."""
    url = server.url + path
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            if "event-stream" not in response.headers.get("Content-Type", ""):
                yield _as_event(_object(response.read()))
                return
            for line in response:
                text = line.decode("utf-8", "replace").strip()
                if text.startswith("data:") and text != "data: [DONE]":
                    yield _object(text.removeprefix("data:"))
    except urllib.error.HTTPError as error:
        words = error.read().decode("utf-8", "replace")[:300]
        raise InvalidParameter(server.field, f"{url} answers {error.code}: {words}", "see the server's log") from None
    except _FAILURES as error:
        problem = f"{url} cannot be asked ({first_line(error)})"
        raise InvalidParameter(server.field, problem, "start the server, or check the address") from None


def _object(text: str | bytes) -> dict[str, Any]:
    """The JSON object in `text`. Raises ValueError if it is none."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"{str(found)[:60]!r} is no object")
    return found


def _as_event(body: Mapping[str, Any]) -> dict[str, Any]:
    """A response that was not streamed, in the form of one event."""
    choices = [dict(choice) | {"delta": choice.get("message") or {}} for choice in body.get("choices") or []]
    return dict(body) | {"choices": choices}


def post_json(url: str, body: Mapping[str, Any], seconds: float = _QUICK) -> Any:
    """The JSON response to a POST request; None if it fails or takes longer than `seconds`."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            return json.loads(response.read())
    except _FAILURES:
        return None


def _get(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=_QUICK) as response:
            return response.read().decode("utf-8", "replace")
    except _FAILURES:
        return None


def _get_json(url: str) -> Any:
    try:
        return json.loads(_get(url) or "null")
    except ValueError:
        return None
