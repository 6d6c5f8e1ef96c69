"""Recorded arrivals: a simple CSV of time and model, Azure's traces of functions and of requests to language models.

Formats are told apart by their header line. Times may count from anywhere: what looks like seconds since an epoch is
counted from its first request.
"""

import csv
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.workload import MAX_SECONDS, Workload

MILLISECONDS = 1e11
"""Times from here on are no seconds since 1970, but milliseconds."""

MINUTE = 60.0
MINUTES_PER_DAY = 1440


def read_arrivals(path: str | Path, names: Sequence[str] = ()) -> Workload:
    """Arrivals of a CSV, after a header line or none: time in seconds, model (an index or one of `names`), and perhaps
    tokens of prompt and answer.

    Azure's two traces of functions are read too (`read_functions_2019`, `read_functions_2021`).

    Raises:
        InvalidParameter: it cannot be read, a time is no number or out of order, or a model is unknown.
    """
    first = [cell.strip() for _, cell in zip(range(4), next(_rows(path, 0), (0, []))[1], strict=False)]
    if first[:3] == ["HashOwner", "HashApp", "HashFunction"]:
        return read_functions_2019(path, max(1, len(names)))
    if first[:3] == ["app", "func", "end_timestamp"]:
        return read_functions_2021(path, max(1, len(names)))
    return _read_pairs(path, names, has_header=not (first and _is_number(first[0])))


def _read_pairs(path: str | Path, names: Sequence[str], has_header: bool) -> Workload:
    index_of = {name: index for index, name in enumerate(names)}
    times, models, lengths = [], [], []
    for line, row in _rows(path, int(has_header)):
        try:
            time, model, *tokens = (cell.strip() for cell in row)
            if len(tokens) not in (0, 2) or (lengths and len(lengths[0]) != len(tokens)):
                raise ValueError
            times.append(_finite(time))
            models.append(index_of[model] if model in index_of else _index(model))
            lengths.append([_index(count) for count in tokens])
        except ValueError:
            problem = f"{path}, line {line}: {','.join(row)[:80]!r}"
            remedy = "give time in seconds, a model's index or name, and tokens of prompt and answer or neither"
            raise InvalidParameter("arrivals", problem, remedy) from None
    columns = np.array(lengths, np.int64).T if lengths and lengths[0] else (None, None)
    return Workload(_from_zero(path, np.array(times, np.float64)), np.array(models, np.int64), *columns)


def read_functions_2019(path: str | Path, num_models: int, seed: int = 0) -> Workload:
    """Azure Functions 2019 (Shahrad et al. 2020): HashOwner, HashApp, HashFunction, Trigger, then a count per minute.

    Function number i asks for model i modulo `num_models`, as AlpaServe deals them out; within a minute arrivals are
    drawn uniformly, since the trace keeps no times.

    Raises:
        InvalidParameter: it cannot be read, or a count is none.
    """
    rng, streams, models = np.random.default_rng(seed), [], []
    for model, (line, row) in zip(cycle(range(num_models)), _rows(path, 1), strict=False):
        try:
            counts = np.array([_index(cell) for cell in row[4:]], np.int64)
            if not 0 < len(counts) <= MINUTES_PER_DAY:
                raise ValueError
        except ValueError:
            problem = f"{path}, line {line} has no {MINUTES_PER_DAY} counts"
            raise InvalidParameter("arrivals", problem, "give the invocations of each minute") from None
        starts = np.repeat(np.arange(len(counts)) * MINUTE, counts)
        streams.append(starts + MINUTE * rng.random(len(starts)))
        models.append(np.full(len(starts), model, np.int32))
    return _sorted(streams, models)


