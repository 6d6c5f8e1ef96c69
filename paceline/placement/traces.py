"""Recorded arrivals: a simple CSV of time and model, and the public Azure traces of requests to language models."""

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.workload import Workload


def read_arrivals(path: str | Path, names: Sequence[str] = ()) -> Workload:
    """A CSV with a header line and rows of time in seconds and model, an index or one of `names`.

    Raises:
        InvalidParameter: it cannot be read, a time is no number or out of order, or a model is unknown.
    """
    index_of = {name: index for index, name in enumerate(names)}
    times, models = [], []
    for line, row in _rows(path):
        try:
            time, model = row[0], row[1].strip()
            times.append(float(time))
            models.append(index_of[model] if model in index_of else int(model))
        except (IndexError, ValueError):
            problem = f"{path}, line {line}: {','.join(row)!r}"
            raise InvalidParameter("arrivals", problem, "give time in seconds and a model's index or name") from None
    return Workload(np.array(times, np.float64), np.array(models, np.int32))


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
    for line, row in _rows(path):
        try:
            stamps.append(np.datetime64(row[0], "ns"))
            tokens.append((int(row[1]), int(row[2])))
        except (IndexError, ValueError):
            problem = f"{path}, line {line}: {','.join(row)!r}"
            raise InvalidParameter("trace", problem, "give TIMESTAMP,ContextTokens,GeneratedTokens") from None
    nanoseconds = np.array(stamps, "datetime64[ns]").astype(np.int64)
    seconds = (nanoseconds - nanoseconds[:1]) / 1e9
    if (np.diff(seconds) < 0).any():
        raise InvalidParameter("trace", f"times of {path} are out of order", "sort it by TIMESTAMP")
    counts = np.array(tokens, np.int64).reshape(-1, 2)
    return TokenTrace(seconds, counts[:, 0], counts[:, 1])


def _rows(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and rows of a CSV after its header; empty lines are skipped."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            next(reader, None)
            for row in reader:
                if row:
                    yield reader.line_num, row
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidParameter("arrivals", f"cannot read {path} ({error})", "give a CSV with a header line") from None
