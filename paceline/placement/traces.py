"""Reading recorded arrivals: a simple CSV of time and model, Azure's traces of functions and of language models.

The header line decides the format. Times that look like seconds since an epoch are shifted to begin with the first
request.
"""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.workload import MAX_REQUESTS, MAX_SECONDS, Workload

MILLISECONDS = 1e11
"""Times from here on are milliseconds since 1970, not seconds."""

COLUMNS = {
    "time": ("time", "t", "timestamp"),
    "model": ("model",),
    "prompt_tokens": ("prompt_tokens", "prompt", "contexttokens"),
    "output_tokens": ("output_tokens", "output", "answer", "generatedtokens"),
}
"""Columns of arrivals with their accepted header names in lower case."""

MOST_SHOWN = 10
"""Largest number of model names in a message."""

MINUTE = 60.0
MINUTES_PER_DAY = 1440


def read_arrivals(path: str | Path, names: Sequence[str] = ()) -> Workload:
    """Arrivals of a CSV: time in seconds, model (an index or one of `names`), and perhaps tokens of prompt and answer.

    A header line names the columns (`COLUMNS`) in any order; without one they are in that order. With at most one of
    `names` the model may be left out; times may be dates. Azure's trace of a language model is such a file, and its
    further columns are ignored; its two traces of functions are read too (`read_functions_2019`,
    `read_functions_2021`).

    Raises:
        InvalidParameter: it cannot be read, a column or a model is unknown, a time is invalid or out of order.
    """
    header = [cell.strip() for cell in next(_rows(path, 0), (0, []))[1]]
    if header[:3] == ["HashOwner", "HashApp", "HashFunction"]:
        if header[3:] != ["Trigger", *map(str, range(1, len(header) - 3))]:
            problem = f"{path} has other columns than Trigger and the minutes from 1 after HashFunction"
            raise InvalidParameter("arrivals", problem, "bring the file as Azure has it")
        return read_functions_2019(path, max(1, len(names)))
    if header[:3] == ["app", "func", "end_timestamp"]:
        return read_functions_2021(path, max(1, len(names)))
    if not header or _is_time(header[0]):
        columns, skip = dict(zip(COLUMNS, range(len(header)), strict=False)), 0
    else:
        columns, skip = _named_columns(path, header), 1
    if header and "model" not in columns and len(names) > 1:
        problem = f"{path} does not say which of {len(names)} models is asked for"
        raise InvalidParameter("arrivals", problem, "add a column model, or give a case of one model")
    return _read_columns(path, names, columns, len(header), skip)


def _named_columns(path: str | Path, header: Sequence[str]) -> dict[str, int]:
    """Column to its index. Raises InvalidParameter for unknown, duplicate or missing columns."""
    found: dict[str, int] = {}
    named = {name: column for column, all_names in COLUMNS.items() for name in all_names}
    is_azure = "contexttokens" in [name.lower() for name in header]
    for number, name in enumerate(header):
        column = named.get(name.lower())
        if column is None and not is_azure:
            remedy = f"use {', '.join(COLUMNS)}, or leave the header out"
            raise InvalidParameter("arrivals", f"{path} has an unknown column {name[:80]!r}", remedy)
        if column in found:
            raise InvalidParameter("arrivals", f"{path} has two columns for {column}", "leave one out")
        if column is not None:
            found[column] = number
    if "time" not in found:
        raise InvalidParameter("arrivals", f"{path} has no column of times", "call it time")
    if ("prompt_tokens" in found) != ("output_tokens" in found):
        problem = f"{path} has tokens of prompts or of answers, not of both"
        raise InvalidParameter("arrivals", problem, "give prompt_tokens and output_tokens, or neither")
    return found


def _read_columns(
    path: str | Path, names: Sequence[str], columns: Mapping[str, int], width: int, skip: int
) -> Workload:
    index_of = {name: index for index, name in enumerate(names)}
    times, models, lengths, read_time = [], [], [], None
    has_tokens = "output_tokens" in columns
    for line, row in _rows(path, skip):
        cells = [cell.strip() for cell in row]
        try:
            if len(cells) != width or (width == 3 and not skip):
                raise ValueError
            read_time = read_time or (_finite if _is_number(cells[columns["time"]]) else _stamp)
            times.append(read_time(cells[columns["time"]]))
            if has_tokens:
                lengths.append((_index(cells[columns["prompt_tokens"]]), _index(cells[columns["output_tokens"]])))
        except (ValueError, OverflowError):
            problem = f"{path}, line {line}: {','.join(row)[:80]!r}"
            remedy = "give time in seconds, a model's index or name, and tokens of prompt and answer or neither"
            raise InvalidParameter("arrivals", problem, remedy) from None
        models.append(_model(cells[columns["model"]], index_of, f"{path}, line {line}") if "model" in columns else 0)
    seconds = _since_first(times) if read_time is _stamp else _from_zero(path, np.array(times, np.float64))
    tokens = np.array(lengths, np.int64).T if lengths else (None, None)
    return Workload(seconds, np.array(models, np.int64), *tokens)


