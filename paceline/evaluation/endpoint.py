"""Any server that speaks OpenAI's protocol, as a bench and an audit ask it: answers with times, and what it tells.

Dialects differ in what they tell besides text: `dialect_of` finds out which one speaks. What a server does not say is
None, never 0. Standard library only. Not for serving (`serving/`).
"""

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from paceline.errors import InvalidParameter
from paceline.evaluation.bench.arms import Answer, Cell
from paceline.models.tokenizer import Tokenizer
from paceline.types import SamplingParams

TIMEOUT = 600.0
_QUICK = 10.0
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
"""What keeps an earlier answer from making the next one faster, where the dialect has it."""


@dataclass(frozen=True, slots=True)
class Server:
    """One endpoint.

    Attributes:
        url: up to and without ``/v1``.
        model: name to ask for.
        dialect: ``vllm``, ``sglang``, ``llama-server``, ``ollama``, ``paceline`` or ``openai``.
        has_metrics: counters of speculation can be read.
    """

    url: str
    model: str
    dialect: str = "openai"
    has_metrics: bool = False


def connect(url: str, model: str | None = None) -> Server:
    """The server at `url`, its dialect and the model it serves.

    Raises:
        InvalidParameter: nothing answers there, or it lists no model and none is named.
    """
    base = url.rstrip("/").removesuffix("/v1")
    listed = _get_json(base + "/v1/models")
    if listed is None and model is None:
        raise InvalidParameter("url", f"{url} does not answer GET /v1/models", "start the server, or check the address")
    names = [entry.get("id") for entry in (listed or {}).get("data", [])] if isinstance(listed, Mapping) else []
    name = model or (names[0] if names else None)
    if name is None:
        raise InvalidParameter("url", f"{url} lists no model", "name one: LABEL=URL#MODEL")
    return Server(base, str(name), dialect_of(base, listed), counters(base) is not None)


def connect_to(address: str) -> Server:
    """`connect` to ``URL`` or ``URL#MODEL``."""
    url, _, model = address.partition("#")
    return connect(url, model or None)


def dialect_of(base: str, listed: Any = None) -> str:
    """Which server speaks at `base`; ``openai`` where nothing gives it away."""
    owners = (
        {str(entry.get("owned_by")) for entry in (listed or {}).get("data", [])}
        if isinstance(listed, Mapping)
        else set()
    )
    for known, name in (("llamacpp", "llama-server"), ("vllm", "vllm"), ("sglang", "sglang"), ("paceline", "paceline")):
        if known in owners:
            return name
    return next((name for name, path in _PROBES if isinstance(_get_json(base + path), Mapping)), "openai")


def counters(base: str) -> dict[str, float] | None:
    """``drafts``, ``draft_tokens`` and ``accepted_tokens`` from ``/metrics``; None where it has none."""
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
    """One streamed answer.

    Args:
        raw: ask for a completion of the text, not for a chat answer to it.
        extra: further fields of the body.

    Raises:
        InvalidParameter: the server refuses or is gone; its words are in the message.
    """
    path = "/v1/completions" if raw else "/v1/chat/completions"
    body = request_body(server, prompt, params, raw) | dict(extra or {})
    pieces: list[str] = []
    usage: Mapping[str, Any] = {}
    timings: Mapping[str, Any] = {}
    started = clock()
    first = last = None
    for event in _events(server.url + path, body):
        if event.get("error"):
            raise InvalidParameter("url", f"{server.url} failed: {event['error']}", "see the server's log")
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
    """What is posted."""
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


def tokens_of(server: Server, text: str, tokenizer: Tokenizer | None = None, is_prompt: bool = False) -> list[int]:
    """The token ids of a text by the server's own ``/tokenize``, or by `tokenizer` where it has none.

    Args:
        is_prompt: it is what a user says, and goes into the chat template.

    Raises:
        InvalidParameter: neither the server nor anybody here knows its tokens.
    """
    message = [{"role": "user", "content": text}]
    if server.dialect == "llama-server":
        if is_prompt:
            told = _post_json(f"{server.url}/apply-template", {"messages": message})
            text = str(told["prompt"]) if told else text
        told = _post_json(f"{server.url}/tokenize", {"content": text, "add_special": is_prompt, "parse_special": True})
    else:
        what = {"messages": message} if is_prompt else {"prompt": text, "add_special_tokens": False}
        told = _post_json(f"{server.url}/tokenize", {"model": server.model} | what)
    if isinstance(told, Mapping) and isinstance(told.get("tokens"), list):
        return [int(token) for token in told["tokens"]]
    if tokenizer is None:
        problem, remedy = f"{server.url} has no /tokenize", "name the model too, for its tokenizer"
        raise InvalidParameter("url", problem, remedy)
    return list(tokenizer.encode_chat(message) if is_prompt else tokenizer.encode(text, add_special_tokens=False))


def gap_where_it_leaves(
    server: Server, prompt: str, text: str, params: SamplingParams, raw: bool = False
) -> float | None:
    """Log probability of the best token less that of the second best, where the server's own answer leaves `text`.

    The prompt is asked again, with log probabilities. None where the server tells none, or does not leave the text.
    """
    more: dict[str, Any] = {"logprobs": 2} if raw else {"logprobs": True, "top_logprobs": 2}
    body = request_body(server, prompt, params, raw) | more | {"stream": False}
    del body["stream_options"]
    told = _post_json(server.url + ("/v1/completions" if raw else "/v1/chat/completions"), body, TIMEOUT)
    choice = ((told or {}).get("choices") or [{}])[0]
    said = ""
    for piece, best in _told_tokens(choice.get("logprobs") or {}):
        said += piece
        if not text.startswith(said):
            return best[0] - best[1] if len(best) > 1 else None
    return None


