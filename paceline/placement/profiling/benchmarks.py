"""What load generators measured of an engine: result files of ``vllm bench serve`` and of guidellm.

Only means are read: they say what a step of a loaded engine takes, which is what a profile predicts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import InvalidParameter
from paceline.placement.fields import number_of, read_mapping

_REMEDY = "give a result file of `vllm bench serve --save-result`, or of guidellm (JSON)"


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One run against an engine.

    Attributes:
        source: file, and number of the run in it.
        concurrency: requests under way, on average.
        prompt_tokens, output_tokens: of a request, on average.
        first: seconds to the first token. per_token: seconds per further token.
    """

    source: str
    concurrency: float
    prompt_tokens: float
    output_tokens: float
    first: float
    per_token: float

    def __post_init__(self) -> None:
        for name, least in (("concurrency", 0), ("prompt_tokens", 1), ("output_tokens", 1), ("first", 0),
                            ("per_token", 0)):  # fmt: skip
            value = getattr(self, name)
            if not least <= value < 1e9 or value == 0:
                raise InvalidParameter(name, f"{value:g} in {self.source}", _REMEDY)

    @property
    def context(self) -> float:
        """Tokens before a decoded row, on average."""
        return self.prompt_tokens + self.output_tokens / 2

    @property
    def prompt_rows(self) -> float:
        """Rows of prompts that a step reads beside its decodes, on average: each request is read once in its life."""
        return self.concurrency * self.prompt_tokens / self.output_tokens


def read_all_benchmarks(paths: Sequence[Path]) -> list[Benchmark]:
    """The runs of several result files.

    Raises:
        InvalidParameter: as `read_benchmarks`, and for a file that is given twice: its runs would be held out against
            themselves.
    """
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise InvalidParameter("benchmark", f"{path} is given twice", "give each file once")
        seen.add(path.resolve())
    return [run for path in paths for run in read_benchmarks(path)]


def read_benchmarks(path: Path) -> list[Benchmark]:
    """The runs of a result file, by concurrency.

    Raises:
        InvalidParameter: it is none, or lacks a number.
    """
    values = read_mapping(path, "benchmark")
    if isinstance(values.get("benchmarks"), list):
        runs = [_of_guidellm(run, f"{path}, run {i}") for i, run in enumerate(values["benchmarks"])]
    elif "mean_tpot_ms" in values:
        runs = [_of_vllm(values, str(path))]
    else:
        raise InvalidParameter("benchmark", f"{path} is of no known format", _REMEDY)
    if not runs:
        raise InvalidParameter("benchmark", f"{path} holds no run", _REMEDY)
    return sorted(runs, key=lambda run: run.concurrency)


def _of_vllm(values: Mapping[str, Any], source: str) -> Benchmark:
    completed = _positive(values, "completed", source)
    prompt = _positive(values, "total_input_tokens", source) / completed
    output = _positive(values, "total_output_tokens", source) / completed
    first = _positive(values, "mean_ttft_ms", source) / 1000
    per_token = _positive(values, "mean_tpot_ms", source) / 1000
    rate = completed / _positive(values, "duration", source)
    concurrency = rate * (first + per_token * (output - 1))  # Little's law
    return Benchmark(source, concurrency, prompt, output, first, per_token)


def _positive(values: Mapping[str, Any], name: str, source: str) -> float:
    """A number above 0. Raises InvalidParameter, with the file's own name for it."""
    number = number_of(values, name, where=source)
    if not number > 0:
        raise InvalidParameter(name, f"{number:g} in {source}", "bring a run with answers of two tokens or more")
    return number


def _of_guidellm(run: Any, source: str) -> Benchmark:
    metrics = run.get("metrics") if isinstance(run, Mapping) else None
    if not isinstance(metrics, Mapping):
        raise InvalidParameter("benchmark", f"{source} has no metrics", _REMEDY)

    def mean(name: str) -> float:
        found: Any = metrics.get(name)
        for key in ("successful", "mean"):
            found = found.get(key) if isinstance(found, Mapping) else None
        return _positive({name: found}, name, source)

    per_token = mean("inter_token_latency_ms") / 1000  # its time_per_output_token_ms counts the first token too
    return Benchmark(
        source, mean("request_concurrency"), mean("prompt_token_count"), mean("output_token_count"),
        mean("time_to_first_token_ms") / 1000, per_token,
    )  # fmt: skip
