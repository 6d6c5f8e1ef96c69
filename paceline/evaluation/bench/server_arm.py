"""A server as an arm of a bench: concurrent requests, and statistics from its counters."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from paceline.evaluation.bench.arms import Answer, Cell
from paceline.evaluation.endpoint import Server, complete, counters
from paceline.types import SamplingParams


class EndpointArm:
    """A server as an arm of a bench; see `bench.arms.Arm`.

    Args:
        server: the endpoint.
        label, base: as in `Arm`.
        raw: as in `complete`.
    """

    def __init__(self, server: Server, label: str, base: str, raw: bool = False) -> None:
        self.server, self.label, self.base, self._raw = server, label, base, raw
        self.is_here, self._salt = False, ""

    def begin(self, round_number: int) -> None:
        """See `Arm`: a new cache salt if the server supports it, and a short request to warm up."""
        self._salt = f"{self.label}-{round_number}"
        complete(self.server, "Hello.", SamplingParams(temperature=0, max_tokens=4), self._raw, self._extra)

    def answer(self, cell: Cell) -> tuple[float, list[Answer]]:
        """See `Arm`; a thread per prompt sends it at once or at its arrival time."""
        before = counters(self.server.url) if self.server.has_metrics else None
        started = time.perf_counter()
        with ThreadPoolExecutor(len(cell.prompts)) as threads:
            answers = list(threads.map(lambda i: self._ask(cell, i, started), range(len(cell.prompts))))
        seconds = time.perf_counter() - started
        after = counters(self.server.url) if before is not None else None
        return seconds, answers if before is None or after is None else _with_counters(answers, before, after)

    @property
    def _extra(self) -> dict[str, Any]:
        return {"cache_salt": self._salt} if self.server.dialect == "vllm" else {}

    def _ask(self, cell: Cell, index: int, started: float) -> Answer:
        if cell.starts:
            time.sleep(max(0.0, started + cell.starts[index] - time.perf_counter()))
        return complete(self.server, cell.prompts[index], cell.params(index), self._raw, self._extra)


def answers_from_a_cache(server: Server, raw: bool = False) -> bool | None:
    """Whether a repeated prompt takes less than half the time of the first; None if the answer has under 8 tokens."""
    prompt = f"Count from {time.time_ns() % 997} up to one hundred more, separated by commas."
    params = SamplingParams(temperature=0, max_tokens=24)
    first, second = (complete(server, prompt, params, raw) for _ in range(2))
    return None if first.tokens < 8 else second.seconds < 0.5 * first.seconds


def _with_counters(answers: Sequence[Answer], before: Mapping[str, float], after: Mapping[str, float]) -> list[Answer]:
    """`answers` with the cell's totals from the server's counters in the first one; valid without other users only."""
    grown = {name: int(after.get(name, 0.0) - before.get(name, 0.0)) for name in after}
    tokens, accepted = sum(answer.tokens for answer in answers), grown.get("accepted_tokens", 0)
    passes = max(tokens - len(answers) - accepted, 0)
    first, *others = answers
    told = replace(first, passes=passes, drafted=grown.get("draft_tokens", 0), accepted=accepted)
    return [told, *(replace(answer, passes=0, drafted=0, accepted=0) for answer in others)]