def read_functions_2021(path: str | Path, num_models: int) -> Workload:
    """Azure Functions 2021 (Zhang et al. 2021): app, func, end_timestamp, duration; one row per invocation, in seconds.

    An invocation arrives `duration` before its end; functions ask for models in turn, in order of appearance.

    Raises:
        InvalidParameter: it cannot be read, or a time is none.
    """
    times, models, model_of = [], [], dict[tuple[str, str], int]()
    for line, row in _rows(path, 1):
        try:
            app, function, end, duration = row
            times.append(_finite(end) - _finite(duration))
        except ValueError:
            problem = f"{path}, line {line}: {','.join(row)[:80]!r}"
            raise InvalidParameter("arrivals", problem, "give app,func,end_timestamp,duration") from None
        models.append(model_of.setdefault((app, function), len(model_of) % num_models))
    stamps = np.array(times, np.float64)
    return _sorted([stamps - stamps.min(initial=0.0)], [np.array(models, np.int32)])


def _sorted(streams: Sequence[np.ndarray], models: Sequence[np.ndarray]) -> Workload:
    times = np.concatenate([np.empty(0), *streams])
    order = np.argsort(times, kind="stable")
    return Workload(times[order], np.concatenate([np.empty(0, np.int32), *models])[order])


@dataclass(frozen=True)
class TokenTrace:
    """Requests to a language model.

    Attributes:
        times: float64 [requests], seconds since the first one.
        prompt_tokens, output_tokens: int64 [requests].
    """

    times: np.ndarray
    prompt_tokens: np.ndarray
    output_tokens: np.ndarray


def read_azure_trace(path: str | Path) -> TokenTrace:
    """A trace of Azure's LLM inference service: columns TIMESTAMP, ContextTokens, GeneratedTokens.

    Raises:
        InvalidParameter: it cannot be read, or its times are out of order.
    """
    stamps, tokens = [], []
    for line, row in _rows(path, 1):
        try:
            stamps.append(_stamp(row[0]))
            tokens.append((_index(row[1]), _index(row[2])))
        except (IndexError, ValueError, OverflowError):
            problem = f"{path}, line {line}: {','.join(row)[:80]!r}"
            raise InvalidParameter("trace", problem, "give TIMESTAMP,ContextTokens,GeneratedTokens") from None
    nanoseconds = np.array(stamps, "datetime64[ns]").astype(np.int64)
    seconds = (nanoseconds - nanoseconds[:1]) / 1e9
    if (np.diff(seconds) < 0).any():
        raise InvalidParameter("trace", f"times of {path} are out of order", "sort it by TIMESTAMP")
    counts = np.array(tokens, np.int64).reshape(-1, 2)
    return TokenTrace(seconds, counts[:, 0], counts[:, 1])


def _stamp(text: str) -> np.datetime64:
    """A date and time between 1970 and 2200; what nanoseconds cannot count would wrap round without a word."""
    stamp = np.datetime64(text.strip(), "ns")
    if np.isnat(stamp) or not 1970 <= np.datetime64(text.strip(), "Y").astype(int) + 1970 < 2200:
        raise ValueError(text)
    return stamp


def _from_zero(path: str | Path, times: np.ndarray) -> np.ndarray:
    """Seconds since an epoch as seconds since the first request; others as they are."""
    if not len(times) or abs(times).max() <= MAX_SECONDS:
        return times
    if abs(times).max() >= MILLISECONDS or times[0] < 0:
        problem = f"{path} has times from {times[0]:g} to {times[-1]:g}"
        raise InvalidParameter("arrivals", problem, "give seconds, not milliseconds")
    return times - times[0]


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return True
    return False


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def _index(text: str) -> int:
    """A whole number from 0 that 32 bits hold."""
    value = int(text)
    if not 0 <= value < 2**31:
        raise ValueError(text)
    return value


def _rows(path: str | Path, skip: int) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and rows of a CSV after its first `skip` lines; empty lines are skipped."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            for _ in range(skip):
                next(reader, None)
            for row in reader:
                if row:
                    yield reader.line_num, row
    except (OSError, ValueError, csv.Error) as error:
        raise InvalidParameter("arrivals", f"cannot read {path} ({error})", "give a CSV of times and models") from None