def _model(text: str, index_of: Mapping[str, int], where: str) -> int:
    """Index of a model, from its index or its name."""
    if text in index_of:
        return index_of[text]
    with suppress(ValueError):
        return _index(text)
    known = ", ".join([*list(index_of)[:MOST_SHOWN], *(["..."] if len(index_of) > MOST_SHOWN else [])])
    remedy = f"use one of {known}, or an index from 0" if known else "give an index from 0"
    raise InvalidParameter("arrivals", f"{where}: there is no model {text[:80]!r}", remedy)


def read_functions_2019(path: str | Path, num_models: int, seed: int = 0) -> Workload:
    """Azure Functions 2019 (Shahrad et al. 2020): HashOwner, HashApp, HashFunction, Trigger, then a count per minute.

    Function i requests model i modulo `num_models`, as in AlpaServe. Within a minute arrivals are drawn uniformly,
    since the trace has no times.

    Raises:
        InvalidParameter: it cannot be read, a count is invalid, or there are more than `MAX_REQUESTS` requests.
    """
    rng, streams, models, total = np.random.default_rng(seed), [], [], 0
    for model, (line, row) in zip(cycle(range(num_models)), _rows(path, 1), strict=False):
        try:
            counts = np.array([_index(cell) for cell in row[4:]], np.int64)
            if not 0 < len(counts) <= MINUTES_PER_DAY:
                raise ValueError
        except ValueError:
            problem = f"{path}, line {line} has no {MINUTES_PER_DAY} counts"
            raise InvalidParameter("arrivals", problem, "give the invocations of each minute") from None
        total += int(counts.sum())
        if total > MAX_REQUESTS:
            problem = f"{path} has {total:g} requests until line {line}"
            raise InvalidParameter("arrivals", problem, f"give up to {MAX_REQUESTS:g}, e.g. of some functions only")
        starts = np.repeat(np.arange(len(counts)) * MINUTE, counts)
        streams.append(starts + MINUTE * rng.random(len(starts)))
        models.append(np.full(len(starts), model, np.int32))
    return _sorted(streams, models)


def read_functions_2021(path: str | Path, num_models: int) -> Workload:
    """Azure Functions 2021 (Zhang et al. 2021): app, func, end_timestamp, duration; one row per invocation, in seconds.

    An invocation arrives `duration` before its end. Functions are assigned to models in turn, in order of appearance.

    Raises:
        InvalidParameter: it cannot be read, or a time is invalid.
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


def _stamp(text: str) -> np.datetime64:
    """A timestamp. Raises ValueError outside 1970 to 2199, since nanoseconds would overflow silently."""
    stamp = np.datetime64(text.strip(), "ns")
    if np.isnat(stamp) or not 1970 <= np.datetime64(text.strip(), "Y").astype(int) + 1970 < 2200:
        raise ValueError(text)
    return stamp


def _since_first(stamps: Sequence[np.datetime64]) -> np.ndarray:
    """float64 [stamps], seconds since the first one."""
    nanoseconds = np.array(stamps, "datetime64[ns]").astype(np.int64)
    return (nanoseconds - nanoseconds[:1]) / 1e9


def _from_zero(path: str | Path, times: np.ndarray) -> np.ndarray:
    """`times`, shifted to begin at 0 if they exceed `MAX_SECONDS` and so count from an epoch."""
    if not len(times) or abs(times).max() <= MAX_SECONDS:
        return times
    if abs(times).max() >= MILLISECONDS or times[0] < 0:
        problem = f"{path} has times from {times[0]:g} to {times[-1]:g}"
        raise InvalidParameter("arrivals", problem, "give seconds, not milliseconds")
    return times - times[0]


def _is_time(text: str) -> bool:
    with suppress(ValueError):
        return _is_number(text) or bool(_stamp(text))
    return False


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
