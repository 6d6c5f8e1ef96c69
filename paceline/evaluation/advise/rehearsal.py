"""Timing rounds on real engines: plain decoding, candidates, and scripted drafts of known lengths, interleaved.

A profile times passes only. An engine also builds trees, reads the drafter's weights from memory again after each pass,
verifies and commits tokens, so rounds are timed on each candidate's own engine, drafter included. All
engines get the same prompts before the next ones, so that a change of the machine's speed affects all alike. Not for
acceptance (`replay.py`) or for costs of other sizes (`prices.py`).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import mean
from typing import Any

from paceline.drafters.base import DraftContext, Drafter, read_along
from paceline.engine.llm import LLM
from paceline.engine.loop.engine import Engine
from paceline.evaluation.advise.replay import Text
from paceline.sampling import TokenTree
from paceline.speculation import RequestOutcome
from paceline.types import NamedProgress, SamplingParams, silent

PLAIN, SCRIPTED = "plain", "drafts of known lengths"
ROUNDS, PLAIN_ROUNDS = 13, 25
"""Rounds of one visit, for candidates and for plain decoding; the first is the opening, which is timed separately."""
TURNS, LEAST_TURNS = 16, 4
_SHIFT = 7
"""Offset between the first known lengths of turns, so that answers that end early omit different lengths."""
SECONDS = 120.0
"""Time after which no turn begins, once there were `LEAST_TURNS`."""
EVERY = 32
"""Every total number of drafted tokens up to this one is timed. The time of a pass jumps where a tile of rows is full,
which interpolation between distant numbers would miss."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One timed round.

    Attributes:
        seconds: from the outcomes of the round before to its own.
        num_requests: number of decoding requests; num_nodes: drafted tokens of all of them.
        context: mean number of tokens before the round.
        turn: index of its turn.
    """

    seconds: float
    num_requests: int
    num_nodes: int
    context: float
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """The time from the first token to the outcomes of the first round of all requests; it includes prefills.

    Attributes:
        seconds: duration, including that round.
        num_requests: number of requests; num_prompt_tokens: of all of them.
    """

    seconds: float
    num_requests: int
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The timings by name of the candidate, `PLAIN` or `SCRIPTED`.

    Attributes:
        rounds, openings: by name.
        seconds: duration of the rehearsal.
    """

    rounds: Mapping[str, Sequence[Timed]]
    openings: Mapping[str, Sequence[Opening]]
    seconds: float = 0.0


def joined(first: Rehearsal, further: Rehearsal) -> Rehearsal:
    """A rehearsal and its continuation as one."""
    return Rehearsal(
        {name: [*rounds, *further.rounds[name]] for name, rounds in first.rounds.items()},
        {name: [*own, *further.openings[name]] for name, own in first.openings.items()},
        first.seconds + further.seconds,
    )


class Observer:
    """Wraps a drafter and records the time and the outcomes of every step."""

    def __init__(self, inner: Drafter, clock: Callable[[], float]) -> None:
        self.inner, self.name, self.traits, self._clock = inner, inner.name, inner.traits, clock
        self._now: float | None = None
        self._outcomes: list[tuple[int, int, bool]] = []

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """See `Drafter`."""
        return self.inner.propose(contexts)

    def read_along(self, context: DraftContext) -> int:
        """See `ReadingDrafter`."""
        return read_along(self.inner, context)

    def observe(self, outcome: RequestOutcome) -> None:
        """See `Drafter`."""
        if self._now is None:
            self._now = self._clock()
        before = len(outcome.token_ids) - outcome.num_new
        self._outcomes.append((outcome.num_draft_tokens, before, bool(outcome.num_prefill_tokens)))
        self.inner.observe(outcome)

    def release(self, request_id: str) -> None:
        """See `Drafter`."""
        self.inner.release(request_id)

    def step(self) -> tuple[float | None, list[tuple[int, int, bool]]]:
        """(time of the latest step's first outcome or None, [(drafted tokens, context, had a prefill)] by request)."""
        found = self._now, self._outcomes
        self._now, self._outcomes = None, []
        return found


class Scripted:
    """Proposes chains of given lengths at no cost, unlikely to be accepted, under `inner`'s name and traits."""

    def __init__(self, inner: Drafter, vocab_size: int) -> None:
        self.name, self.traits, self._vocab_size = inner.name, inner.traits, vocab_size
        self.num_nodes = 0

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """Chains with `num_nodes` tokens in total, spread evenly over the requests."""
        share, rest = divmod(self.num_nodes, len(contexts))
        return [self._chain(context, share + (place < rest)) for place, context in enumerate(contexts)]

    def observe(self, outcome: RequestOutcome) -> None:
        """Do nothing."""

    def release(self, request_id: str) -> None:
        """Do nothing."""

    def _chain(self, context: DraftContext, size: int) -> TokenTree:
        first = context.token_ids[-1]
        size = min(size, context.longest)
        return TokenTree.chain([(first + 7919 * (place + 1)) % self._vocab_size for place in range(size)])


@dataclass(slots=True)
class _Stage:
    """An engine with its timings."""

    engine: Engine
    drafter: Observer
    script: Scripted | None = None
    rounds: list[Timed] = field(default_factory=list)
    openings: list[Opening] = field(default_factory=list)


