"""What rounds of real engines take: plain decoding, candidates and drafts of known lengths, a few rounds in turns.

A profile times passes one after the other. An engine also builds trees, reads the drafter's weights anew after each
pass, judges rows and commits tokens, so a candidate's rounds are timed as its own engine plays them, the drafter
included. The same prompts go to everybody before the next ones: a machine that slows down slows all of them alike.
Nothing is learnt about acceptance here (`replay.py`), and nothing is priced (`prices.py`).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from paceline.drafters.base import DraftContext, Drafter
from paceline.engine.engine import Engine
from paceline.engine.llm import LLM
from paceline.evaluation.advise.replay import Text
from paceline.sampling import TokenTree
from paceline.speculation import RequestOutcome
from paceline.types import NamedProgress, SamplingParams

PLAIN, SCRIPTED = "plain", "drafts of known lengths"
ROUNDS, PLAIN_ROUNDS = 13, 25
"""Rounds of one visit; the first is the opening, which reads the prompt and counts by itself."""
TURNS, LEAST_TURNS = 16, 4
_SHIFT = 7
"""Known lengths by which turns begin apart, so that answers which end early leave out others each time."""
SECONDS = 120.0
"""After which no turn begins, once there were `LEAST_TURNS`."""
EVERY = 32
"""Up to so many drafted tokens together every number is timed. A pass takes a step up where a tile of rows is full: a
line between numbers far apart misses such steps."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One round.

    Attributes:
        seconds: since the last one's verdicts.
        num_requests: that decoded; num_nodes: drafted tokens of all of them.
        context: tokens before the round's, on average.
        turn: in which it was played.
    """

    seconds: float
    num_requests: int
    num_nodes: int
    context: float
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Opening:
    """The time from a first token to the verdicts of the first round of all requests; prompts are read in it, too.

    Attributes:
        seconds: that it took, that round included.
        num_requests: that began together; num_prompt_tokens: of all of them.
    """

    seconds: float
    num_requests: int
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """All that was timed, by name; `PLAIN` and `SCRIPTED` are among them.

    Attributes:
        rounds, openings: of everybody.
        seconds: that the rehearsal itself took.
    """

    rounds: Mapping[str, Sequence[Timed]]
    openings: Mapping[str, Sequence[Opening]]
    seconds: float = 0.0


def joined(first: Rehearsal, further: Rehearsal) -> Rehearsal:
    """A rehearsal and how it went on."""
    return Rehearsal(
        {name: [*rounds, *further.rounds[name]] for name, rounds in first.rounds.items()},
        {name: [*own, *further.openings[name]] for name, own in first.openings.items()},
        first.seconds + further.seconds,
    )


class Observer:
    """A drafter that lets another one draft, and notes when verdicts are there and what they were about."""

    def __init__(self, inner: Drafter, clock: Callable[[], float]) -> None:
        self.inner, self.name, self.traits, self._clock = inner, inner.name, inner.traits, clock
        self._now: float | None = None
        self._outcomes: list[tuple[int, int, bool]] = []

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """See `Drafter`."""
        return self.inner.propose(contexts)

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
        """(when the verdicts of the latest step were there, (drafted tokens, context, read a prompt) by request)."""
        found = self._now, self._outcomes
        self._now, self._outcomes = None, []
        return found


class Scripted:
    """Proposes chains of given lengths that nobody will say, for nothing. `inner` lends its name and traits."""

    def __init__(self, inner: Drafter, vocab_size: int) -> None:
        self.name, self.traits, self._vocab_size = inner.name, inner.traits, vocab_size
        self.num_nodes = 0

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """`num_nodes` tokens, as evenly as possible over the requests."""
        share, rest = divmod(self.num_nodes, len(contexts))
        return [self._chain(context, share + (place < rest)) for place, context in enumerate(contexts)]

    def observe(self, outcome: RequestOutcome) -> None:
        """Nothing to learn."""

    def release(self, request_id: str) -> None:
        """Nothing to forget."""

    def _chain(self, context: DraftContext, size: int) -> TokenTree:
        first = context.token_ids[-1]
        size = min(size, context.longest)
        return TokenTree.chain([(first + 7919 * (place + 1)) % self._vocab_size for place in range(size)])


@dataclass(slots=True)
class _Stage:
    """An engine and what was timed on it."""

    engine: Engine
    drafter: Observer
    script: Scripted | None = None
    rounds: list[Timed] = field(default_factory=list)
    openings: list[Opening] = field(default_factory=list)


def rehearse(
    llm: LLM, specs: Mapping[str, Mapping[str, Any]], texts: Sequence[Text], params: SamplingParams,
    batches: Sequence[int], most: int, progress: NamedProgress = lambda what, done, total: None, turns: int = TURNS,
    seconds: float = SECONDS, clock: Callable[[], float] = time.perf_counter, first_turn: int = 0,
) -> Rehearsal:  # fmt: skip
    """Time rounds of plain decoding and of all candidates on the prompts of some texts.

    Args:
        llm: the target, decoding plainly.
        specs: name to configuration of each candidate.
        batches: requests at once; one alone is always timed too.
        most: drafted tokens of a request, at most.
        turns: times that everybody is asked.
        seconds: after which no turn begins.
        clock: seconds.
        first_turn: the number of the first turn, where a rehearsal goes on.
    """
    began, sizes = clock(), sorted({1, *batches})
    stages = {PLAIN: _stage(llm, {"method": "plain", "num_draft_tokens": 0}, clock)}
    stages[SCRIPTED] = _stage(
        llm, {"method": "ngram", "num_draft_tokens": most, "policy": "fixed"}, clock, is_scripted=True
    )
    stages |= {name: _stage(llm, spec, clock) for name, spec in specs.items()}
    for stage in stages.values():  # what compiles or is read at a first step does not count
        _visit(stage, [list(texts[0].prompt)], params, range(min(2, most), -1, -1), 0, clock)
        stage.rounds.clear()
        stage.openings.clear()
    for turn in range(first_turn, first_turn + turns):
        if turn >= first_turn + LEAST_TURNS and clock() - began > seconds:
            break
        progress("timing rounds", turn - first_turn, turns)
        for size in sizes:
            prompts = [list(text.prompt) for text in _some(texts, turn, size)]
            for stage in _in_turn(list(stages.values()), turn):
                _visit(stage, prompts, params, known_lengths(size, most), turn, clock)
    progress("timing rounds", turns, turns)
    return Rehearsal(
        {name: stage.rounds for name, stage in stages.items()},
        {name: stage.openings for name, stage in stages.items()},
        clock() - began,
    )


def known_lengths(num_requests: int, most: int) -> list[int]:
    """Drafted tokens of all requests together that are timed, from 0 to `most` for each."""
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
    """As many texts of one family as run at once, others at every turn."""
    families = list(dict.fromkeys(text.family for text in texts))
    own = [text for text in texts if text.family == families[turn % len(families)]]
    first = turn // len(families) * size
    return [own[(first + place) % len(own)] for place in range(size)]


def _in_turn(stages: list[_Stage], turn: int) -> Iterator[_Stage]:
    """All of them, another one first at every turn."""
    for place in range(len(stages)):
        yield stages[(place + turn) % len(stages)]


def _visit(
    stage: _Stage, prompts: list[list[int]], params: SamplingParams, lengths: Sequence[int], turn: int,
    clock: Callable[[], float],
) -> None:  # fmt: skip
    """Some rounds on some prompts, which are given up then."""
    engine, count = stage.engine, len(prompts)
    wanted = PLAIN_ROUNDS if engine.speculation.most == 0 else ROUNDS
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
