"""Verify one request's draft with the outputs of its pass. Not for rules (`sampling/`) or passes (`target_pass.py`)."""

from paceline.engine.loop.inputs import settle
from paceline.engine.loop.live import LiveSample
from paceline.engine.loop.target_pass import PassOutput
from paceline.models.base import KVCache
from paceline.sampling import TokenTree, Verdict
from paceline.sampling.answered import Answer, Question, asks_of, verify_answered
from paceline.sampling.law import Law
from paceline.sampling.randomness import CounterRandomness
from paceline.scheduling.batch import Grant, StepResult


def result_of(
    grant: Grant, live: LiveSample, tree: TokenTree, scores: PassOutput, cache: KVCache, *, watches: bool, is_own: bool
) -> StepResult:  # fmt: skip
    """The result of one grant; keys and values of the accepted path are moved to the slots of its positions.

    Args:
        tree: the draft.
        watches: the drafter needs the target's most probable token at every node (`DrafterTraits`).
        is_own: the draft came from the request itself (`StepResult`).
    """
    result = StepResult(grant.request.request_id, grant.num_prefill_tokens, taps=scores.taps or None)
    if not scores.says_something:
        return result
    if scores.logits is not None:
        rows = live.scores.read_prompt(grant, scores.logits)
        scores = scores if rows is scores.logits else scores._replace(logits=rows, peaks=None)
    if not grant.needs_logits:
        return result
    verdict = verdict_of(live, tree, scores)
    if scores.logits is not None:
        live.scores.read(tree, verdict, scores.logits)
    if verdict.path:
        settle(cache, grant, verdict)
    result.token_ids = (*[tree.tokens[node] for node in verdict.path], verdict.token)
    if scores.taps and grant.is_decode:
        nodes = [0, *(node + 1 for node in verdict.path)]
        kept = slice(len(nodes)) if nodes[-1] == len(nodes) - 1 else nodes  # of a chain nothing is copied
        result.taps = {tap: states[kept] for tap, states in scores.taps.items()}
    if len(tree):
        result.num_draft_tokens, result.depth = len(tree), tree.depth
        result.tokens, result.parents = tree.tokens, tree.parents
        result.promised = sum(tree.chances or ())
        result.level_rejected, result.num_rejected = verdict.kind == "recovered", verdict.num_rejected
        result.is_own = is_own
        if watches:
            result.picks = scores.picks()
    return result


def verdict_of(live: LiveSample, tree: TokenTree, scores: PassOutput) -> Verdict:
    """The verdict of the request's verification rule on `tree`, given the outputs of the pass."""
    judge, position = live.judge, live.state.num_tokens
    if scores.answers is not None:
        assert isinstance(judge.randomness, CounterRandomness)
        return verify_answered(judge.verify, tree, scores.answers, judge.randomness, position)
    if _can_race(live, tree, scores):
        assert isinstance(judge.randomness, CounterRandomness)
        return verify_answered(judge.verify, tree, _Raced(live, tree, scores), judge.randomness, position)
    rows, peaks = scores.logits, scores.peaks
    assert rows is not None

    def law(node: int) -> Law:
        return live.warper.law(rows[node + 1], tree.tokens_to(node), best=-1 if peaks is None else peaks[node + 1])

    return judge.verdict(tree, law, position)


def _can_race(live: LiveSample, tree: TokenTree, scores: PassOutput) -> bool:
    """Whether the rule reads nothing but draws from laws at a temperature, and all logits are finite."""
    if scores.race is None or scores.peaks is None or live.state.params.is_greedy:
        return False
    asks = asks_of(live.judge.verify, tree)  # where nothing is drafted, every exact rule draws
    return min(scores.peaks) >= 0 and (asks == "draws" or (asks == "trials" and not len(tree)))


class _Raced:
    """Answers about the rows of a pass, each drawn when the rule reads it."""

    def __init__(self, live: LiveSample, tree: TokenTree, scores: PassOutput) -> None:
        self._live, self._tree, self._scores = live, tree, scores

    def __getitem__(self, place: int) -> Answer:
        live, rows, peaks, race = self._live, self._scores.logits, self._scores.peaks, self._scores.race
        assert rows is not None and peaks is not None and race is not None
        row, argmax, path = rows[place], peaks[place], self._tree.tokens_to(place - 1)
        logits, best = live.warper.scores(row, path, argmax)
        position, noise = live.state.num_tokens + len(path), live.judge.randomness
        assert isinstance(noise, CounterRandomness)
        params, key = live.state.params, noise.target_key(position)
        pick = race(logits, best, Question(params.temperature, params.min_p, params.top_k, params.top_p, None, key))
        if pick is None:
            pick = noise.draw(live.warper.law(row, path, best=argmax), position, "target")
        return Answer(pick, (), float(logits[best]), best, argmax)
