"""Run the target pass and return what verification needs: rows of logits, or samples drawn on the model's device.

A model that can sample by itself (`DrawsLaws`) answers `Question`s about each row in place of returning its logits, and
its passes are started without waiting for them. Requests that need the logits themselves (log-probabilities, or a rule
that reads the whole distribution) get their rows. Not for rules (`sampling/`).
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np

from paceline.engine.loop.inputs import part_of
from paceline.engine.loop.live import LiveSample
from paceline.models.base import CausalLM, DrawsLaws, KVCache, RacesRows, Rows
from paceline.models.rows import Part, build_rows
from paceline.models.states import States
from paceline.sampling import TokenTree
from paceline.sampling.answered import LARGEST, Answer, Question, asks_of, questions_about
from paceline.sampling.randomness import CounterRandomness
from paceline.scheduling.batch import Grant

Race = Callable[[np.ndarray, int, Question], int | None]
_EMPTY = TokenTree()


class PassOutput(NamedTuple):
    """Outputs of a pass for one request.

    Attributes:
        logits: [rows, vocab] of the requested rows; None when there are none or `answers` replace them.
        taps: hidden states [rows, hidden] by layer.
        answers: instead of logits, one for the root and one for each node.
        peaks: argmax of each row of `logits`; see `ForwardOutput`.
        race: draws from a row of `logits` without its law; see `RacesRows`.
    """

    logits: np.ndarray | None
    taps: dict[int, States]
    answers: Sequence[Answer] | None = None
    peaks: Sequence[int] | None = None
    race: Race | None = None

    @property
    def says_something(self) -> bool:
        """Whether there are logits or answers."""
        return self.logits is not None or self.answers is not None

    def picks(self) -> np.ndarray:
        """[rows] the most probable token of each row."""
        if self.answers is not None:
            return np.array([answer.argmax for answer in self.answers])
        assert self.logits is not None
        if self.peaks is not None and min(self.peaks) >= 0:
            return np.array(self.peaks)
        return self.logits.argmax(axis=1)


def start_pass(
    model: CausalLM, cache: KVCache, taps: tuple[int, ...], grants: Sequence[Grant], trees: dict[str, TokenTree],
    live: dict[str, LiveSample],
) -> Callable[[], dict[str, PassOutput]]:  # fmt: skip
    """Start a target pass over the rows of `grants`; the returned function gives its outputs by request id.

    That function waits for the pass; for a model that cannot start passes (`starts_passes`) it runs the pass.
    """
    drafts = [trees.get(grant.request.request_id, _EMPTY) for grant in grants]
    parts = [part_of(grant, tree) for grant, tree in zip(grants, drafts, strict=True)]
    sizes = [len(part.tokens) if part.logits == "all" else int(part.logits == "last") for part in parts]
    rows = build_rows(parts)
    if not starts_passes(type(model)):
        return lambda: _computed(model, rows, cache, taps, grants, parts, sizes)
    asked = [
        _questions(grant, live[grant.request.request_id], tree, size)
        for grant, tree, size in zip(grants, drafts, sizes, strict=True)
    ]
    flat = [q for own, size in zip(asked, sizes, strict=True) for q in own or [None] * size]
    finish = cast(DrawsLaws, model).begin_drawn(rows, cache, taps, flat)

    def drawn() -> dict[str, PassOutput]:
        output, answers, row = finish(), [], 0
        for own, size in zip(asked, sizes, strict=True):
            answers.append(output.answers[row : row + size] if own else None)
            row += size
        return _shares(grants, parts, sizes, answers, output.logits, output.taps)

    return drawn


def _computed(
    model: CausalLM, rows: Rows, cache: KVCache, taps: tuple[int, ...], grants: Sequence[Grant], parts: Sequence[Part],
    sizes: Sequence[int],
) -> dict[str, PassOutput]:  # fmt: skip
    output, race = model.forward(rows, cache, taps), cast(RacesRows, model).race if _races(type(model)) else None
    return _shares(grants, parts, sizes, [None] * len(grants), output.logits, output.taps, output.peaks, race)


def plain_pass(
    model: CausalLM, rows: Rows, cache: KVCache, taps: tuple[int, ...] = (), question: Question = LARGEST
) -> None:  # fmt: skip
    """Run a pass as requests have it, by default greedy ones, to time or to record it: where the device draws, logits
    stay there, and `question` is asked about each."""
    if starts_passes(type(model)):
        cast(DrawsLaws, model).begin_drawn(rows, cache, taps, [question] * len(rows.logit_rows))()
    else:
        model.forward(rows, cache, taps)


@functools.cache
def starts_passes(kind: type) -> bool:
    """Whether a model class is `DrawsLaws`; cached, because the protocol check is slow and runs at every step."""
    return issubclass(kind, DrawsLaws)


@functools.cache
def _races(kind: type) -> bool:
    """Whether a model class is `RacesRows`."""
    return issubclass(kind, RacesRows)


def _questions(grant: Grant, live: LiveSample, tree: TokenTree, size: int) -> list[Question] | None:
    """One question for each of the request's `size` rows; None where logits are needed, or no output is.

    Errors give None too: they recur when the rows are verified, where they end only their own request.
    """
    wants_rows = live.state.params.logprobs is not None or size != len(tree) + 1
    if not grant.needs_logits or wants_rows or live.error is not None:
        return None
    noise, asks = live.judge.randomness, asks_of(live.judge.verify, tree)
    if asks is None or not isinstance(noise, CounterRandomness):
        return None
    try:
        return questions_about(tree, live.warper, noise, live.state.num_tokens, asks)
    except Exception:
        return None


def _shares(
    grants: Sequence[Grant], parts: Sequence[Part], sizes: Sequence[int], answers: Sequence, logits: np.ndarray,
    taps: Mapping[int, States], peaks: Sequence[int] | None = None, race: Race | None = None,
) -> dict[str, PassOutput]:  # fmt: skip
    """Split the outputs of a pass by request; `logits` has only the rows of requests without answers."""
    scores, asked, row = {}, 0, 0
    for grant, part, size, given in zip(grants, parts, sizes, answers, strict=True):
        num_rows = 0 if given else size
        own = logits[asked : asked + num_rows] if num_rows else None
        places = None if peaks is None else peaks[asked : asked + num_rows]
        states = {tap: found[row : row + len(part.tokens)] for tap, found in taps.items()}
        scores[grant.request.request_id] = PassOutput(own, states, given, places, race)
        asked, row = asked + num_rows, row + len(part.tokens)
    return scores
