"""`StateBook`: which states of recurrent layers a cache keeps, and how the rows of a pass follow from them.

A state is that after one token, so it belongs to the slot that has the token's key and value, and is valid as long as
these are. It is large (`Recurrence.num_bytes`), so that most tokens have none: a cache keeps a few whole states and the
inputs of recent rows, from which later states are computed again, row after row, with the same result bit for bit. A
draft is thereby taken back without any work: the next pass starts from the last state before it.

Bookkeeping only: numbers of states and inputs, which executors store, and a program of steps for each segment. Not for
what a state is (`architecture/recurrence.py`).
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from paceline.errors import InvalidParameter, PacelineError
from paceline.models.architecture.recurrence import Recurrence
from paceline.models.base import PAGE_SIZE, KVCache, Rows, slot_of

LOAD, REPEAT, AGAIN, ROW, SAVE = range(5)
"""Kinds of steps, with their two numbers: load a state (-1: of no token); apply kept inputs; apply a row of the pass
once more; apply a row for its output, and keep its inputs (-1: do not); save the state. A program applies rows in order
of its segment, each to the state after its parent."""
_MOST_REPEATED = 4
"""Rows that a pass applies again at most before its state is saved. Applying one costs about as much as saving."""
MOST_DRAFTED = 64
"""Tokens of the longest chain that can be drafted."""
_MOST_KEPT = MOST_DRAFTED + 1
"""Rows of a chain whose inputs are kept, the last ones; prompts have more."""
_LEAST_INPUTS = 256
DEFAULT_STATES = 16
Step = tuple[int, int, int]


class StateLost(PacelineError):
    """A row's state was evicted for newer ones; its request must be computed again."""


class StateSteps(NamedTuple):
    """The steps of a pass: `steps` [n, 3] int32 (kind and two numbers), those of segment i from `starts` [S + 1] on."""

    steps: np.ndarray
    starts: np.ndarray


@runtime_checkable
class HoldsStates(Protocol):
    """A KV cache of a model with recurrent layers."""

    @property
    def state_bytes(self) -> int:
        """Bytes of the states of all layers after one token."""
        ...

    def hold(self, num_states: int) -> None:
        """Make room for so many states; all kept ones are evicted."""
        ...

    def can_resume(self, page: int) -> bool:
        """Whether the state after the last token of a page is kept; asking counts as a use."""
        ...

    def can_follow(self, slots: Iterable[int]) -> bool:
        """Whether a text can go on whose tokens, from the last to the first, are in `slots`."""
        ...

    def only_time(self) -> None:
        """From now on a missing state counts as that of no token: to time passes over texts that were never read."""
        ...


def only_time(cache: KVCache) -> KVCache:
    """`cache`, for passes of which only the time counts (`HoldsStates.only_time`)."""
    if isinstance(cache, HoldsStates):
        cache.only_time()
    return cache


