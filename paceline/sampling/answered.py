"""Verification without a copy of the logits: the device that holds them precomputes what an exact rule will read.

A rule reads a target's law in three ways: the probability of a drafted token, the residual law after its rejection, and
a draw. A `Question` lists, for one row of logits, the drafted tokens to be tried in order, and the noise key of the
draw after all were rejected. The device answers all rows at once, and the unchanged rules run on `Answer`s. Not
for computing answers (`models/cuda_executor/laws/`), nor for rules that read more of a law (block verification and the
lossy ones).
"""

from collections.abc import Sequence
from functools import partial
from math import isfinite
from typing import Any, Literal, NamedTuple, Protocol

from paceline.sampling.coupled import verify_coupled, verify_sample_and_match
from paceline.sampling.edits import Edits
from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT, CounterRandomness, Purpose
from paceline.sampling.rules import Verifier, verify_as_far, verify_auto
from paceline.sampling.tree import TokenTree
from paceline.sampling.verify import Verdict, draft_law_of_trial, verify
from paceline.sampling.warp import Warper, check_peak

Trial = tuple[int, Law]
"""A drafted token, and the law that it was drawn from given the siblings tried before it."""


class Question(NamedTuple):
    """What a rule will read of the warped law of one row of logits.

    Attributes:
        temperature, min_p, top_k, top_p: as in `SamplingParams`.
        edits: changes of single logits, applied before these.
        key: noise key of the pick; see `CounterRandomness.key`.
        trials: drafted tokens to try in order. Each takes the residual of the law, and the pick is drawn from the last.
        next_key: noise key of the pick one position on, where the next question will be the same but for it; None where
            that is not known.
    """

    temperature: float
    min_p: float
    top_k: int
    top_p: float
    edits: Edits | None
    key: int
    trials: tuple[Trial, ...] = ()
    next_key: int | None = None

    @property
    def law(self) -> tuple[float, float, int, float, int]:
        """What decides a pick, given the logits, where there are neither edits nor trials."""
        if self.temperature == 0:  # nothing is drawn
            return 0.0, 0.0, 0, 1.0, 0
        return self.temperature, self.min_p, self.top_k, self.top_p, self.key

    def following(self) -> "Question | None":
        """The same question one position on, for a text that grows by one token; None if that is not known."""
        if self.takes_argmax:
            return self
        if self.edits is not None or self.next_key is None:
            return None
        return Question(self.temperature, self.min_p, self.top_k, self.top_p, None, self.next_key, self.trials)

    @property
    def takes_argmax(self) -> bool:
        """Whether the law is one-hot at the largest unedited logit."""
        return self.temperature == 0 and self.edits is None


LARGEST = Question(0.0, 0.0, 0, 1.0, None, 0)
"""The question for the argmax of the unedited logits."""


class Answer(NamedTuple):
    """The answer to a `Question`; its methods are the part of the `Law` interface that the exact rules use.

    Attributes:
        pick: the token drawn.
        chances: probability of each trial's token under the residual law after the trials before it.
        peak, best: the largest of the edited logits, and its token.
        argmax: the token of the largest unedited logit.
    """

    pick: int
    chances: tuple[float, ...]
    peak: float
    best: int
    argmax: int

    def prob(self, token: int) -> float:
        """Probability of the next trial's token; `token` must be that token."""
        return self.chances[0]

    def residual(self, draft: Law) -> "Answer":
        """The residual law after the rejection of the next trial, which was drawn from `draft`."""
        return self._replace(chances=self.chances[1:])


class _Picked(CounterRandomness):
    """A request's randomness whose draws return the precomputed picks; coins are unchanged."""

    def __init__(self, randomness: CounterRandomness) -> None:
        self.__dict__.update(randomness.__dict__)

    def draw(self, law: Any, position: int, purpose: Purpose, node: int = ROOT) -> int:
        """The pick of an `Answer`."""
        return law.pick


def asks_of(verifier: Verifier, tree: TokenTree) -> Literal["draws", "trials"] | None:
    """What a rule reads of the target's laws: ``draws`` only, ``trials`` of children too, or more (None)."""
    if isinstance(verifier, partial):
        return None
    if verifier in (verify_coupled, verify_sample_and_match) or (verifier is verify_auto and tree.draw == "one_hot"):
        return "draws"
    return "trials" if verifier in (verify, verify_auto) else None


def questions_about(
    tree: TokenTree, warper: Warper, randomness: CounterRandomness, position: int, asks: Literal["draws", "trials"]
) -> list[Question]:
    """The questions about the root and each node of `tree`; arguments as in `verify`.

    Raises:
        InvalidParameter: a drafted token has probability 0 under the law it claims to come from.
    """
    if asks == "draws" and warper.takes_argmax:
        return [LARGEST] * (len(tree) + 1)
    if not len(tree):
        keys = [randomness.target_key(place) for place in (position, position + 1)]
        return [question_about(warper, (), keys[0], next_key=keys[1])]
    depths = (0, *tree.depths)
    questions = []
    for node in range(ROOT, len(tree)):
        key = randomness.target_key(position + depths[node + 1])
        trials = _trials(tree, node) if asks == "trials" else ()
        questions.append(question_about(warper, tree.tokens_to(node), key, trials))
    return questions


def question_about(
    warper: Warper, path: Sequence[int], key: int, trials: tuple[Trial, ...] = (), next_key: int | None = None
) -> Question:
    """The question about the warped law after `path`."""
    params = warper.params
    return Question(
        params.temperature, params.min_p, params.top_k, params.top_p, warper.edits(path), key, trials, next_key
    )  # fmt: skip


class Answers(Protocol):
    """The answers about a root and the nodes of its tree."""

    def __getitem__(self, place: int, /) -> Answer: ...


def verify_answered(
    verifier: Verifier, tree: TokenTree, answers: Answers, randomness: CounterRandomness, position: int
) -> Verdict:
    """The verdict of `verifier` given the answers to `questions_about`, read one by one; see `verify_as_far`.

    Raises:
        InvalidParameter: as `Warper.law`, when the root has no law.
    """

    if not len(tree):  # where nothing is drafted, every exact rule draws
        answer = answers[0]
        check_peak(answer.peak, answer.best)
        return Verdict((), answer.pick, "target", 0)
    if tree.is_chain and type(answers) is list and asks_of(verifier, tree) == "draws":
        verdict = _followed(tree.tokens, answers)
        if verdict is not None:
            return verdict

    def target(node: int) -> Any:
        answer = answers[node + 1]
        check_peak(answer.peak, answer.best)
        return answer

    return verify_as_far(verifier, tree, target, _Picked(randomness), position)


def _followed(tokens: tuple[int, ...], answers: list[Answer]) -> Verdict | None:
    """The verdict of rules that read draws only (`coupled.py`, the reference) on a chain of `tokens`; None where a law
    that they would read is broken."""
    for count, token in enumerate(tokens):
        answer = answers[count]
        if not isfinite(answer.peak):
            return None
        if answer.pick != token:
            return Verdict(tuple(range(count)), answer.pick, "recovered", 1)
    last = answers[len(tokens)]
    return Verdict(tuple(range(len(tokens))), last.pick, "bonus", 0) if isfinite(last.peak) else None


def _trials(tree: TokenTree, node: int) -> tuple[Trial, ...]:
    tried: tuple[int, ...] = ()
    trials = []
    for child in tree.children(node):
        law, _ = draft_law_of_trial(tree, child, tried)
        trials.append((tree.tokens[child], law))
        tried += (tree.tokens[child],)
    return tuple(trials)
