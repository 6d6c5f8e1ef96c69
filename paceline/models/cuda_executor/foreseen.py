"""`Foreseen`: launches the next pass before the engine asks for it.

Between two passes the host commits tokens, plans a step and packs its rows while the device is idle. The next step of
requests without drafts is predictable: the same rows one position later, with the tokens just picked, which are on the
device, and the same questions with the next noise keys. So that pass is launched before the tokens of the current one
are fetched, and the host works in parallel. With prompt lookup the next step is predictable too, once the picks are on
the device: how many drafts they accept, and what the text's end repeats (`lookups.py`). If the engine then asks for the
predicted rows, or some of them, the results are on their way. If it asks for anything else, that pass was wasted; it
wrote only to slots after the last tokens, which are rewritten before they are read.

A draft by a head is on the device before it is on the host, and the pass that verifies it is launched before the host
knows it (`verify`). Where such a draft can follow from the picks of a pass alone (`heads/ahead.py`), it is launched
before these are fetched, and its verification too (`verify_after`).

Not for laws that depend on the text (penalties, grammars), nor for drafts of other drafters, which wait for
verification.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, cast
from weakref import WeakMethod, ref

import numpy as np
from torch import Tensor

from paceline.models.base import Rows
from paceline.models.chains import Draws
from paceline.models.cuda_executor.backoff import Backoff
from paceline.models.cuda_executor.begun import BegunPass, Launch, Questions
from paceline.models.cuda_executor.fetch import Fetch
from paceline.models.cuda_executor.following_rows import (
    Roots,
    are_chains,
    chains_after,
    depth_of,
    draws_after,
    is_plain,
    questions_of,
    roots_after,
    starts_of,
)
from paceline.models.cuda_executor.gain import Gain
from paceline.models.cuda_executor.laws import picks_of
from paceline.models.cuda_executor.lookups import FEW_ROWS, MADE, Lookups, template_after
from paceline.models.cuda_executor.passes import Advance, CudaKVCache, Passes
from paceline.models.cuda_executor.verdicts import Draft, Pending, Verdicts, pass_template
from paceline.models.torch_executor.device_states import DeviceStates
from paceline.sampling.answered import LARGEST, Question

_LATEST_STEPS = 16
"""The longest draft of these decides how many drafts of each request a pass launched ahead verifies."""


Told = Callable[[np.ndarray], None]
"""Is told the drafts [requests, levels] once they are on the host."""
Decided = Callable[[np.ndarray, np.ndarray], None]
"""Is told a verdict once it is on the host: rows [S] of each chain whose picks are committed, one more than accepted
drafts, and the picks [M] by row."""
Follow = Callable[[Pending | None], Decided | None]
"""Launches the draft after a pass, if it can; is given None when there is a pass from which no draft is to follow."""


Answered = Callable[[], tuple[np.ndarray, DeviceStates | None]]
"""Waits for a pass; the table of answers [K, n] to its questions, and the states of its taps, None without taps."""


class _Ended(NamedTuple):
    """The latest pass, if none was begun after it: its cache, whose `changes` they were then, its taps, and where the
    next one begins."""

    cache: ref[CudaKVCache]
    changes: int
    taps: tuple[int, ...]
    roots: Roots


class Foreseen:
    """Predicts and launches the plain passes of one model.

    A pass without drafts is launched ahead where a `Gain` is expected, one with drafts where a `Backoff` allows it.

    Args:
        launch: starts a pass; with `keys` the noise of each row's pick is given on the device.
        has_recorded: whether a pass over these rows and this cache with these taps has its graph; see
            `Passes.has_recorded`.
        passes: counts passes.
        fetch: copies answers to the host; not shared with others.
        max_positions: maximum position of the model.
        picks: the latest picks, on the device, by place.
        kernels: whether Triton's kernels are used.
        only_plain: whether passes with drafts are never launched ahead: which states of recurrent layers a pass begins
            with is decided on the host, which must know the slots before.
        clock: returns seconds.

    Attributes:
        gain: what passes without drafts launched ahead save.
        num_foreseen, num_taken: passes launched ahead, and those of them that the engine then asked for.
        verifies_early: whether drafts are expected, see `expect`.
    """

    def __init__(
        self, launch: Launch, has_recorded: Callable[[Rows, CudaKVCache, tuple[int, ...]], bool], passes: Passes,
        fetch: Fetch, max_positions: int, picks: Tensor, kernels: bool = False, only_plain: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._launch, self._has_recorded, self._passes, self._fetch = launch, has_recorded, passes, fetch
        self._max_positions, self._picks, self._only_plain, self._clock = max_positions, picks, only_plain, clock
        self._fetch_lines = Fetch(picks.device)
        self._depths: deque[int] = deque(maxlen=_LATEST_STEPS)
        self.gain, self._backoff = Gain(clock), Backoff()
        self._next: BegunPass | None = None
        self._last: _Ended | None = None
        self.num_foreseen = self.num_taken = 0
        self.verifies_early = False
        self._followers: list[WeakMethod[Follow]] = []
        self._verdicts = Verdicts.on(picks.device, kernels)

    def knows(self, rows: Rows, cache: CudaKVCache, questions: Sequence[Question | None]) -> bool:
        """Whether the step after these rows may be predictable, so that they should be passed to `begin`."""
        has_drafts = not self._only_plain and (self.verifies_early or cache.lookups is not None)
        return is_plain(rows, questions) or (has_drafts and are_chains(rows, questions))

    def begin(self, rows: Rows, cache: CudaKVCache, taps: tuple[int, ...], questions: Questions) -> Answered:
        """Launch the pass over `rows` that it `knows`, if it was not, and perhaps the one after it."""
        ahead, self._next = self._next, None
        own = None if ahead is None else ahead.places_of(rows, cache, taps, questions)
        starts = starts_of(rows)
        self._depths.append(depth_of(rows, starts))
        self.gain.begins((ahead is None or own is not None) and self._follows(rows.positions[starts], cache))
        self._last = None  # until this pass has ended; nothing may follow from the one before it
        if ahead is not None and ahead.has_drafts:
            self._backoff.note(own is not None)
        began, num_graphs = self._clock(), len(cache.graphs)
        if ahead is None or own is None:
            current, own = self._begun(rows, cache, taps, questions), np.arange(len(rows.slots))
        else:
            current = ahead
            self.num_taken += 1
        decided = self._drafted_after(current, rows, starts, own, cache)
        if self._next is None and not decided and self.gain.is_expected:
            self._next = self._begun_after(current, rows, own, cache, questions)
        after, has_recorded = self._next, num_graphs != len(cache.graphs)

        def finish() -> tuple[np.ndarray, DeviceStates | None]:
            ended_before = current.fetched.is_there
            [table] = current.fetched.wait()
            table = table[own]
            roots, picks = roots_after(rows, starts, table), picks_of(table).astype(np.int32)
            counts = roots.positions - rows.positions[starts]
            is_right = after is None or _learns(after, roots, counts, picks)
            if self._next is after and not is_right:
                self._next = None
            for tell in decided:
                tell(counts, picks)
            if current is not ahead and (after is None or not is_right) and not has_recorded:  # one pass and no more
                self.gain.learn_pass(self._clock() - began, ended_before)
            self._last = _Ended(ref(cache), cache.changes, taps, roots)
            states = current.states
            if states is not None and len(own) < len(states):
                states = states[own.tolist()]
            self.gain.ends()
            return table, states

        return finish

    def expect(self, follow: Follow | None = None) -> bool:
        """Whether `verify` may be called; `follow`, a method of some drafter, is then called before the answers of each
        pass are fetched, as long as that drafter lives."""
        if self._only_plain:
            return False
        self.verifies_early = True
        if follow is not None:
            if not self._followers:
                self._verdicts.warm_up(self._picks)
            self._followers = [*(each for each in self._followers if each() is not None), WeakMethod(follow)]
        return True

    def pass_over(self) -> None:
        """Tell drafters that a pass was run from which no draft is to follow: the next one verifies other drafts."""
        for method in self._methods():
            method(None)

    def _methods(self) -> list[Follow]:
        return [method for each in self._followers if (method := each()) is not None]

    def _drafted_after(
        self, current: BegunPass, rows: Rows, starts: np.ndarray, own: np.ndarray, cache: CudaKVCache
    ) -> list[Decided]:  # fmt: skip
        """Let drafters launch drafts after `current`; `own` are the indices of `rows` in it. Those who want to know
        the verdict."""
        decided: list[Decided] = []
        for method in self._methods():
            pending = None
            if current.number == self._passes.num_launched:  # otherwise its picks have been overwritten on the device
                given = self._picks, current.taps, current.states, self._verdicts
                pending = Pending(rows, starts, cache, own, *given)
            if (tell := method(pending)) is not None:
                decided.append(tell)
        return decided

    def verify(self, drafts: Tensor, draws: Draws | None) -> Told | None:
        """Launch the pass that verifies `drafts`, which the host does not know yet: a chain for each request of the
        latest pass, in its order. None where that is not possible; a wrong guess costs a pass.

        Args:
            drafts: [levels, requests] tokens on the device.
            draws: how they were drawn, with the key of one more draw; None for the most probable ones.
        """
        last, (levels, count) = self._last, drafts.shape
        cache = None if last is None else last.cache()
        if last is None or cache is None or (self._next is not None and not self._next.has_drafts):
            return None
        latest = last if self._next is None else self._next  # whose draft was launched ahead, and not asked for
        if cache.changes != latest.changes:
            return None
        if len(last.roots.positions) != count or count * levels > len(self._picks):
            return None
        if self._backoff.passes_over():
            return None
        rows, asked = chains_after(last.roots, levels, self._max_positions), questions_of(draws, count, levels)
        if rows is None or asked is None or not self._has_recorded(rows, cache, last.taps):
            return None
        self._picks[: count * levels].view(count, levels).copy_(drafts.T)
        self._next = None
        try:
            begun = self._next = self._begun(rows, cache, last.taps, asked, is_foreseen=True)
        except Exception:  # it will be raised when the engine asks for that pass; the draft has not failed
            return None
        return self._verifying(begun, count, levels)

    def verify_after(self, pending: Pending, draft: Draft, draws: Draws | None) -> Told | None:
        """Launch the pass that verifies `draft`, which follows from a pass that a drafter was just given as pending.

        Args:
            draws: how the draft before it was drawn, with the keys of twice as many draws and two more; None for the
                most probable tokens.
        """
        levels, count = draft.tokens.shape
        template, asked = pass_template(pending, levels), questions_of(draws, count, levels)
        if self._next is not None or template is None:
            return None
        if asked is None or not self._passes.fits(template) or self._backoff.passes_over():
            return None
        advance = self._verdicts.pass_after(template, draft, pending.cache.spare_slot, self._max_positions)
        keys = None if draft.keys is None else draft.keys[:, : levels + 1].reshape(-1)
        try:
            begun = self._next = self._begun(
                template, pending.cache, pending.taps, asked, is_foreseen=True, advance=advance, keys=keys
            )
        except Exception:  # as in `verify`
            return None

        def learn(begun: BegunPass, roots: Roots, counts: np.ndarray, _: np.ndarray) -> bool:
            rows = chains_after(roots, levels, self._max_positions)
            questions = questions_of(None if draws is None else draws_after(draws, counts), count, levels)
            if rows is None or questions is None:
                return False
            begun.rows, begun.questions = rows, questions
            return True

        begun.learn, begun.waits = learn, True
        return self._verifying(begun, count, levels)

    def _verifying(self, begun: BegunPass, count: int, levels: int) -> Told:
        """Count a pass that verifies chains of `levels` drafts; what is to be told these."""
        begun.has_drafts = True
        self.num_foreseen += 1

        def told(tokens: np.ndarray) -> None:
            begun.rows.token_ids.reshape(count, levels + 1)[:, 1:] = tokens

        return told

    def _follows(self, roots: np.ndarray, cache: CudaKVCache) -> bool:
        """Whether segments that begin at positions `roots` [S] are those that follow the latest pass, or fewer."""
        if self._last is None or self._last[:2] != (ref(cache), cache.changes):
            return False
        before = self._last.roots.positions
        return len(roots) < len(before) or (len(roots) == len(before) and bool((roots == before).all()))

    def _begun(
        self, rows: Rows, cache: CudaKVCache, taps: tuple[int, ...], questions: Questions, is_foreseen: bool = False,
        advance: Advance | None = None, keys: Tensor | None = None,
    ) -> BegunPass:  # fmt: skip
        table, states = self._launch(rows, cache, taps, questions, is_foreseen=is_foreseen, advance=advance, keys=keys)
        number, fetched = self._passes.num_launched, self._fetch(table)
        return BegunPass(rows, taps, questions, ref(cache), cache.changes, number, fetched, states)

    def _begun_after(
        self, current: BegunPass, rows: Rows, own: np.ndarray, cache: CudaKVCache, questions: Questions
    ) -> BegunPass | None:
        """Launch the pass after `current`; `own` are the indices of `rows` in it. None if that is not possible yet."""
        if current.number != self._passes.num_launched:  # its tokens have been overwritten on the device
            return None
        drafts, is_plain = max(self._depths), len(rows.slots) == len(rows.page_tables)
        try:
            if cache.lookups is not None and drafts and len(rows.page_tables) * (drafts + 1) <= FEW_ROWS:
                begun = self._begun_with_drafts(current, rows, own, cache, cache.lookups, drafts, questions)
            elif is_plain:
                begun = self._begun_plain(current, rows, own, cache, questions)
            else:
                begun = None
        except Exception:  # it will be raised when the engine asks for that pass; the one before has not failed
            return None
        self.num_foreseen += begun is not None
        return begun

    def _begun_plain(
        self, current: BegunPass, rows: Rows, own: np.ndarray, cache: CudaKVCache, questions: Questions
    ) -> BegunPass | None:
        roots = Roots(rows.positions + 1, (-1 - own).astype(np.int32), rows.page_tables)
        following, asked = chains_after(roots, 0, self._max_positions), [each.following() for each in questions]
        if following is None or None in asked or not self._has_recorded(following, cache, current.taps):
            return None
        begun = self._begun(following, cache, current.taps, cast(Questions, asked), is_foreseen=True)

        def learn(begun: BegunPass, _: Roots, counts: np.ndarray, picks: np.ndarray) -> bool:
            begun.rows.token_ids[:] = picks
            return True

        begun.learn, begun.waits = learn, True
        return begun

    def _begun_with_drafts(
        self, current: BegunPass, rows: Rows, own: np.ndarray, cache: CudaKVCache, lookups: Lookups, drafts: int,
        questions: Questions,
    ) -> BegunPass | None:  # fmt: skip
        """The next pass with `drafts` drafts by prompt lookup for each request."""
        if self._backoff.passes_over():
            return None
        if not all([each.takes_argmax for each in questions]):
            return None
        template = template_after(rows, own, drafts, self._max_positions)
        if template is None or not self._passes.fits(template):
            return None
        make_rows, fetched = lookups.advancing(template, self._picks, cache.spare_slot), []

        def advance(packed: Tensor, num_rows: int) -> None:
            make_rows(packed, num_rows)
            fetched.append(self._fetch_lines(packed[: MADE * num_rows].view(MADE, num_rows)))

        asked = [LARGEST] * len(template.slots)
        begun = self._begun(template, cache, current.taps, asked, is_foreseen=True, advance=advance)

        def learn(begun: BegunPass, *_: object) -> bool:
            [lines] = fetched[0].wait()
            tokens, positions, slots = lines[:, : len(template.slots)]
            begun.rows = replace(
                template, token_ids=tokens, positions=positions, slots=slots, natural_lengths=positions + 1
            )
            return True

        begun.has_drafts, begun.learn, begun.waits = True, learn, True
        return begun


def _learns(begun: BegunPass, roots: Roots, counts: np.ndarray, picks: np.ndarray) -> bool:
    """Tell a pass what the one before it decided (see `BegunPass.learn`); whether it can be the next one."""
    begun.waits = not begun.learn(begun, roots, counts, picks)
    return not begun.waits
