"""`TokenGroup`: the requests of one group and what will become of them, by the compiled rule (`kernel.py`).

Used by the simulator, which knows how long answers will be, and by the cluster's controller, which does not: there an
entry stays until it is told to have ended. Not for choosing among groups.
"""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline.models.compiled.disk import keep_on_disk
from paceline.placement.tokens import kernel, lanes, passes, rounds
from paceline.placement.tokens.profile import TokenProfile, group_tables

FOREVER = float("inf")
_FIRST_ROOM = 64
_ROUNDS_KEPT = 1024
"""Times of rounds that are remembered."""
_PLACE = [passes.MADE, passes.FIRST, passes.MODEL, passes.LANE]
_NO_LOG = np.empty((0, 3))


class TokenAsk(NamedTuple):
    """A request, as a group sees it.

    Attributes:
        prompt_tokens: of its prompt. expected_tokens: of its answer.
        by, first_by: when its end and its first token are due, seconds of the clock; infinite for never.
        pace: seconds that each further token may take; infinite for any.
        first: when its first token came, seconds of the clock, where its prompt was read elsewhere; 0 where it is not.
    """

    model: str
    prompt_tokens: float
    expected_tokens: float
    by: float = FOREVER
    first_by: float = FOREVER
    pace: float = FOREVER
    first: float = 0.0


class Outlook(NamedTuple):
    """What would become of a request: when it would end and have its first token, whether that is late, and how many of
    the others would be late because of it."""

    end: float
    first: float
    is_late: bool
    makes_late: int