def _told_tokens(told: Mapping[str, Any]) -> Iterator[tuple[str, list[float]]]:
    """(text of each token, log probabilities of the best ones, falling), as chats or as completions tell them."""
    for each in told.get("content") or []:
        yield str(each["token"]), sorted((one["logprob"] for one in each.get("top_logprobs") or []), reverse=True)
    for piece, best in zip(told.get("tokens") or [], told.get("top_logprobs") or [], strict=False):
        yield str(piece), sorted((best or {}).values(), reverse=True)


class EndpointArm:
    """A server as an arm of a bench; see `bench.arms.Arm`.

    Args:
        server: where.
        label, base: as in `Arm`.
        raw: as in `complete`.
    """

    def __init__(self, server: Server, label: str, base: str, raw: bool = False) -> None:
        self.server, self.label, self.base, self._raw = server, label, base, raw
        self._salt = ""

    def begin(self, round_number: int) -> None:
        """See `Arm`: a fresh cache salt where the server knows one, and a short answer to wake it."""
        self._salt = f"{self.label}-{round_number}"
        complete(self.server, "Hello.", SamplingParams(temperature=0, max_tokens=4), self._raw, self._extra)

    def answer(self, cell: Cell) -> tuple[float, list[Answer]]:
        """See `Arm`; the prompts of a cell are asked together, each by a thread."""
        before = counters(self.server.url) if self.server.has_metrics else None
        started = time.perf_counter()
        with ThreadPoolExecutor(len(cell.prompts)) as threads:
            answers = list(threads.map(lambda i: self._ask(cell, i), range(len(cell.prompts))))
        seconds = time.perf_counter() - started
        after = counters(self.server.url) if before is not None else None
        return seconds, answers if before is None or after is None else _with_counters(answers, before, after)

    @property
    def _extra(self) -> dict[str, Any]:
        return {"cache_salt": self._salt} if self.server.dialect == "vllm" else {}

    def _ask(self, cell: Cell, index: int) -> Answer:
        return complete(self.server, cell.prompts[index], cell.params(index), self._raw, self._extra)


def answers_from_a_cache(server: Server, raw: bool = False) -> bool | None:
    """Whether a repeated prompt is answered much faster than the first time; None when the answer is too short."""
    prompt = f"Count from {time.time_ns() % 997} up to one hundred more, separated by commas."
    params = SamplingParams(temperature=0, max_tokens=24)
    first, second = (complete(server, prompt, params, raw) for _ in range(2))
    return None if first.tokens < 8 else second.seconds < 0.5 * first.seconds


def _with_timings(answer: Answer, timings: Mapping[str, Any]) -> Answer:
    """What llama-server tells of an answer: drafted and accepted tokens, or nothing of them when none were drafted."""
    if "draft_n" not in timings and "predicted_n" not in timings:
        return answer
    drafted, accepted = int(timings.get("draft_n", 0)), int(timings.get("draft_n_accepted", 0))
    passes = max(answer.tokens - 1 - accepted, 0)
    return replace(answer, passes=passes, drafted=drafted, accepted=accepted)


def _with_counters(answers: Sequence[Answer], before: Mapping[str, float], after: Mapping[str, float]) -> list[Answer]:
    """The cell's drafts, from the server's counters, told with its first answer; nobody else may use the server."""
    grown = {name: int(after.get(name, 0.0) - before.get(name, 0.0)) for name in after}
    tokens, accepted = sum(answer.tokens for answer in answers), grown.get("accepted_tokens", 0)
    passes = max(tokens - len(answers) - accepted, 0)
    first, *others = answers
    told = replace(first, passes=passes, drafted=grown.get("draft_tokens", 0), accepted=accepted)
    return [told, *(replace(answer, passes=0, drafted=0, accepted=0) for answer in others)]


def _piece(event: Mapping[str, Any]) -> str:
    """The text of one event."""
    choice = (event.get("choices") or [{}])[0]
    delta = choice.get("delta") or {}
    return delta.get("content") or delta.get("reasoning_content") or choice.get("text") or ""


def _events(url: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The objects of a stream of server-sent events; a server that does not stream sends one."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            if "event-stream" not in response.headers.get("Content-Type", ""):
                yield _as_event(json.loads(response.read()))
                return
            for line in response:
                text = line.decode("utf-8", "replace").strip()
                if text.startswith("data:") and text != "data: [DONE]":
                    yield json.loads(text.removeprefix("data:"))
    except urllib.error.HTTPError as error:
        words = error.read().decode("utf-8", "replace")[:300]
        raise InvalidParameter("url", f"{url} answers {error.code}: {words}", "see the server's log") from None
    except (OSError, ValueError) as error:
        raise InvalidParameter(
            "url", f"{url} cannot be asked ({error})", "start the server, or check the address"
        ) from None


def _as_event(body: Mapping[str, Any]) -> dict[str, Any]:
    """A whole answer in the shape of one event."""
    choices = [dict(choice) | {"delta": choice.get("message") or {}} for choice in body.get("choices", [])]
    return dict(body) | {"choices": choices}


def _post_json(url: str, body: Mapping[str, Any], seconds: float = _QUICK) -> Any:
    """The answer to a body, None where there is none."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            return json.loads(response.read())
    except (OSError, ValueError):
        return None


def _get(url: str) -> str | None:
    try:
        with urllib.request.urlopen(url, timeout=_QUICK) as response:
            return response.read().decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


def _get_json(url: str) -> Any:
    try:
        return json.loads(_get(url) or "null")
    except ValueError:
        return None
