"""`TokenProfile`: what a pass of a language model costs, t(rows, requests, context), and what an engine has room for.

Made from what `paceline tune` measured (`of_tuned`), from a file (`read`), or from an engine's first passes. Not for
measuring.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from paceline.errors import InvalidParameter
from paceline.placement.fields import field_of, number_of, numbers_of, only_known, shown, whole_of
from paceline.scheduling.profile import Profile
from paceline.speculation import CostProfile
from paceline.theory.acceptance import expected_tokens_by_position
from paceline.theory.checks import check_rate

Table = Mapping[int, Mapping[int, float]]
"""Context to rows to seconds."""

MOST_DRAFTED = 1024
MOST_ROWS = 2**31
"""Rows or tokens of context of a table."""
_FAR = 4
"""Tables reach this many times beyond their last row, on its line."""
_KEYS = (
    "seconds", "prefill_seconds", "segment_seconds", "step_overhead", "seats", "token_budget", "kv_tokens",
    "tokens_per_pass", "rows_per_request", "draft_seconds", "stages", "overlap", "prefill_overlap",
    "acceptance", "num_draft_tokens",
)  # fmt: skip


@dataclass(frozen=True)
class TokenProfile:
    """One model in one split.

    Attributes:
        seconds: of a pass that decodes, by context and rows.
        prefill_seconds: of a pass that reads a prompt, by what was read of it before and rows; empty for the same.
        segment_seconds: context to what each further request adds to a pass of as many rows.
        step_overhead: seconds of a step besides its pass.
        seats: requests that may run at once.
        token_budget: rows of a pass, decodes first, then prompts.
        kv_tokens: tokens that the keys' and values' memory holds.
        tokens_per_pass: that a request gets from a pass, its own included; 1 without speculation.
        rows_per_request: of a decode: 1, and what is drafted.
        draft_seconds: that drafting adds to a pass with decodes.
        stages: of a pipeline: as many passes are in flight.
        overlap: seconds of decode passes that are completed per second while `stages` of them are in flight: 1 is no
            overlap, `stages` a perfect one, less where stages are uneven or share a memory; None takes `stages`.
        prefill_overlap: the same of passes that read prompts.

    Raises:
        InvalidParameter: a number outside its range.
    """

    seconds: Table
    prefill_seconds: Table = field(default_factory=dict)
    segment_seconds: Mapping[int, float] = field(default_factory=dict)
    step_overhead: float = 0.0
    seats: int = 64
    token_budget: int = 512
    kv_tokens: float = 1e12
    tokens_per_pass: float = 1.0
    rows_per_request: float = 1.0
    draft_seconds: float = 0.0
    stages: int = 1
    overlap: float | None = None
    prefill_overlap: float | None = None

    def __post_init__(self) -> None:
        _ = self.tables  # every time must be positive
        for name, least in (("seats", 1), ("token_budget", 1), ("kv_tokens", 1), ("tokens_per_pass", 1), ("stages", 1),
                            ("rows_per_request", 1), ("step_overhead", 0), ("draft_seconds", 0)):  # fmt: skip
            value = getattr(self, name)
            if not least <= value < float("inf"):
                raise InvalidParameter(name, f"{value}", f"give {least} or more")
        for name in ("seats", "token_budget", "stages"):
            if getattr(self, name) > MOST_ROWS:
                raise InvalidParameter(name, f"{getattr(self, name)}", f"give at most {MOST_ROWS}")
        if self.tokens_per_pass > self.rows_per_request:
            problem = f"{self.tokens_per_pass:g} from {self.rows_per_request:g} rows_per_request"
            raise InvalidParameter("tokens_per_pass", problem, "give at most a token per row, its own included")
        for name in ("overlap", "prefill_overlap"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= self.stages:
                problem = f"{value:g} with {self.stages} stages"
                raise InvalidParameter(name, problem, "give 1 (a pass at a time) to the number of stages")
        if any(not 0 <= seconds < float("inf") for seconds in self.segment_seconds.values()):
            raise InvalidParameter("segment_seconds", shown(dict(self.segment_seconds)), "give seconds, 0 or more")

    @classmethod
    def of_tuned(cls, profile: Profile, **more: Any) -> "TokenProfile":
        """What `paceline tune` measured; `more` are seats and the like."""
        budget = {"token_budget": profile.token_budget} if profile.token_budget else {}
        return cls(
            profile.seconds, profile.prefill_seconds, profile.segment_seconds, profile.step_overhead or 0.0,
            **(budget | more),
        )  # fmt: skip

    @classmethod
    def read(cls, values: Any, where: str, stages: int | None = None) -> "TokenProfile":
        """From the object of a file, for a split of so many stages (None: as many as it says).

        Raises:
            InvalidParameter: a field cannot be used, or it was profiled with another number of stages.
        """
        if not isinstance(values, dict):
            raise InvalidParameter(where, f"{shown(values)} is no object", "give seconds, see docs/placement.md")
        only_known(values, _KEYS, where)
        given: dict[str, Any] = {"seconds": _table(field_of(values, "seconds", dict, where), f"{where}.seconds")}
        if values.get("prefill_seconds"):
            prefill = field_of(values, "prefill_seconds", dict, where)
            given["prefill_seconds"] = _table(prefill, f"{where}.prefill_seconds")
        if values.get("segment_seconds"):
            segments = field_of(values, "segment_seconds", dict, where)
            given["segment_seconds"] = _numbers(segments, f"{where}.segment_seconds")
        for name in ("seats", "token_budget", "stages"):
            if name in values:
                given[name] = whole_of(values, name, where=where)
        if stages is not None:
            if given.get("stages", stages) not in (1, stages):
                problem = f"{given['stages']} for a split of {stages}"
                raise InvalidParameter(f"{where}.stages", problem, "leave it out: the split decides it")
            given["stages"] = stages
        for name in ("overlap", "prefill_overlap"):
            if values.get(name) is not None:
                given[name] = number_of(values, name, where=where)
        for name in ("step_overhead", "kv_tokens", "tokens_per_pass", "rows_per_request", "draft_seconds"):
            if name in values:
                given[name] = number_of(values, name, where=where)
        given |= _speculation(values, where)
        try:
            read = cls(**given)
            return read.in_pipeline(read.stages)
        except InvalidParameter as error:
            raise error.about(where if error.field == "seconds_by_rows" else f"{where}.{error.field}") from None

    def record(self) -> dict[str, Any]:
        """What `read` reads."""
        return asdict(self)

    def scaled(self, factor: float) -> "TokenProfile":
        """The same with all seconds times `factor`."""
        tables = {name: {c: {r: factor * s for r, s in rows.items()} for c, rows in getattr(self, name).items()}
                  for name in ("seconds", "prefill_seconds")}  # fmt: skip
        segments = {context: factor * seconds for context, seconds in self.segment_seconds.items()}
        besides = {name: factor * getattr(self, name) for name in ("step_overhead", "draft_seconds")}
        return replace(self, segment_seconds=segments, **tables, **besides)

    def with_kv_tokens(self, kv_tokens: float) -> "TokenProfile":
        """The same with another room for keys and values."""
        return replace(self, kv_tokens=kv_tokens)

    def in_pipeline(self, stages: int) -> "TokenProfile":
        """The same in a pipeline of that many stages; an engine that drafts has one pass in flight all the same."""
        stages = stages if self.tokens_per_pass == 1 else 1
        most = {name: None if getattr(self, name) is None else min(getattr(self, name), stages)
                for name in ("overlap", "prefill_overlap")}  # fmt: skip
        return replace(self, stages=stages, **most)

    def pass_seconds(
        self, rows: float, requests: float = 1, context: float = 0, prompt_rows: float = 0, read_before: float = 0
    ) -> float:
        """Seconds of a step: `rows` decoded, `prompt_rows` read, for `requests` requests in all.

        Args:
            context: tokens before each decoded row, on average.
            read_before: tokens of a prompt that were read before this pass, the mean over `prompt_rows`.
        """
        decode, prefill = self._costs
        if rows and prompt_rows:
            reading = prefill(rows + prompt_rows, read_before) - prefill(rows, read_before)
            cost = decode(rows, context) + max(0.0, reading)
        else:
            cost = prefill(prompt_rows, read_before) if prompt_rows else decode(rows, context)
        contexts = sorted(self.segment_seconds)
        extra = np.interp(context, contexts, [self.segment_seconds[c] for c in contexts]) if contexts else 0.0
        return cost + (requests - 1) * float(extra) + self.step_overhead + (self.draft_seconds if rows else 0.0)

    @cached_property
    def tables(self) -> "PassTables":
        """The same numbers for the compiled kernel."""
        decode, prefill = self._costs
        rows = sorted({r for table in (self.seconds, self.prefill_seconds) for c in table for r in table[c]})
        rows.append(_FAR * rows[-1])
        contexts = sorted({*self.seconds, *self.prefill_seconds, *self.segment_seconds})
        segments = sorted(self.segment_seconds)
        extra = [self.segment_seconds[c] for c in segments]
        return PassTables(
            np.array(rows, np.float64),
            np.array(contexts, np.float64),
            np.array([[[cost(r, c) for r in rows] for c in contexts] for cost in (decode, prefill)]),
            np.interp(contexts, segments, extra) if segments else np.zeros(len(contexts)),
        )

    @cached_property
    def _costs(self) -> tuple[CostProfile, CostProfile]:
        decode = CostProfile.by_context(self.seconds)
        return decode, CostProfile.by_context(self.prefill_seconds) if self.prefill_seconds else decode


class PassTables(NamedTuple):
    """A `TokenProfile` for compiled code, on one grid of rows and contexts.

    Attributes:
        rows, contexts: [rows], [contexts] of the grid, rising.
        seconds: [decode or prefill, contexts, rows] of a pass.
        segments: [contexts] seconds of each further request of a pass.
    """

    rows: np.ndarray
    contexts: np.ndarray
    seconds: np.ndarray
    segments: np.ndarray


class GroupTables(NamedTuple):
    """The models of one group, padded to one shape: what `kernel.py` reads.

    Attributes:
        rows: float64 [models, rows]. contexts: float64 [models, contexts]; padded with the last line continued.
        seconds: float64 [models, 2, contexts, rows]. segments: float64 [models, contexts].
        limits: float64 [models, 10]: step overhead, seats, token budget, tokens of keys and values, tokens per pass,
            rows per request, draft seconds, stages, overlap, overlap of prompts.
    """

    rows: np.ndarray
    contexts: np.ndarray
    seconds: np.ndarray
    segments: np.ndarray
    limits: np.ndarray


def group_tables(profiles: Sequence[TokenProfile], least: tuple[int, int] = (1, 1)) -> GroupTables:
    """The tables of a group's models, with at least that many rows and contexts."""
    parts = [profile.tables for profile in profiles]
    most_rows = max([least[0], *(len(part.rows) for part in parts)])
    most_contexts = max([least[1], *(len(part.contexts) for part in parts)])
    padded = [_padded(part, most_rows, most_contexts) for part in parts]
    limits = [
        (p.step_overhead, p.seats, p.token_budget, p.kv_tokens, p.tokens_per_pass, p.rows_per_request, p.draft_seconds,
         p.stages, p.overlap or p.stages, p.prefill_overlap or p.stages)
        for p in profiles
    ]  # fmt: skip
    rows, contexts, seconds, segments = (np.stack(column) for column in zip(*padded, strict=True))
    return GroupTables(rows, contexts, seconds, segments, np.array(limits, np.float64))


