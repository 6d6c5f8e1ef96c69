"""`Profile`: a measured `CostProfile` with where it came from, as a versioned JSON file.

Not for measuring (`evaluation/tune.py`), nor for where profiles are kept (`engine/profiles.py`).
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
"""Of a pass: a number beyond is a damaged file's."""
_REMEDY = "measure anew with `paceline tune`"


@dataclass(frozen=True, slots=True)
class Profile:
    """What a pass of one model costs on one machine.

    Attributes:
        model: as the user named it; `fingerprint` tells which weights that were.
        dtype, executor, threads: how it ran; threads is None where the executor does not say.
        machine: processor and number of processors.
        seconds: context to rows to median seconds of a pass that decodes or verifies (logits of every row).
        prefill_seconds: the same for a pass that reads a prompt (logits of its last row).
        token_budget: rows of a step chosen for `target_ms`, None when nothing was chosen.
        target_ms: milliseconds a step may take with that budget.
        chunk: prompt tokens of such a step with `num_decodes` requests decoding beside.
        segment_seconds: context to the seconds that each further request adds to a pass of as many rows: its keys and
            values are read too. Empty where it was not measured.
        step_overhead: seconds of an engine's plain step that its pass does not account for; None where not measured.
        tile: rows at which a pass takes a step up in time, which ``sarathi`` aligns its batches to; None where there
            is no such step, or nobody looked.
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
        """`seconds` as a function."""
        return CostProfile.by_context(self.seconds)

    @property
    def prefill_cost(self) -> CostProfile:
        """`prefill_seconds` as a function."""
        return CostProfile.by_context(self.prefill_seconds)

    def batch_seconds(self, rows: float, num_requests: float, context: float = 0) -> float:
        """Seconds of a pass over `rows` rows of `num_requests` requests, each with `context` tokens before its rows."""
        return self.cost(rows, context) + max(0.0, num_requests - 1) * self._segment(context)

    def _check_kinds(self) -> None:
        """Raise ValueError for a field that is no text or number of its kind."""
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
        """`segment_seconds` at a context, on straight lines between the measured ones."""
        if not self.segment_seconds:
            return 0.0
        contexts = sorted(self.segment_seconds)
        return float(np.interp(context, contexts, [self.segment_seconds[each] for each in contexts]))

    def with_choice(self, token_budget: int, chunk: int, num_decodes: int, target_ms: float | None) -> "Profile":
        """The same measurements with what was chosen from them."""
        return replace(self, token_budget=token_budget, chunk=chunk, num_decodes=num_decodes, target_ms=target_ms)

    def as_dict(self) -> dict[str, Any]:
        """What the file holds."""
        return {"format": FORMAT, "version": VERSION} | asdict(self)

    def write(self, path: Path) -> None:
        """Store it at `path`, in one move: a reader never sees half a file."""
        with in_one_move(path) as file:
            file.write_text(json.dumps(self.as_dict(), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> "Profile":
        """The profile stored at `path`.

        Raises:
            InvalidParameter: there is no such file, it is no profile, of another version, or damaged.
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
    """JSON's keys are texts; ours are numbers."""
    return {int(c): {int(r): _seconds(s) for r, s in table.items()} for c, table in tables.items()}


def _seconds(value: Any) -> float:
    """A number from 0 to `MOST_SECONDS`. Raises ValueError for another."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_SECONDS:
        raise ValueError(f"{value!r} is no time")
    return float(value)
