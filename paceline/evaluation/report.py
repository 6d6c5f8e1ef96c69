"""`Run`: one answer with its times, and what the numbers say. Shared by the command line and the benchmarks.

Rates are of the decoding phase: from the first token to the last. The prefill is the same whether one drafts or not,
and is reported as time to first token.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.engine.llm import LLM, Prompt
from paceline.theory.acceptance import expected_tokens
from paceline.types import RequestOutput, RequestStats, SamplingParams, TokenOutput


@dataclass(frozen=True, slots=True)
class Run:
    """One finished answer.

    Attributes:
        first_token_seconds: from the request to its first token.
        decode_seconds: from the first token to the last.
    """

    output: RequestOutput
    first_token_seconds: float
    decode_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Tokens behind the first one, per second of decoding; 0 when there are none."""
        decoded = len(self.output.token_ids) - 1
        return decoded / self.decode_seconds if decoded and self.decode_seconds else 0.0

    @property
    def pass_seconds(self) -> float:
        """Mean seconds of a decoding step, drafting included; 0 when there was none."""
        passes = self.output.stats.num_target_passes
        return self.decode_seconds / passes if passes else 0.0


def run_once(
    llm: LLM, prompt: Prompt, params: SamplingParams, on_token: Callable[[TokenOutput], None] = lambda token: None
) -> Run:
    """Generate one answer and time it."""
    started = time.perf_counter()
    first = last = None
    stream = llm.stream(prompt, params)
    for token in stream:
        last = time.perf_counter()
        first = first or last
        on_token(token)
    assert stream.output is not None
    assert first is not None
    assert last is not None
    return Run(stream.output, first - started, last - first)


def predicted_speedup(stats: RequestStats, plain_pass_seconds: float) -> float | None:
    """The speed-up theory expects from the measured acceptance rate and cost ratio; None without a decoding pass.

    Leviathan et al. 2023, theorem 3.8, with the measured seconds of a drafting step in place of their g c + 1, and for
    the passes without a draft one token each:
    (f E(alpha, k) + 1 - f) / (seconds of a speculative step / seconds of a plain one), f the share of passes with one.
    """
    passes = stats.num_target_passes
    if not passes or not plain_pass_seconds:
        return None
    drafted = stats.num_drafts / passes
    length = stats.num_draft_tokens / stats.num_drafts if stats.num_drafts else 0.0
    expected = drafted * _expected_between(stats.acceptance_rate or 0.0, length) + 1 - drafted
    step = (stats.draft_seconds + stats.verify_seconds + stats.other_seconds) / passes
    return expected * plain_pass_seconds / step


def _expected_between(alpha: float, length: float) -> float:
    """E(alpha, length) for a mean length that is no whole number, on the straight line between its neighbours."""
    low = math.floor(length)
    at_low = float(expected_tokens(alpha, low))
    return at_low + (length - low) * (float(expected_tokens(alpha, low + 1)) - at_low)


def describe(run: Run, plain: Run | None = None) -> dict[str, Any]:
    """The figures of a run under the names that scripts read; speed-ups are None without a plain run beside it."""
    stats = run.output.stats
    return {
        "tokens_per_second": run.tokens_per_second,
        "acceptance_length": stats.acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
        "target_passes": stats.num_target_passes,
        "predicted_speedup": predicted_speedup(stats, plain.pass_seconds) if plain else None,
        "speedup": run.tokens_per_second / plain.tokens_per_second if plain and plain.tokens_per_second else None,
        "num_drafts": stats.num_drafts,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "accepted_per_pass": list(stats.accepted_per_pass),
        "first_token_seconds": run.first_token_seconds,
        "draft_seconds": stats.draft_seconds,
        "verify_seconds": stats.verify_seconds,
        "other_seconds": stats.other_seconds,
    }