def rehearse(
    llm: LLM, specs: Mapping[str, Mapping[str, Any]], texts: Sequence[Text], params: SamplingParams,
    batches: Sequence[int], most: int, progress: NamedProgress = silent, turns: int = TURNS,
    seconds: float = SECONDS, clock: Callable[[], float] = time.perf_counter, first_turn: int = 0,
) -> Rehearsal:  # fmt: skip
    """Time rounds of plain decoding and of all candidates on the prompts of some texts.

    Args:
        llm: the target, decoding plainly.
        specs: name to configuration of each candidate.
        batches: numbers of concurrent requests; 1 is always added.
        most: largest number of drafted tokens of a request.
        turns: number of turns, in each of which every engine is timed once per number of requests.
        seconds: time after which no turn begins.
        clock: seconds.
        first_turn: index of the first turn, for continuing a rehearsal.
    """
    began, sizes = clock(), sorted({1, *batches})
    stages = {PLAIN: _stage(llm, {"method": "plain", "num_draft_tokens": 0}, clock)}
    stages[SCRIPTED] = _stage(
        llm, {"method": "ngram", "num_draft_tokens": most, "policy": "fixed"}, clock, is_scripted=True
    )
    stages |= {name: _stage(llm, spec, clock) for name, spec in specs.items()}
    for stage in stages.values():  # warm-up: compilation and loading do not count
        _visit(stage, [list(texts[0].prompt)], params, range(min(2, most), -1, -1), 0, clock)
        stage.rounds.clear()
        stage.openings.clear()
    timing, a_turn, done = clock(), len(sizes) * len(stages), 0
    for turn in range(first_turn, first_turn + turns):
        if turn >= first_turn + LEAST_TURNS and clock() - began > seconds:
            break
        for size in sizes:
            prompts = [list(text.prompt) for text in _some(texts, turn, size)]
            for stage in _in_turn(list(stages.values()), turn):
                planned = expected_turns(turns, done / a_turn, clock() - timing, seconds - (timing - began))
                progress("timing rounds", done, planned * a_turn)
                _visit(stage, prompts, params, known_lengths(size, most), turn, clock)
                done += 1
    progress("timing rounds", done, done)
    return Rehearsal(
        {name: stage.rounds for name, stage in stages.items()},
        {name: stage.openings for name, stage in stages.items()},
        clock() - began,
    )


def expected_turns(turns: int, done: float, elapsed: float, seconds: float) -> int:
    """Turns that are expected in all, at the speed of those `done` in `elapsed` of so many `seconds`."""
    in_time = ceil(seconds * done / elapsed) if done and elapsed else turns
    return min(turns, max(LEAST_TURNS, in_time, ceil(done)))


def known_lengths(num_requests: int, most: int) -> list[int]:
    """The total numbers of drafted tokens to time, from 0 to `most` per request, ascending."""
    longest = num_requests * most
    even = {num_requests * size for size in range(most + 1) if size <= 4 or size % 2 == 0 or size == most}
    return sorted({*range(min(EVERY, longest) + 1), *even})


def _stage(
    llm: LLM, spec: Mapping[str, Any], clock: Callable[[], float], is_scripted: bool = False
) -> _Stage:  # fmt: skip
    engine = llm.drafting_with(spec).engine
    script = Scripted(engine.drafter, llm.loaded.model.config.vocab_size) if is_scripted else None
    return _Stage(engine, Observer(script or engine.drafter, clock), script)


def _some(texts: Sequence[Text], turn: int, size: int) -> list[Text]:
    """`size` texts of one family, different ones at every turn."""
    families = list(dict.fromkeys(text.family for text in texts))
    own = [text for text in texts if text.family == families[turn % len(families)]]
    first = turn // len(families) * size
    return [own[(first + place) % len(own)] for place in range(size)]


def _in_turn(stages: list[_Stage], turn: int) -> Iterator[_Stage]:
    """All stages, rotated by the turn."""
    for place in range(len(stages)):
        yield stages[(place + turn) % len(stages)]


def _visit(
    stage: _Stage, prompts: list[list[int]], params: SamplingParams, lengths: Sequence[int], turn: int,
    clock: Callable[[], float],
) -> None:  # fmt: skip
    """Time some rounds on `prompts` and then abort the requests."""
    engine, count = stage.engine, len(prompts)
    wanted = PLAIN_ROUNDS if engine.speculation.num_draft_tokens == 0 else ROUNDS
    if stage.script:
        wanted = max(PLAIN_ROUNDS, len(lengths) + 1)
    names = [f"rehearsal-{number}" for number in range(count)]
    salt = str(clock())  # neither cached pages nor texts of an earlier turn
    for name, prompt in zip(names, prompts, strict=True):
        engine.add_request(name, prompt, params, cache_salt=salt)
    begun: float | None = None
    last, opening, rounds = 0.0, 0.0, 0
    with engine.watched_by(stage.drafter):
        while engine.has_unfinished_requests and rounds < wanted:
            if stage.script:
                stage.script.num_nodes = lengths[(rounds + _SHIFT * turn) % len(lengths)]
            engine.step()
            now, outcomes = stage.drafter.step()
            if now is None:
                continue
            if begun is None or any(reads for _, _, reads in outcomes):
                begun = now if begun is None else begun
            elif len(outcomes) == count:
                rounds += 1
                if rounds == 1:
                    opening = now - begun
                else:
                    nodes, contexts, _ = zip(*outcomes, strict=True)
                    stage.rounds.append(Timed(now - last, count, sum(nodes), mean(contexts), turn))
            last = now
        for name in names:
            engine.abort(name)
    if rounds > 1:
        stage.openings.append(Opening(opening, count, sum(map(len, prompts))))
