"""Laws that stayed where their logits are: the few numbers of them that an exact rule asks for, answered beforehand.

The rules read a target's law in three ways: the chance of a drafted token, the law that is left when it is refused, and
a draw. A `Question` says for one row of logits which drafted tokens will be tried, in order, and with which noise the
pick is drawn once all are refused. Whoever has the logits answers all rows at once, and the rules themselves walk the
tree over `AnsweredLaw`s, unchanged. Not for computing answers (`models/cuda_executor/laws/`), nor for rules that ask
more of a law (block verification and the lossy ones).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

from paceline.sampling.coupled import verify_coupled, verify_sample_and_match
from paceline.sampling.edits import Edits
from paceline.sampling.law import Law
from paceline.sampling.randomness import ROOT, CounterRandomness, Purpose
from paceline.sampling.rules import Verifier, verify_auto
from paceline.sampling.tree import ROOT_PARENT, TokenTree
from paceline.sampling.verify import Verdict, draft_law_of_trial, verify
from paceline.sampling.warp import Warper, check_peak

Trial = tuple[int, Law]
"""A drafted token, and the law that it was drawn from given the siblings tried before it."""


@dataclass(frozen=True, eq=False, slots=True)
class Question:
    """What is asked of the warped law of one row of logits.

    Attributes:
        temperature, min_p, top_k, top_p: as of `SamplingParams`.
        edits: changes of single logits before them.
        key: of the noise of the pick, see `CounterRandomness.key`.
        trials: what is taken from the law one after the other; the pick is drawn from what is left then.
    """

    temperature: float
    min_p: float
    top_k: int
    top_p: float
    edits: Edits | None
    key: int
    trials: tuple[Trial, ...] = ()

    @property
    def takes_argmax(self) -> bool:
        """Whether the law is a point at the largest logit as it is."""
        return self.temperature == 0 and self.edits is None


_LARGEST = Question(0.0, 0.0, 0, 1.0, None, 0)
"""Where the largest logit is."""


@dataclass(frozen=True, slots=True)
class Answer:
    """To a `Question`.

    Attributes:
        pick: the token drawn.
        chances: of each trial's token, under what the trials before it left of the law.
        peak, best: the largest of the edited logits, and where.
        argmax: the most probable token of the row before anything is changed.
    """

    pick: int
    chances: tuple[float, ...]
    peak: float
    best: int
    argmax: int


class AnsweredLaw:
    """As much of a `Law` as the exact rules read."""

    def __init__(self, pick: int, chances: Sequence[float]) -> None:
        self.pick, self._chances = pick, chances

    def prob(self, token: int) -> float:
        """The chance of the next trial's token, which `token` is."""
        return self._chances[0]

    def residual(self, draft: Law) -> "AnsweredLaw":
        """What is left when the next trial, drawn from `draft`, is refused."""
        return AnsweredLaw(self.pick, self._chances[1:])


class _Picked(CounterRandomness):
    """The coins of a request, with draws that have been made."""

    def __init__(self, randomness: CounterRandomness) -> None:
        self.__dict__.update(randomness.__dict__)

    def draw(self, law: Any, position: int, purpose: Purpose, node: int = ROOT) -> int:
        """The pick of an `AnsweredLaw`."""
        return law.pick


def asks_of(verifier: Verifier, tree: TokenTree) -> Literal["draws", "trials"] | None:
    """What a rule asks of the target's laws: a draw of each, or trials of children too; None when it asks more."""
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
        return [_LARGEST] * (len(tree) + 1)
    depths = (0, *tree.depths)
    questions = []
    for node in range(ROOT_PARENT, len(tree)):
        key = randomness.key(position + depths[node + 1], "target", ROOT)
        trials = _trials(tree, node) if asks == "trials" else ()
        questions.append(question_about(warper, tree.tokens_to(node), key, trials))
    return questions


def question_about(warper: Warper, path: Sequence[int], key: int, trials: tuple[Trial, ...] = ()) -> Question:
    """The question about the warped law after `path`."""
    params = warper.params
    return Question(
        params.temperature, params.min_p, params.top_k, params.top_p, warper.edits(path), key, trials
    )  # fmt: skip


def verify_answered(
    verifier: Verifier, tree: TokenTree, answers: Sequence[Answer], randomness: CounterRandomness, position: int
) -> Verdict:
    """The verdict of `verifier` over the answers to `questions_about`; what it asks is in `asks_of`.

    Raises:
        InvalidParameter: a row that is asked for has no law, as `Warper.law` would.
    """

    def target(node: int) -> Law:
        answer = answers[node + 1]
        check_peak(answer.peak, answer.best)
        return cast(Law, AnsweredLaw(answer.pick, answer.chances))

    return verifier(tree, target, _Picked(randomness), position)


def _trials(tree: TokenTree, node: int) -> tuple[Trial, ...]:
    tried: tuple[int, ...] = ()
    trials = []
    for child in tree.children(node):
        law, _ = draft_law_of_trial(tree, child, tried)
        trials.append((tree.tokens[child], law))
        tried += (tree.tokens[child],)
    return tuple(trials)
