"""CPU time that one streamed token costs the server, without the engine; it needs no quiet machine.

The engine is replaced by one that sleeps for the time of a pass and then has a token for every request. Clients stream,
all at once, from another process. The cost of the same passes without a server is subtracted. The rest is the CPU time
of waking the event loop, and of writing and sending events, while the next pass runs.

    python benchmarks/server_token.py
    python benchmarks/server_token.py --clients 1 --tokens 2000 --pass-seconds 0.002 --json

The last line of standard output is one JSON object.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from common import finish, show
from served import NAME, ask_all, elsewhere, served

from paceline import LLM, SamplingParams
from paceline.engine.loop.step import StepOutput
from paceline.models.text.call_formats import HERMES
from paceline.types import CompletionOutput, RequestMetrics, RequestOutput, RequestStats, TokenOutput

_NO_STATS = RequestStats(0, 0, 0, 0, 0, (), 0.0, 0.0, 0.0, 0.0)


class SleepingEngine:
    """As much of an `Engine` as a server uses: every step sleeps `pass_seconds` and gives each request one token."""

    def __init__(self, pass_seconds: float) -> None:
        self._seconds = pass_seconds
        self._left: dict[str, tuple[tuple[int, ...], int, int]] = {}

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self._left)

    def add_request(self, request_id: str, prompt: Sequence[int], params: SamplingParams, **_: Any) -> None:
        self._left[request_id] = tuple(prompt), params.max_tokens, params.max_tokens

    def abort(self, request_id: str) -> None:
        self._left.pop(request_id, None)

    def end(self, request_id: str) -> list[StepOutput]:
        self.abort(request_id)
        return []

    def step(self) -> list[StepOutput]:
        time.sleep(self._seconds)
        return [self._advance(request_id) for request_id in list(self._left)]

    def _advance(self, request_id: str) -> StepOutput:
        prompt, left, whole = self._left[request_id]
        token = TokenOutput(7, " seven", "target")
        if left > 1:
            self._left[request_id] = prompt, left - 1, whole
            return StepOutput(request_id, (token,))
        del self._left[request_id]
        sample = CompletionOutput(0, "", (7,) * whole, ("target",) * whole, "length", _NO_STATS)
        done = RequestOutput(request_id, None, prompt, (sample,), RequestMetrics(0.0, 0.0, 0.0, 0.0))
        return StepOutput(request_id, (token,), done, 0, sample)


def sleeping_llm(pass_seconds: float) -> LLM:
    """Such an engine with what a server asks of the `LLM` around it."""
    engine = SleepingEngine(pass_seconds)
    return cast(LLM, SimpleNamespace(
        engine=engine,
        engines_in_flight=lambda: [engine],
        loaded=SimpleNamespace(turn=nullcontext(), check_open=lambda: None),
        model_name=NAME,
        tokenizer=SimpleNamespace(thought_tags=None, call_format=HERMES),
        token_ids_of=lambda prompt, add_special_tokens=True: [1, 2, 3],
        params_for=lambda prompt, params: params,
        prepared=lambda params: params,
    ))  # fmt: skip


def used() -> tuple[float, int]:
    """Seconds of this process's processors so far, and how often one of its threads has gone to sleep."""
    return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def without_server(pass_seconds: float, clients: int, tokens: int) -> tuple[float, int]:
    """What the steps cost by themselves."""
    engine, before = SleepingEngine(pass_seconds), used()
    for number in range(clients):
        engine.add_request(str(number), (1, 2, 3), SamplingParams(max_tokens=tokens))
    while engine.has_unfinished_requests:
        engine.step()
    after = used()
    return after[0] - before[0], after[1] - before[1]


def measured(ask: Any, pass_seconds: float, clients: int, tokens: int) -> tuple[float, float]:
    """Microseconds of processor time, and sleeps, that the server adds per token."""
    body = {"model": NAME, "prompt": "Count.", "max_tokens": tokens, "temperature": 0}
    alone = without_server(pass_seconds, clients, tokens)
    before = used()
    _, count, _ = ask([body] * clients)
    after = used()
    assert count == clients * tokens
    return 1e6 * (after[0] - before[0] - alone[0]) / count, (after[1] - before[1] - alone[1]) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--tokens", type=int, default=500, help="of each answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pass-seconds", type=float, default=0.005)
    parser.add_argument("--json", action="store_true", help="no table")
    args = parser.parse_args()
    results = []
    with served(sleeping_llm(args.pass_seconds)) as server, elsewhere() as work:
        ask = partial(work, ask_all, server.address, "/v1/completions")
        measured(ask, args.pass_seconds, 1, 20)
        for clients in args.clients:
            rounds = [measured(ask, args.pass_seconds, clients, args.tokens) for _ in range(args.rounds)]
            micros, sleeps = (statistics.median(column) for column in zip(*rounds, strict=True))
            results.append({"clients": clients, "microseconds": micros, "sleeps": sleeps})
    if not args.json:
        rows = [[r["clients"], r["microseconds"], r["sleeps"]] for r in results]
        show("What the server adds per token", ["clients", "µs of processors", "sleeps"], rows)
    finish({"benchmark": "server_token", "pass_seconds": args.pass_seconds, "results": results})


if __name__ == "__main__":
    main()
