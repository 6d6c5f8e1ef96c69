"""How far a profile is off what was measured, and the scale that makes it fit best.

A profile is compared with runs that it was not scaled by, where there are two or more: each run in turn is left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

from paceline.errors import InvalidParameter
from paceline.placement.profiling.benchmarks import Benchmark
from paceline.placement.tokens import TokenProfile


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run against a profile.

    Attributes:
        predicted: seconds per further token, by the profile. held_out: by the same profile, scaled by the other runs;
            None where there are none.
    """

    run: Benchmark
    predicted: float
    held_out: float | None

    @property
    def error(self) -> float:
        """Predicted over measured seconds per token, less 1."""
        return self.predicted / self.run.per_token - 1

    @property
    def held_out_error(self) -> float | None:
        """The same without this run's own part in the scale."""
        return None if self.held_out is None else self.held_out / self.run.per_token - 1


def step_seconds(profile: TokenProfile, run: Benchmark) -> float:
    """Seconds of the mean step of an engine under that run's load: its decodes, and the part of prompts they pay for.

    As many steps as a request's answer has tokens read one prompt for every request under way.
    """
    rows = run.concurrency * profile.rows_per_request
    read_before = max(run.prompt_tokens - _chunk(profile, rows), 0.0) / 2
    return (
        profile.pass_seconds(rows, run.concurrency, run.context, run.prompt_rows, read_before) / profile.tokens_per_pass
    )


def _chunk(profile: TokenProfile, rows: float) -> float:
    """Rows of prompts that a pass reads beside `rows` decoded ones."""
    return max(1.0, profile.token_budget - rows)


def scale_of(profile: TokenProfile, runs: Sequence[Benchmark]) -> float:
    """The factor on the profile's times with the least squared logarithm of predicted over measured."""
    if not runs:
        raise InvalidParameter("benchmark", "there is no run to scale by", "give a result file")
    return exp(sum(log(run.per_token / step_seconds(profile, run)) for run in runs) / len(runs))


def compared(profile: TokenProfile, runs: Sequence[Benchmark]) -> list[Comparison]:
    """`profile` as it is against every run."""
    found = []
    for i, run in enumerate(runs):
        others = [other for j, other in enumerate(runs) if j != i]
        seconds = step_seconds(profile, run)
        held_out = seconds * scale_of(profile, others) if others else None
        found.append(Comparison(run, seconds, held_out))
    return found


def typical_error(comparisons: Sequence[Comparison], held_out: bool = False) -> float | None:
    """Mean size of the errors; of those of held-out runs where asked for, None when there are none."""
    errors = [c.held_out_error if held_out else c.error for c in comparisons]
    known = [abs(error) for error in errors if error is not None]
    return sum(known) / len(known) if known else None