def _padded(part: PassTables, rows: int, contexts: int) -> PassTables:
    """Repeated last points: a search from the left never gets to them."""
    more_rows, more_contexts = rows - len(part.rows), contexts - len(part.contexts)
    seconds = np.pad(part.seconds, ((0, 0), (0, more_contexts), (0, more_rows)), mode="edge")
    return PassTables(
        np.pad(part.rows, (0, more_rows), constant_values=np.inf),
        np.pad(part.contexts, (0, more_contexts), constant_values=np.inf),
        seconds,
        np.pad(part.segments, (0, more_contexts), mode="edge"),
    )


def _speculation(values: Mapping[str, Any], where: str) -> dict[str, float]:
    """Tokens and rows of a pass from what is accepted: one rate, or one for each drafted position as measured.

    Leviathan et al. 2023, equation 1, and its form by position.
    """
    if values.get("acceptance") is None:
        if "num_draft_tokens" in values:
            raise InvalidParameter(f"{where}.num_draft_tokens", "without acceptance", "give acceptance too")
        return {}
    for name in ("tokens_per_pass", "rows_per_request"):
        if name in values:
            raise InvalidParameter(f"{where}.{name}", "is given beside acceptance", "give one of them")
    if isinstance(values["acceptance"], list):
        rates = numbers_of(values, "acceptance", where, most=1.0)
        if "num_draft_tokens" in values:
            raise InvalidParameter(f"{where}.num_draft_tokens", "beside a list of rates", "leave it out")
    else:
        count = whole_of(values, "num_draft_tokens", where=where, most=MOST_DRAFTED)
        rates = (number_of(values, "acceptance", where=where),) * count
    for rate in rates:
        check_rate(f"{where}.acceptance", rate)
    return {"tokens_per_pass": float(expected_tokens_by_position(rates)), "rows_per_request": 1.0 + len(rates)}


def _table(values: Mapping[Any, Any], where: str) -> Table:
    for context, table in values.items():
        if not isinstance(table, dict) or not table:
            raise InvalidParameter(where, f"{shown(context)} has no table", "give {context: {rows: seconds}}")
    return {_whole_key(context, where): _numbers(table, where) for context, table in values.items()}


def _numbers(values: Mapping[Any, Any], where: str) -> dict[int, float]:
    return {_whole_key(key, where): number_of(dict(values), key, where=where, most=1e9) for key in values}


def _whole_key(key: Any, where: str) -> int:
    try:
        number = int(str(key))
        if abs(number) > MOST_ROWS:
            raise ValueError(key)
    except ValueError:
        raise InvalidParameter(where, f"key {shown(key)}", f"use whole numbers up to {MOST_ROWS} as keys") from None
    return number