def most_texts(num_states: int) -> int:
    """Texts that can be in one pass with so many states: it reads one of each, and saves another."""
    return max(1, (num_states - 2) // 2)


class StateBook:
    """The states and inputs that a cache keeps, by slot.

    Args:
        num_states: whole states. For a new one the least recently used is evicted; those at the end of a page, from
            which prefix caching goes on, only where they are more than half of all.
    """

    def __init__(self, num_states: int = DEFAULT_STATES) -> None:
        self._states = _Places(num_states, grows=False)
        self._inputs = _Places(_LEAST_INPUTS, grows=True)
        self.only_times = False
        """See `HoldsStates.only_time`."""

    @property
    def num_states(self) -> int:
        """States that there must be room for."""
        return self._states.count

    @property
    def num_inputs(self) -> int:
        """Inputs of rows that there must be room for; may grow with a `plan`."""
        return self._inputs.count

    def can_resume(self, slot: int) -> bool:
        """Whether the state after the token in `slot` is kept; asking counts as a use."""
        return self._states.use(slot) is not None

    def can_follow(self, slots: Iterable[int]) -> bool:
        """See `HoldsStates.can_follow`."""
        for slot in slots:
            if self._states.use(slot) is not None:
                return True
            if self._inputs.use(slot) is None:
                return False
        return True

    def plan(self, rows: Rows, whole: bool = True) -> StateSteps:
        """The steps of a pass over `rows`, and record them in the book.

        In a chain, the rows before the first whose logits are asked for are committed text: nothing goes on from them.

        Args:
            whole: whether all layers run. If not, the rows are a draft and no state is saved: it would lack layers, or
                be evicted for a text's own.

        Raises:
            StateLost: the states before a row are no longer kept, or there are more segments than states.
        """
        slots = rows.slots.tolist()
        for kept in (self._states, self._inputs):
            kept.begin_pass()
            for slot in slots:
                kept.drop(slot)
        bounds = np.searchsorted(rows.segments, np.arange(len(rows.page_tables) + 1)).tolist()
        segments = [_Segment(rows, slots, *ends) for ends in pairwise(bounds)]
        for segment in segments:  # before anything is evicted for a new state
            segment.before = {row: self._steps_before(segment, row) for row in segment.roots}
        asked, place = rows.logit_rows.tolist(), 0
        steps: list[Step] = []
        starts = [0]
        for left, segment in zip(range(len(segments), 0, -1), segments, strict=True):
            while place < len(asked) and asked[place] < segment.first:
                place += 1
            if segment.rows:
                anchor = min(asked[place] if place < len(asked) else segment.end, segment.end - 1)
                steps += self._steps_of(segment, anchor, whole, left)
            starts.append(len(steps))
        return StateSteps(np.array(steps, np.int32).reshape(-1, 3), np.array(starts, np.int32))

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """What is kept for the slots `sources` is kept for `destinations` from now on, and no longer for `sources`."""
        self._states.move(sources, destinations)
        self._inputs.move(sources, destinations)

    def _steps_before(self, segment: "_Segment", row: int) -> list[tuple[Step, int]]:
        """Steps to the state before `row`, whose parent is not in the pass, each with the slot of its token (-1: none).

        Raises:
            StateLost: neither the state nor the inputs after a kept state are there.
        """
        chain: list[tuple[Step, int]] = []
        for position in range(segment.position(row) - 1, -1, -1):
            slot = segment.slot(row, position)
            state = self._states.use(slot)
            if state is not None:
                return [((LOAD, state, 0), -1), *reversed(chain)]
            inputs = self._inputs.use(slot)
            if inputs is None and self.only_times:
                break
            if inputs is None:
                raise StateLost("the state of a text is no longer kept; the text must be computed again")
            chain.append(((REPEAT, inputs, 0), slot))
        return [((LOAD, -1, 0), -1), *reversed(chain)]

    def _steps_of(self, segment: "_Segment", asked: int, whole: bool, left: int) -> list[Step]:
        """The steps of a segment: `asked` is the first row whose logits are, or the last row.

        Args:
            left: segments from this one on, each of which may need a state; those at the end of a page are saved only
                where there are more.
        """
        anchor = max(asked, segment.end - _MOST_KEPT) if segment.is_chain else segment.first
        page_end = segment.last_page_end(anchor) if whole and len(segment.rows) >= PAGE_SIZE else -1
        steps: list[Step] = []
        paths: dict[int, list[Step]] = {}
        """By row the steps to the state after it; of chains only to the latest."""
        latest, anchor_saves = -1, False
        for row in segment.rows:
            parent = segment.parents[row]
            if parent >= 0:
                path = paths[parent]
                steps += path if parent != latest else ()
            else:
                path = self._repeated(segment.before[row], whole, left, steps)
            if row == segment.first:
                anchor_saves = whole and len(path) + anchor - row > _MOST_REPEATED
            saves = (row == anchor and anchor_saves) or (row == page_end and self._states.num_unused > left)
            is_kept = not saves and (row >= anchor or not anchor_saves)
            kept = self._inputs.take(segment.slots[row]) if is_kept else -1
            steps.append((ROW, row, kept))
            path = path if segment.is_chain else [*path]
            path.append((AGAIN, row, 0))
            if saves:
                state = self._states.take(segment.slots[row])
                steps.append((SAVE, state, 0))
                path = [(LOAD, state, 0)]
            paths[row], latest = path, row
        return steps

    def _repeated(self, before: list[tuple[Step, int]], whole: bool, left: int, steps: list[Step]) -> list[Step]:
        """Append the steps before a row to `steps`, with a state saved where a page ends; returns them, as a path.

        `left` as in `_steps_of`.
        """
        path: list[Step] = []
        for step, slot in before:
            steps.append(step)
            path.append(step)
            is_end = slot >= 0 and _fills_page(slot)
            if whole and is_end and self._states.num_unused > left and self._states.use(slot) is None:
                state = self._states.take(slot)
                steps.append((SAVE, state, 0))
                path = [(LOAD, state, 0)]
        return path


class StateStore:
    """The states and inputs of a cache, with their book; see `HoldsStates`. An executor may keep them elsewhere.

    Attributes:
        states: [num_states, recurrent layers, state_size] float32: the last inputs [kernel - 1, channels], oldest
            first, then the matrices [value_heads, key_dim, value_dim].
        inputs: [num_inputs, recurrent layers, inputs] float32.
    """

    def __init__(self, recurrence: Recurrence) -> None:
        self.state_bytes = recurrence.num_bytes
        self._layers, self._sizes = len(recurrence.layers), (recurrence.state_size, recurrence.inputs)
        self.book = StateBook(DEFAULT_STATES)
        self._allocate()

    def hold(self, num_states: int) -> None:
        """Make room for so many states; see `HoldsStates.hold`."""
        self.book = StateBook(num_states)
        self._allocate()

    def _allocate(self) -> None:
        shapes = zip((self.book.num_states, self.book.num_inputs), self._sizes, strict=True)
        self.states, self.inputs = (self._zeros(count, self._layers, size) for count, size in shapes)

    def plan(self, rows: Rows, whole: bool = True) -> StateSteps:
        """As `StateBook.plan`, with room made for the inputs.

        Raises:
            InvalidParameter: rows that do not read all tokens before them.
        """
        if rows.num_keys is not None and (rows.num_keys != rows.positions + 1).any():
            raise InvalidParameter("num_keys", "recurrent layers read all tokens", "draft without a window of keys")
        steps = self.book.plan(rows, whole)
        if missing := self.book.num_inputs - len(self.inputs):
            self.inputs = self._joined(self.inputs, self._zeros(missing, *self.inputs.shape[1:]))
        return steps

    def _zeros(self, *shape: int) -> Any:
        return np.zeros(shape, np.float32)

    def _joined(self, *parts: Any) -> Any:
        return np.concatenate(parts)


class KeepsStates:
    """What `HoldsStates` asks of a cache, for one that has a `store`; before the class of the cache among the bases."""

    store: StateStore

    @property
    def state_bytes(self) -> int:
        """See `HoldsStates.state_bytes`."""
        return self.store.state_bytes

    def hold(self, num_states: int) -> None:
        """See `HoldsStates.hold`."""
        self.store.hold(num_states)

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """See `KVCache.move`; a state goes to its new slot."""
        super().move(sources, destinations)  # type: ignore[misc]
        self.store.book.move(sources, destinations)

    def can_resume(self, page: int) -> bool:
        """See `HoldsStates.can_resume`."""
        return self.store.book.can_resume(slot_of([page], PAGE_SIZE - 1))

    def can_follow(self, slots: Iterable[int]) -> bool:
        """See `HoldsStates.can_follow`."""
        return self.store.book.can_follow(slots)

    def only_time(self) -> None:
        """See `HoldsStates.only_time`."""
        self.store.book.only_times = True


class _Segment:
    """The rows of one segment: `parents` are rows of the pass, -1 where the parent is not in it (`roots`)."""

    def __init__(self, rows: Rows, slots: list[int], first: int, end: int) -> None:
        self.first, self.end, self.rows, self.slots = first, end, range(first, end), slots
        self.before: dict[int, list[tuple[Step, int]]] = {}
        self._all = rows
        row_of = {slots[row]: row for row in self.rows}
        self.parents = {row: row_of.get(self.slot(row, self.position(row) - 1), -1) for row in self.rows}
        self.roots = [row for row, parent in self.parents.items() if parent < 0]
        self.is_chain = all(parent == row - 1 for row, parent in self.parents.items() if row > first)

    def position(self, row: int) -> int:
        """The row's position."""
        return int(self._all.positions[row])

    def slot(self, row: int, position: int) -> int:
        """The slot of the row's ancestor at `position`; -1 before the first."""
        natural = int(self._all.natural_lengths[row])
        if position >= natural:
            return int(self._all.branch_slots[row][position - natural])
        return slot_of(self._all.page_tables[self._all.segments[row]], position).item() if position >= 0 else -1

    def last_page_end(self, most: int) -> int:
        """The last row up to `most` whose token fills a page; -1 for none."""
        return next((row for row in range(most, self.first - 1, -1) if _fills_page(self.slots[row])), -1)


class _Places:
    """Which of `count` places hold something, by slot, with the least recently used evicted for new ones.

    What the running pass or, if it `grows`, the one before it has used is never evicted: then there will be twice as
    many places, or `take` raises StateLost.
    """

    def __init__(self, count: int, grows: bool) -> None:
        self.count, self._grows = count, grows
        self._free = list(range(count - 1, -1, -1))
        self._place_of: dict[int, int] = {}
        self._used: tuple[OrderedDict[int, int], OrderedDict[int, int]] = (OrderedDict(), OrderedDict())
        """The pass that last used a slot, least recent first: of slots inside a page, and of those that end one."""
        self._pass = 0

    @property
    def num_unused(self) -> int:
        """Places that hold nothing, or what the running pass has not used."""
        return self.count - sum(latest == self._pass for used in self._used for latest in used.values())

    def begin_pass(self) -> None:
        """What was used until now may be evicted (see above)."""
        self._pass += 1

    def use(self, slot: int) -> int | None:
        """The place of `slot`, which is used now; None where there is none."""
        place = self._place_of.get(slot)
        if place is not None:
            used = self._used[_fills_page(slot)]
            used[slot] = self._pass
            used.move_to_end(slot)
        return place

    def take(self, slot: int) -> int:
        """A place for `slot`, which has none."""
        if not self._free:
            self._give_up()
        self._place_of[slot] = place = self._free.pop()
        self._used[_fills_page(slot)][slot] = self._pass
        return place

    def drop(self, slot: int) -> None:
        """Free the place of `slot`, if it has one."""
        place = self._place_of.pop(slot, None)
        if place is not None:
            del self._used[_fills_page(slot)][slot]
            self._free.append(place)

    def move(self, sources: Sequence[int], destinations: Sequence[int]) -> None:
        """Give the places of `sources` to `destinations`."""
        places = [self._place_of.pop(slot, None) for slot in sources]
        passes = [self._used[_fills_page(slot)].pop(slot, 0) for slot in sources]
        for slot, place, latest in zip(destinations, places, passes, strict=True):
            self.drop(slot)
            if place is not None:
                self._place_of[slot] = place
                self._used[_fills_page(slot)][slot] = latest

    def _give_up(self) -> None:
        inside, ends = self._used
        first, second = (ends, inside) if 2 * len(ends) > self.count else (inside, ends)
        least = self._pass - self._grows
        for used in (first, second):
            slot, latest = next(iter(used.items()), (-1, least))
            if latest < least:
                self.drop(slot)
                return
        if not self._grows:
            raise StateLost(f"{self.count} states of recurrent layers are too few for this pass")
        self._free = list(range(2 * self.count - 1, self.count - 1, -1))
        self.count *= 2


def _fills_page(slot: int) -> bool:
    """Whether `slot` is the last of its page."""
    return slot % PAGE_SIZE == PAGE_SIZE - 1
