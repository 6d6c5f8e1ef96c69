"""`Run`: one timed answer with its statistics, for the command line and the benchmarks.

Rates are those of the decoding phase, from the first token to the last. The prefill is the same with and without
speculation, and is reported as time to first token.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.engine.llm import LLM
from paceline.engine.text.prompts import Prompt
from paceline.speculation.prices import PassSeconds
from paceline.theory.round import PlainPrices, Round, round_seconds
from paceline.types import RequestOutput, RequestStats, SamplingParams, TokenOutput

_NOISE = 1.2
"""Measured ratios may be this many times the largest that is possible."""


@dataclass(frozen=True, slots=True)
class Run:
    """One finished answer.

    Attributes:
        first_token_seconds: from the request to its first token.
        decode_seconds: from the first token to the last.
        predicted_speedup: over plain decoding, from theory; see the function `predicted_speedup`.
    """

    output: RequestOutput
    first_token_seconds: float
    decode_seconds: float
    predicted_speedup: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first one, per second of decoding; 0 when there are none."""
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
    engine, stats = llm.engine, stream.output.stats
    predicted = predicted_speedup(stats, engine.prices.passes.prior, engine.drafter.traits.cost_ratio)
    return Run(stream.output, first - started, last - first, predicted)


def warm_up(*llms: LLM, token_ids: Sequence[int]) -> None:
    """Generate a few tokens with each, so that the first timed run is not slower for being the first.

    Caches and remembered texts of later requests stay as they were.

    Args:
        token_ids: a prompt; only its beginning is used.
    """
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    for llm in llms:
        llm.generate([list(token_ids[:4])], params, cache_salt="warm-up")


def speedup_of(run: Run, plain: Run) -> float | None:
    """Tokens per second of decoding over those of the plain run; None without a decoded token."""
    return run.tokens_per_second / plain.tokens_per_second if plain.tokens_per_second else None


@dataclass(frozen=True, slots=True)
class Decoding:
    """What decoding one prompt took, from the first token to the last.

    Attributes:
        tokens: after the first one, which comes with the prompt.
        passes: of the target, for these tokens.
        drafted: tokens that these passes verified.
        seconds, verify_seconds: in all, and of the passes.
    """

    tokens: int
    passes: int
    drafted: int
    seconds: float
    verify_seconds: float

    @classmethod
    def of(cls, run: Run) -> "Decoding":
        """That of a run."""
        stats, tokens = run.output.stats, len(run.output.token_ids) - 1
        return cls(tokens, stats.num_target_passes, stats.num_draft_tokens, run.decode_seconds, stats.verify_seconds)


def is_plausible(run: Run, plain: Run) -> bool:
    """Whether drafts can explain how long the two runs took; see `drafts_can_explain`."""
    return drafts_can_explain([(Decoding.of(run), Decoding.of(plain))])


def drafts_can_explain(pairs: Sequence[tuple[Decoding, Decoding]]) -> bool:
    """Whether drafts can explain how long each prompt took with them and without; if not, other work slowed one down.

    A pass with a draft takes no less time than one without, and no more than one without for each of its rows. The
    speed-up is therefore at most the number of tokens per decoding pass. A fifth more is taken for noise.

    Args:
        pairs: (with drafts, without) for each prompt, answered alone.
    """
    pairs = [(one, plain) for one, plain in pairs if one.tokens > 0 and plain.tokens > 0 and plain.seconds > 0]
    if not pairs:
        return True
    shortest = sum(one.passes * plain.seconds / plain.tokens for one, plain in pairs)
    longest = sum((one.passes + one.drafted) * plain.verify_seconds / max(plain.passes, 1) for one, plain in pairs)
    if shortest > _NOISE * sum(one.seconds for one, _ in pairs):
        return False
    return bool(sum(one.verify_seconds for one, _ in pairs) <= _NOISE * longest)


def without_cause(speedup: float) -> str:
    """Why there is no verdict on a speed-up that drafts cannot explain."""
    return f"No verdict: drafts cannot be the cause of {speedup:.2f} x, so other work slowed one of the runs down."


def predicted_speedup(stats: RequestStats, pass_seconds: PassSeconds, cost_ratio: float) -> float | None:
    """The speed-up predicted from the measured acceptance and the given costs; None without a pass.

    Tokens per pass with a draft are 1 + sum over levels l of d_l a_1 ... a_l, with d_l the fraction of drafts with a
    level l and a_l its acceptance rate: Leviathan et al. 2023, theorem 3.8, without the assumption that all levels have
    the same rate. Passes without a draft emit one token.

    Args:
        pass_seconds: t(rows, context), e.g. what `paceline tune` measured; only its shape matters.
        cost_ratio: seconds of a draft step over those of a target pass of one row; 0 for lookups.
    """
    passes, drafts = stats.num_target_passes, stats.num_drafts
    if not passes:
        return None
    plain = pass_seconds(1, 0)
    if not drafts:
        return 1.0
    tokens = passes + drafts * _expected_accepted(stats)
    draft = Round(1, stats.num_draft_tokens / drafts, sum(stats.drafted_per_level) / drafts)
    prices = PlainPrices(pass_seconds, cost_ratio * plain)
    seconds = (passes - drafts) * plain + drafts * round_seconds(draft, prices)
    return tokens * plain / seconds


def _expected_accepted(stats: RequestStats) -> float:
    """Expected number of accepted tokens per draft."""
    expected, survival = 0.0, 1.0
    for level, drafted in enumerate(stats.drafted_per_level):
        if level >= len(stats.tested_per_level):
            break
        accepted = stats.accepted_per_level[level] if level < len(stats.accepted_per_level) else 0
        survival *= accepted / stats.tested_per_level[level]
        expected += survival * drafted / stats.num_drafts
    return expected


def describe(run: Run, plain: Run | None = None) -> dict[str, Any]:
    """The statistics of a run as a dict for JSON; speed-ups are None without the plain run `plain`."""
    stats = run.output.stats
    return {
        "tokens_per_second": run.tokens_per_second,
        "acceptance_length": stats.acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
        "target_passes": stats.num_target_passes,
        "predicted_speedup": run.predicted_speedup if plain else None,
        "speedup": speedup_of(run, plain) if plain else None,
        "num_drafts": stats.num_drafts,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "accepted_per_pass": list(stats.accepted_per_pass),
        "first_token_seconds": run.first_token_seconds,
        "draft_seconds": stats.draft_seconds,
        "verify_seconds": stats.verify_seconds,
        "other_seconds": stats.other_seconds,
    }