class TokenGroup:
    """A group's clock and entries.

    Args:
        profiles: of the models it holds, by name.
    """

    def __init__(self, profiles: Mapping[str, TokenProfile]) -> None:
        self.scale = 1.0
        """Seconds of this group over those of the profiles."""
        self.clock = 0.0
        self._numbers = {model: number for number, model in enumerate(profiles)}
        self.busy = 0.0
        """Seconds in which it did rounds; of a pipeline, those of all passes over the number of devices."""
        self._tables = tuple(group_tables(list(profiles.values())))
        self._stages = int(self._tables[4][:, 7].max()) if profiles else 1
        self._state = np.zeros((len(profiles), lanes.READY + 3 * self._stages))
        self._n = 0
        self._rounds = np.zeros((1 + _ROUNDS_KEPT, 3))
        self._make_room(_FIRST_ROOM)

    def __len__(self) -> int:
        return self._n

    def consider(self, ask: TokenAsk, now: float) -> Outlook:
        """What would become of `ask`, were it to join now."""
        self.advance(now)
        entry = self._entry(ask, -1, FOREVER)
        run = compiled("consider")
        found = run(
            self._entries,
            self._n,
            self.clock,
            float(now),  # for an int, all would be compiled once more
            self.scale,
            self._tables,
            self._chunks,
            self._state,
            self._copies,
            self._done,
            entry,
        )
        return Outlook(float(found[0]), float(found[1]), bool(found[2]), int(found[3]))

    def join(self, number: int, ask: TokenAsk, now: float, total_tokens: float = FOREVER) -> None:
        """Let a request in, last in line.

        Args:
            number: to know it by.
            total_tokens: of its answer, where that is known; without it the entry stays until it is removed.
        """
        self.advance(now)
        if self._n == 0:
            self.clock = max(self.clock, now)
        entry = self._entry(ask, number, total_tokens)
        compiled("enter")(self._entries, self._n, self._state, self._tables[4], entry, now)
        self._n += 1
        if self._n + 1 >= len(self._entries):
            self._make_room(2 * len(self._entries))

    def advance(self, until: float) -> list[tuple[int, float, float]]:
        """Do what is done by `until`: (number, first token, end) of those that ended."""
        if not self._n:
            return []
        began = self.clock
        self._n, self.clock, ended = compiled("advance")(
            self._entries, self._n, began, until, self.scale, self._tables, self._chunks, self._state, self._done,
            self._rounds,
        )  # fmt: skip
        self.busy = self._state[0, lanes.BUSY] if self._stages > 1 else self.busy + self.clock - began
        columns = (passes.NUMBER, passes.FIRST, passes.ENDED)
        return [(int(row[0]), row[1], row[2]) for row in self._done[:ended][:, columns].tolist()]

    def end_of(self, number: int, num_tokens: float) -> float:
        """When a request's answer of `num_tokens` tokens is whole by this group's rule, seconds of the clock.

        Before the clock when that is past: answers go on until they are removed.
        """
        at = self._place(number)
        made, first, model, lane = self._entries[at, _PLACE].tolist()
        if made >= num_tokens:
            lane += model * self._stages
            return self._when(first, (num_tokens - 1.0) / self._tables[4][int(model), 4], lane)
        copies, count = self._copies, self._n
        copies[:count] = self._entries[:count]
        copies[:count, passes.TOTAL] = np.maximum(copies[:count, passes.EXPECTED], copies[:count, passes.MADE] + 1.0)
        copies[at, passes.TOTAL] = num_tokens
        _, _, ended = compiled("advance")(
            copies, count, self.clock, FOREVER, self.scale, self._tables, self._chunks, self._state.copy(), self._done,
            _NO_LOG,
        )  # fmt: skip
        done = self._done[:ended]
        return float(done[done[:, passes.NUMBER] == number, passes.ENDED][0])

    def _when(self, first: float, num_rounds: float, lane: float) -> float:
        """When that many rounds had followed the one that ended at `first`, by what is remembered of rounds.

        Of a pipeline: passes of that lane.
        """
        count = int(self._rounds[0, 0])
        kept = min(count, _ROUNDS_KEPT)
        log = self._rounds[1 + np.arange(count - kept, count) % _ROUNDS_KEPT]
        clocks, numbers, _ = (log[log[:, 2] == lane] if self._stages > 1 else log).T
        return float(np.interp(np.interp(first, clocks, numbers) + num_rounds, numbers, clocks))

    def remove(self, number: int) -> None:
        """Forget a request."""
        at = self._place(number)
        self._entries[at : self._n - 1] = self._entries[at + 1 : self._n].copy()
        self._n -= 1

    def restart(self, seconds: float) -> None:
        """Begin at that time, with whatever has joined unread."""
        self.clock = seconds
        self._state[0, [lanes.FREE, lanes.LAST]] = seconds
        self._state[:, lanes.READY : lanes.READY + self._stages] = seconds
        for column in (passes.READ, passes.MADE, passes.RUNS, passes.FIRST, passes.ENDED):
            self._entries[: self._n, column] = 0.0

    def clear(self) -> None:
        """Forget all requests."""
        self._n = 0

    def _place(self, number: int) -> int:
        return int(np.flatnonzero(self._entries[: self._n, passes.NUMBER] == number)[0])

    def _entry(self, ask: TokenAsk, number: int, total_tokens: float) -> np.ndarray:
        entry = np.zeros(passes.NUM_COLUMNS)
        entry[passes.MODEL], entry[passes.NUMBER] = self._numbers[ask.model], number
        entry[passes.PROMPT], entry[passes.EXPECTED] = max(1.0, ask.prompt_tokens), max(1.0, ask.expected_tokens)
        entry[passes.TOTAL] = total_tokens
        entry[passes.BY], entry[passes.FIRST_BY], entry[passes.PACE] = ask.by, ask.first_by, ask.pace
        if ask.first:
            entry[passes.READ], entry[passes.MADE], entry[passes.FIRST] = entry[passes.PROMPT], 1.0, ask.first
        return entry

    def _make_room(self, room: int) -> None:
        entries = np.zeros((room, passes.NUM_COLUMNS))
        if self._n:
            entries[: self._n] = self._entries[: self._n]
        self._entries, self._copies, self._done = entries, np.zeros_like(entries), np.zeros_like(entries)
        self._chunks = np.zeros(room)


def warm_up() -> None:
    """Compile what groups call, seconds where the disk does not have it: nobody who waits should wait for that."""
    group, ask = TokenGroup({"": TokenProfile({0: {1: 1.0}})}), TokenAsk("", 1.0, 2.0)
    group.consider(ask, 0.0)
    group.join(0, ask, 0.0)
    group.advance(0.5)
    group.end_of(0, 2.0)
    group.remove(0)


@cache
def _kept() -> dict[str, Callable[..., Any]]:
    """What groups call of `kernel.py`, with its machine code kept on disk.

    All before one is compiled: those that it calls are compiled with it, and were not kept.
    """
    sources = [Path(str(module.__file__)) for module in (kernel, passes, rounds, lanes)]
    return {one.__name__: keep_on_disk(one, sources) for one in (kernel.enter, kernel.advance, kernel.consider)}


def compiled(name: str) -> Callable[..., Any]:
    """A function of `kernel.py` with its machine code kept on disk."""
    return _kept()[name]
