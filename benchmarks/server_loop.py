"""Measures how long the server's event loop is blocked at most, while requests of several megabytes arrive.

Clients stream answers all the while, and another one sends requests as large as the server takes: 4 MB of text, of
token ids, of messages, of nested lists and of escapes, a text as long as the context can hold, a large schema, and
log-probabilities of a whole prompt. Two monitors watch the loop:

    callback    the longest that one callback of the loop ran, in seconds of the loop's own thread
    gap         the longest wait of a task that wakes every 5 ms while the body is answered. It includes the effects of
                other threads that hold Python's lock and of other programs, so each body is sent several times and
                its smallest gap is reported

    python benchmarks/server_loop.py
    python benchmarks/server_loop.py --seconds 5 --rounds 1 --json

Exits with 1 when a callback ran for more than 50 ms. The last line of standard output is one JSON object.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
from common import finish, show
from served import JSON_TYPE, NAME, ask_all, elsewhere, served

from paceline import LLM

LIMIT = 0.05
_BEAT = 0.005
_SIZE = (4 << 20) - 4096


def large_bodies() -> dict[str, tuple[str, bytes]]:
    """Name to (path, body), none much larger than 4 MiB."""
    schema = {"anyOf": [{"type": "object", "properties": {f"a{i}": {"type": "string"}}} for i in range(900)]}
    asked: dict[str, tuple[str, Any]] = {
        "text": ("completions", {"prompt": "word " * (_SIZE // 5)}),
        "escapes": ("completions", {"prompt": "\u00e9" * (_SIZE // 6)}),
        "context of text": ("completions", {"prompt": "The quick brown fox, 13 dogs. " * 20_000, "max_tokens": 1}),
        "token ids": ("completions", {"prompt": [7] * (_SIZE // 3)}),
        "as many ids as fit": ("completions", {"prompt": [7] * 490_000}),
        "nested lists": ("completions", {"prompt": [[7]] * (_SIZE // 5)}),
        "as many lists as fit": ("completions", {"prompt": [[7]] * 29_000}),
        "messages": ("chat/completions", {"messages": [{"role": "user", "content": "a"}] * 12_000, "max_tokens": 1}),
        "one long message": ("chat/completions", {"messages": [{"role": "user", "content": "a b " * (_SIZE // 4)}]}),
        "fields": ("completions", {"prompt": "a", "metadata": {str(i): i for i in range(49_000)}}),
        "schema": ("completions", {"prompt": "a", "max_tokens": 1, "guided_json": schema}),
        "prompt_logprobs": ("completions", {"prompt": "a b c " * 400, "max_tokens": 1, "prompt_logprobs": 20}),
        "tokenize": ("tokenize", {"prompt": "The quick brown fox. " * 20_000, "return_token_strs": True}),
    }
    return {
        name: (f"/{path}" if path == "tokenize" else f"/v1/{path}", json.dumps({"model": NAME} | body).encode())
        for name, (path, body) in asked.items()
    }


def stream_on(address: str, seconds: float, most: int) -> int:
    """Stream answers, `most` at a time, until the time is up; how many were."""

    body = {"model": NAME, "prompt": "Count: 1, 2, 3,", "max_tokens": 64, "ignore_eos": True, "temperature": 0}
    ends, count = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        ask_all(address, "/v1/completions", [body] * most)
        count += most
    return count


def send(address: str, name: str) -> int:
    """One large request; its status."""
    path, body = large_bodies()[name]
    return httpx.post(address + path, content=body, headers=JSON_TYPE, timeout=600).status_code


class Watch:
    """Both monitors of one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.reset()

    def reset(self) -> None:
        """Forget what was seen."""
        self.longest, self.gap, self.what = 0.0, 0.0, ""

    async def beat(self) -> None:
        """Runs on the loop until it is cancelled."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(_BEAT)
            self.gap = max(self.gap, time.monotonic() - began - _BEAT)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Time every callback of the loop in seconds of its thread."""
        run = asyncio.events.Handle._run  # type: ignore[attr-defined]

        def timed(handle: Any) -> None:
            if handle._loop is not self._loop:
                return run(handle)
            began = time.thread_time()
            run(handle)
            took = time.thread_time() - began
            if took > self.longest:
                self.longest, self.what = took, _named(handle)

        asyncio.events.Handle._run = timed  # type: ignore[attr-defined]
        beating = asyncio.run_coroutine_threadsafe(self.beat(), self._loop)
        try:
            yield
        finally:
            asyncio.events.Handle._run = run  # type: ignore[attr-defined]
            beating.cancel()


def _named(handle: Any) -> str:
    """The coroutine that a callback wakes."""
    task = getattr(handle._callback, "__self__", None)
    coroutine = getattr(task, "get_coro", lambda: None)()
    return getattr(coroutine, "__qualname__", "") or repr(handle._callback)[:60]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5, help="times that each body is sent at least")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--json", action="store_true", help="no table")
    args = parser.parse_args()
    llm = LLM(args.model, num_threads=args.threads)
    llm.engine.grammars.warm_up()
    rows, found = [], {}
    with served(llm, loop=asyncio.new_event_loop()) as server, elsewhere() as work, elsewhere() as stream:
        for name in large_bodies():
            work(send, server.address, name)
        watch = Watch(server.loop)
        with watch.watching(), ThreadPoolExecutor(1) as aside:
            streaming = aside.submit(stream, stream_on, server.address, args.seconds, args.streams)
            while not streaming.done() or len(found["tokenize"]) < args.rounds:
                for name in large_bodies():
                    watch.reset()
                    status = work(send, server.address, name)
                    found.setdefault(name, []).append((status, watch.longest, watch.gap, watch.what))
    worst = max(longest for seen in found.values() for _, longest, _, _ in seen)
    for name, seen in found.items():
        longest, what = max((each[1], each[3]) for each in seen)
        rows.append([name, seen[0][0], len(seen), 1000 * longest, 1000 * min(each[2] for each in seen), what])
    if not args.json:
        header = ["body", "status", "sent", "longest callback, ms", "gap, ms", "callback"]
        show(f"The event loop beside {args.streams} streams", header, rows)
    names = ("body", "status", "sent", "callback_ms", "gap_ms")
    bodies = [dict(zip(names, row, strict=False)) for row in rows]
    finish({"benchmark": "server_loop", "model": args.model, "longest_callback": worst, "bodies": bodies})
    sys.exit(1 if worst > LIMIT else 0)


if __name__ == "__main__":
    main()
