"""Acceptance by replay: what a drafter would have drafted for a text that is there already, and what would have stood.

Lookups are asked for real, round after round, on the text so far: a chosen draft stands exactly where it is the text,
greedy or sampled, so the rounds are those of a real run with a fixed length. A draft model reads the text once: greedy
drafts stand while its own choice is the text; a drawn draft stands, given the text, with min(1, q(x)/p(x)), and the
expected rounds follow by dynamic programming over the text. Not for drafters with state inside a round (trees, heads).
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.drafters.base import DraftContext, Drafter
from paceline.engine.score import Scores
from paceline.errors import InvalidParameter
from paceline.sampling import CounterRandomness, Law
from paceline.speculation import RequestOutcome
from paceline.speculation.outcome import followed
from paceline.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Text:
    """One answer of a log.

    Attributes:
        prompt: token ids.
        output: token ids, the first of which the prefill brings.
        is_cut: it ended by its length, so that an engine would have drafted no further.
        family: of its prompt.
    """

    prompt: tuple[int, ...]
    output: tuple[int, ...]
    is_cut: bool = True
    family: str = "all"

    @property
    def num_decoded(self) -> int:
        """Tokens after the first."""
        return max(0, len(self.output) - 1)

    @property
    def mean_context(self) -> float:
        """Tokens in the cache before a decoded row, on average."""
        return len(self.prompt) + self.num_decoded / 2


@dataclass(slots=True)
class Rounds:
    """What a drafter would have made of one text.

    Attributes:
        tokens: decoded, that is after the first.
        sizes: drafted tokens of a round to how many rounds had so many (expected, where drafts are drawn).
        tested, accepted: by place in the draft.
        draft_seconds: that proposals took, where they were really made.
    """

    tokens: int
    sizes: dict[int, float] = field(default_factory=dict)
    tested: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    draft_seconds: float = 0.0

    @property
    def count(self) -> float:
        """Rounds, that is target passes after the first token."""
        return sum(self.sizes.values())

    def add(self, size: int, kept: int, is_refused: bool, weight: float = 1.0) -> None:
        """A round with `size` drafted tokens of which `kept` stood, and whether the next one was refused."""
        self.sizes[size] = self.sizes.get(size, 0.0) + weight
        missing = max(kept + is_refused, len(self.tested)) - len(self.tested)
        self.tested += [0.0] * missing
        self.accepted += [0.0] * missing
        for level in range(kept + is_refused):
            self.tested[level] += weight
            self.accepted[level] += weight * (level < kept)


def replay_lookup(
    drafter: Drafter, texts: Sequence[Text], most: int, clock: Callable[[], float] = time.perf_counter
) -> list[Rounds]:
    """The rounds of every text, in order: a drafter that remembers knows the answers before it.

    Args:
        drafter: fresh; makes its proposals from text alone.
        most: tokens of a draft.
        clock: seconds.
    """
    return [_walk(drafter, f"text-{number}", text, most, clock) for number, text in enumerate(texts)]


def _walk(drafter: Drafter, name: str, text: Text, most: int, clock: Callable[[], float]) -> Rounds:
    whole = [*text.prompt, *text.output]
    said, end = len(text.prompt) + 1, len(text.prompt) + len(text.output)
    rounds, params = Rounds(text.num_decoded), SamplingParams(temperature=0)
    drafter.observe(RequestOutcome(name, whole[:said], 1, num_prefill_tokens=len(text.prompt), finished=said == end))
    is_drafting = False
    while said < end:
        depth = min(most, end - said - 1) if text.is_cut else most
        tree, seconds = None, 0.0
        if depth > 0:
            context = DraftContext(
                name, whole[:said], len(text.prompt), most, params, _no_law, CounterRandomness(0), max_depth=depth
            )
            began = clock()
            [tree] = drafter.propose([context])
            seconds = clock() - began
            tree = tree.prune(most)
        tokens, parents = (tree.tokens, tree.parents) if tree is not None else ((), ())
        kept, goes_on = followed(tokens, parents, whole[said:end])
        said = min(end, said + kept + 1)
        rounds.add(len(tokens), kept, goes_on)
        rounds.draft_seconds += seconds
        drafter.observe(
            RequestOutcome(
                name, whole[:said], min(kept + 1, end), num_draft_tokens=len(tokens),
                depth=max(tree.depths, default=0) if tree is not None else 0, tokens=tokens, parents=parents,
                num_accepted=kept, num_refused=int(goes_on), level_refused=goes_on, asked=depth > 0,
                in_a_row=is_drafting, finished=said == end,
            )
        )  # fmt: skip
        is_drafting = bool(tokens)
    drafter.release(name)
    return rounds


def standing(target: Scores, draft: Scores, is_greedy: bool) -> np.ndarray:
    """[n] the chance that a drafted token stands at each place of a text, given the text.

    Args:
        target, draft: scores of the same tokens under the request's settings.
        is_greedy: drafts are the draft model's own choice, and so is the text the target's.
    """
    if is_greedy:
        return (draft.ranks == 0).astype(np.float64)
    with np.errstate(over="ignore"):
        return np.minimum(1.0, np.exp(draft.logprobs - target.logprobs))


def replay_chain(stands: np.ndarray, most: int, is_cut: bool = True) -> Rounds:
    """The expected rounds of one text when chains of `most` tokens are drafted at every round.

    Args:
        stands: [tokens after the first] as `standing` gives them, the first token's left out.
        most: tokens of a draft.
        is_cut: as in `Text`.

    With R(j) rounds expected after j decoded tokens, reached with chance w(j): w(j + a + 1) += w(j) P(a stand at j).
    """
    if most < 1:
        raise InvalidParameter("num_draft_tokens", f"{most} is less than 1", "draft at least one token")
    count = len(stands)
    rounds, reached = Rounds(count), np.zeros(count + 1)
    reached[0] = 1.0 if count else 0.0
    for place in range(count):
        weight = float(reached[place])
        if weight == 0.0:
            continue
        size = min(most, count - place - 1) if is_cut else most
        survival = weight
        for kept in range(min(size, count - place) + 1):
            at = place + kept
            is_last = kept == size or at >= count
            chance = survival if is_last else survival * (1.0 - float(stands[at]))
            if chance > 0:
                reached[min(count, at + 1)] += chance
                rounds.add(size, kept, not is_last, chance)
            if is_last:
                break
            survival *= float(stands[at])
    return rounds


def acceptance_by_place(rounds: Sequence[Rounds]) -> list[float]:
    """Share accepted of what was tested at each place of the draft, over all texts."""
    tested: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for one in rounds:
        tested.update(dict(enumerate(one.tested)))  # type: ignore[arg-type]
        accepted.update(dict(enumerate(one.accepted)))  # type: ignore[arg-type]
    return [accepted[level] / tested[level] for level in sorted(tested) if tested[level]]


def _no_law(_logits: np.ndarray, _path: Sequence[int]) -> Law:
    raise InvalidParameter("draft", "this drafter asks for laws, and a replay has none", "use a lookup")
