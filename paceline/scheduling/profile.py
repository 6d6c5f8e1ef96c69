"""`Profile`: measured costs of a model's passes with their provenance, as a versioned JSON file.

Not for measuring (`evaluation/tune.py`), nor for where profiles are kept (`engine/setup/profiles.py`).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from paceline.disk import in_one_move
from paceline.errors import InvalidParameter
from paceline.limits import unrepeated
from paceline.speculation.cost import CostProfile

FORMAT, VERSION = "paceline-profile", 1
MOST_SECONDS = 1e9
"""Largest plausible time of a pass; a larger number means that the file is damaged."""
_REMEDY = "measure anew with `paceline tune`"


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured costs of the passes of one model on one machine.

    Attributes:
        model: the name that the user gave; `fingerprint` identifies the weights.
        dtype, executor, threads: how it ran; threads is None where the executor does not say.
        machine: processor and number of processors.
        seconds: context to rows to median seconds of a pass that decodes or verifies (logits of every row).
        prefill_seconds: the same for a prefill pass (logits of its last row).
        token_budget: rows of a step, chosen for `target_ms`; None when none was chosen.
        target_ms: latency target of a step in milliseconds.
        chunk: prompt tokens of such a step while `num_decodes` requests decode in it.
        segment_seconds: context to the seconds that each further request adds to a pass with the same number of rows,
            for reading its keys and values. Empty where not measured.
        step_overhead: seconds of an engine's plain step in addition to its pass; None where not measured.
        tile: tile width in rows, to which ``sarathi`` aligns its batches; None where none was found or measured.
    """

    model: str
    fingerprint: str
    dtype: str
    executor: str
    threads: int | None
    machine: str
    seconds: Mapping[int, Mapping[int, float]]
    prefill_seconds: Mapping[int, Mapping[int, float]]
    token_budget: int | None = None
    target_ms: float | None = None
    chunk: int | None = None
    num_decodes: int | None = None
    segment_seconds: Mapping[int, float] = field(default_factory=dict)
    step_overhead: float | None = None
    tile: int | None = None

    @property
    def cost(self) -> CostProfile:
        """`seconds` as a `CostProfile`."""
        return CostProfile.by_context(self.seconds)

    @property
    def prefill_cost(self) -> CostProfile:
        """`prefill_seconds` as a `CostProfile`."""
        return CostProfile.by_context(self.prefill_seconds)

    def batch_seconds(self, rows: float, num_requests: float, context: float = 0) -> float:
        """Seconds of a pass over `rows` rows of `num_requests` requests, each with `context` tokens before its rows."""
        return self.cost(rows, context) + max(0.0, num_requests - 1) * self._segment(context)

    def _check_kinds(self) -> None:
        """Raise ValueError for a field of the wrong type or range."""
        for name in ("model", "fingerprint", "dtype", "executor", "machine"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} is no text")
        for name in ("threads", "token_budget", "chunk", "num_decodes", "tile"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ValueError(f"{name} is {value!r}")
        for name in ("target_ms", "step_overhead"):
            if getattr(self, name) is not None:
                _seconds(getattr(self, name))

    def _segment(self, context: float) -> float:
        """`segment_seconds` at a context, linearly interpolated."""
        if not self.segment_seconds:
            return 0.0
        contexts = sorted(self.segment_seconds)
        return float(np.interp(context, contexts, [self.segment_seconds[each] for each in contexts]))

    def with_choice(self, token_budget: int, chunk: int, num_decodes: int, target_ms: float | None) -> "Profile":
        """The same measurements with the chosen token budget."""
        return replace(self, token_budget=token_budget, chunk=chunk, num_decodes=num_decodes, target_ms=target_ms)

    def as_dict(self) -> dict[str, Any]:
        """The content of the file."""
        return {"format": FORMAT, "version": VERSION} | asdict(self)

    def write(self, path: Path) -> None:
        """Write the file atomically, so that no reader sees a partial one."""
        with in_one_move(path) as file:
            file.write_text(json.dumps(self.as_dict(), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Profile":
        """The profile stored at `path`.

        Raises:
            InvalidParameter: the file is missing, not a profile, of another version, or damaged.
        """
        try:
            values: Any = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unrepeated)
        except OSError as error:
            raise InvalidParameter("profile", f"{path} cannot be read: {error.strerror}", _REMEDY) from error
        except (ValueError, RecursionError) as error:
            raise InvalidParameter("profile", f"{path} is not JSON ({error})", _REMEDY) from error
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise InvalidParameter("profile", f"{path} is no cost profile", _REMEDY)
        if (version := values.pop("version", None)) != VERSION or version is True:
            raise InvalidParameter("profile", f"{path} has version {version!r}, not {VERSION}", _REMEDY)
        try:
            values |= {name: _numbers(values[name]) for name in ("seconds", "prefill_seconds")}
            segments = values.get("segment_seconds", {})
            values["segment_seconds"] = {int(context): _seconds(seconds) for context, seconds in segments.items()}
            profile = cls(**values)
            profile._check_kinds()
            profile.cost(1)
            profile.prefill_cost(1)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidParameter("profile", f"{path} is damaged ({error})", _REMEDY) from error
        return profile


def _numbers(tables: Mapping[str, Mapping[str, float]]) -> dict[int, dict[int, float]]:
    """The tables with JSON's string keys converted to ints, and values checked."""
    return {int(c): {int(r): _seconds(s) for r, s in table.items()} for c, table in tables.items()}


def _seconds(value: Any) -> float:
    """`value` as a float. Raises ValueError unless it is a number from 0 to `MOST_SECONDS`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_SECONDS:
        raise ValueError(f"{value!r} is no time")
    return float(value)
