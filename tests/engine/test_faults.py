"""A fault stays with its request: what raises anywhere in a step ends or slows that request, and nobody else."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from paceline.engine.loop import verifying
from paceline.engine.loop.guarded_policy import GuardedPolicy
from paceline.engine.setup import build
from paceline.errors import DrafterWarning, EngineDead, InvalidParameter, PolicyWarning
from paceline.sampling import TokenTree, Warper
from paceline.speculation import DrafterTraits, LengthPolicy
from paceline.types import SamplingParams
from tests.engine.conftest import run_all
from tests.fakes import Babbler, no_drafter_fails

VICTIM = 2
EACH = [SamplingParams(temperature=t, seed=i, max_tokens=30, ignore_eos=True) for i, t in enumerate((0, 0.8, 0.8, 0))]
FIXED = {"method": "plain", "num_draft_tokens": 3, "policy": "fixed"}


class Broken(RuntimeError):
    """What the tests raise."""


class Unprintable(RuntimeError):
    """An error that cannot be shown."""

    def __repr__(self) -> str:
        raise Broken("repr")


class Faulty(Babbler):
    """Raises in one method for one request, or proposes for it what is no tree of this vocabulary."""

    def __init__(self, where: str, request_id: str = str(VICTIM)) -> None:
        self.where, self.request_id = where, request_id

    def propose(self, contexts):
        if self.where == "propose" and any(context.request_id == self.request_id for context in contexts):
            raise Broken("propose")
        if self.where == "unprintable" and any(context.request_id == self.request_id for context in contexts):
            raise Unprintable
        for token_ids in [context.token_ids for context in contexts if context.request_id == self.request_id]:
            if self.where == "writing":
                token_ids.extend([1, 2])
            if self.where == "emptying":
                token_ids.clear()
        trees = super().propose(contexts)
        if self.where == "no trees" and any(context.request_id == self.request_id for context in contexts):
            return []
        wrong = {
            "no tree": "tokens",
            "outside the vocabulary": TokenTree.chain([500]),
            "no whole numbers": TokenTree.chain([7.0, 8.0]),  # type: ignore[list-item]
        }.get(self.where)
        return [
            wrong if wrong is not None and context.request_id == self.request_id else tree
            for context, tree in zip(contexts, trees, strict=True)
        ]

    def observe(self, outcome) -> None:
        if outcome.request_id == self.request_id:
            if self.where == "observe":
                raise Broken("observe")
            if self.where == "writing while told":
                outcome.token_ids.append(3)
            if self.where == "taking while told":
                outcome.token_ids.pop()

    def release(self, request_id) -> None:
        if self.where == "release" and request_id == self.request_id:
            raise Broken("release")


class InArrays(Babbler):
    """Proposes trees whose parents and chances are arrays, as numpy makes them."""

    traits = DrafterTraits(deterministic=True, estimates=True)

    def propose(self, contexts):
        return [TokenTree((1, 2, 3), np.arange(-1, 2), chances=np.array([0.9, 0.5, 0.1])) for _ in contexts]


@pytest.mark.parametrize("policy", ["fixed", "goodput"])
def test_trees_in_arrays_are_trees(engine_for, plain_answers, policy):
    plain = [output.token_ids for output in plain_answers(params=EACH)]
    engine = engine_for(FIXED | {"policy": policy}, InArrays())
    assert [output.token_ids for output in run_all(engine, params=EACH)] == plain


def test_a_policy_behind_its_wall_asks_for_laws_and_beliefs_as_it_says():
    class Curious(LengthPolicy):
        asks_beliefs, asks_laws = True, True

    assert (GuardedPolicy(Curious()).asks_laws, GuardedPolicy(LengthPolicy()).asks_laws) == (True, False)
    assert (GuardedPolicy(Curious()).asks_beliefs, GuardedPolicy(LengthPolicy()).asks_beliefs) == (True, False)


def test_a_model_that_refuses_keys_nobody_wrote_is_priced_by_a_guess(engine_for, plain_answers, monkeypatch):
    def refuse(model, clock):
        raise AssertionError("nobody wrote these keys")

    plain = [output.token_ids for output in plain_answers(params=EACH)]
    monkeypatch.setattr(build, "quick_profile", refuse)
    engine = engine_for({"method": "ngram", "num_draft_tokens": 3})
    assert [output.token_ids for output in run_all(engine, params=EACH)] == plain


@pytest.mark.parametrize(
    "where",
    ["propose", "unprintable", "writing", "emptying", "no trees", "no tree", "outside the vocabulary",
     "no whole numbers", "observe", "writing while told", "taking while told", "release"],
)  # fmt: skip
def test_a_failing_drafter_changes_nobodys_text(engine_for, plain_answers, where):
    plain = [output.token_ids for output in plain_answers(params=EACH)]
    engine = engine_for(FIXED, Faulty(where))
    with pytest.warns(DrafterWarning, match="babbler|quiet") as caught:
        outputs = run_all(engine, params=EACH)
    assert [output.token_ids for output in outputs] == plain
    assert [output.finish_reason for output in outputs] == ["length"] * 4
    assert len(caught) == 1  # switched off, not asked again and again
    if where != "release":
        drafts = [output.stats.num_drafts for output in outputs]
        assert drafts[VICTIM] <= 1 and min(drafts[:VICTIM]) > 5
    engine.scheduler.check_integrity()


def test_a_drafter_is_told_how_many_trees_to_return(engine_for):
    with pytest.warns(DrafterWarning, match="propose returned 0 trees for 1 context; return one for each, in order"):
        run_all(engine_for(FIXED, Faulty("no trees")), params=EACH)


class Untimely(Babbler):
    """Chooses between ways to draft, and says of what they took what is no time."""

    traits = DrafterTraits(branches=True, chooses=True)

    def __init__(self, seconds) -> None:
        self._seconds = seconds

    @property
    def chosen_seconds(self):
        if self._seconds is Broken:
            raise Broken("chosen_seconds")
        return self._seconds


@pytest.mark.parametrize("seconds", [Broken, None, "long", float("nan"), float("inf"), -1.0])
def test_a_drafter_that_says_what_is_no_time_changes_nothing(engine_for, plain_answers, seconds):
    plain = [output.token_ids for output in plain_answers(params=EACH)]
    engine = engine_for(FIXED, Untimely(seconds))
    with pytest.warns(DrafterWarning, match="does not say what its drafts took") as caught:
        outputs = run_all(engine, params=EACH)
    assert [output.token_ids for output in outputs] == plain and len(caught) == 1
    assert min(output.stats.num_drafts for output in outputs) > 5
    assert np.isfinite(engine.prices.draft_level(0, 1))


class BadPolicy(LengthPolicy):
    """Drafts three tokens, and raises in one method once it was asked a few times, or answers nonsense."""

    def __init__(self, where):
        self.where, self.num_steps, self.num_after = where, 0, 0

    def budgets(self, requests, batch):
        self.num_steps += 1
        self.num_after += self.num_steps > 5
        wrong = {"too few": [3], "negative": [-1] * 4, "no whole numbers": [2.5] * 4}.get(self.where)
        if self.num_steps == 5 and (wrong or self.where == "budgets"):
            return wrong or self.fail()
        return [3] * len(requests)

    def keep_drafting(self, prefix, draft_laws):
        return self.fail() if self.num_steps == 5 and self.where == "keep_drafting" else True

    def observe(self, step):
        if self.num_steps == 5 and self.where == "observe":
            self.fail()

    def fail(self):
        raise Broken(self.where)


@pytest.mark.parametrize(
    "where",
    ["budgets", "too few", "negative", "no whole numbers", "keep_drafting", "observe"],
)
def test_a_failing_policy_changes_nobodys_text(engine_for, plain_answers, monkeypatch, where):
    plain = [output.token_ids for output in plain_answers(params=EACH)]
    policy = BadPolicy(where)
    monkeypatch.setattr(build, "make_policy", lambda *_: policy)
    engine = engine_for({"method": "draft_model", "model": "random-0", "rule": "coupled"})
    with pytest.warns(PolicyWarning, match="'BadPolicy' failed") as caught:
        outputs = run_all(engine, params=EACH)
    assert [output.token_ids for output in outputs] == plain
    assert len(caught) == 1 and policy.num_after == 0, "it is not asked again"
    assert 0 < max(output.stats.num_drafts for output in outputs) <= 5
    assert engine.scheduler.pool.num_held == 0


def test_a_policy_that_fails_where_warnings_are_errors_ends_nothing(engine_for, monkeypatch):
    monkeypatch.setattr(build, "make_policy", lambda *_: BadPolicy("budgets"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs = run_all(engine_for(FIXED, Babbler()), params=EACH)
    assert [output.finish_reason for output in outputs] == ["length"] * 4


def failing_law(monkeypatch, victim, after: int):
    """The warper of one request raises once it has said `after` tokens."""
    law = Warper.law

    def patched(self, logits, path=(), **known):
        if self.params.seed == victim and len(self._token_ids) - self._num_prompt_tokens >= after:
            raise Broken("law")
        return law(self, logits, path, **known)

    monkeypatch.setattr(Warper, "law", patched)


def failing_race(monkeypatch, victim, after: int):
    """A draw of one request without its law raises once it has said `after` tokens."""
    raced = verifying._Raced.__getitem__

    def patched(self, place):
        if self._live.state.params.seed == victim and len(self._live.said) >= after:
            raise Broken("law")
        return raced(self, place)

    monkeypatch.setattr(verifying._Raced, "__getitem__", patched)


@pytest.mark.parametrize(("fail", "limits"), [(failing_law, {"top_k": 90, "top_p": 0.99}), (failing_race, {})])
def test_an_error_in_a_law_ends_its_request_alone(engine_for, plain_answers, monkeypatch, fail, limits):
    each = [replace(own, **limits) for own in EACH]
    plain = [output.token_ids for output in plain_answers(params=each)]
    fail(monkeypatch, VICTIM, after=7)
    engine = engine_for(FIXED, Babbler())
    outputs = run_all(engine, params=each)
    for number, output in enumerate(outputs):
        if number == VICTIM:
            assert output.finish_reason == "error"
            assert "Broken: law" in output.outputs[0].error
            assert output.token_ids == plain[number][: len(output.token_ids)] and len(output.token_ids) >= 7
        else:
            assert (output.token_ids, output.finish_reason) == (plain[number], "length")
    assert engine.metrics.finished == {"length": 3, "error": 1}
    engine.scheduler.check_integrity()
    assert engine.scheduler.pool.num_held == 0


@pytest.mark.parametrize("stop", [(), ("never said",)])
def test_an_error_in_a_text_ends_its_request_alone(engine_for, plain_answers, monkeypatch, stop):
    from paceline.engine.text.stream import TextStream

    params = [SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, stop=stop if n == VICTIM else ())
              for n in range(4)]  # fmt: skip
    plain = [output.token_ids for output in plain_answers(params=params)]
    engine, pushed, victims = engine_for(FIXED, Babbler()), TextStream.push, []

    def push(self, token_id, may_stop=True):
        if self is engine._requests.get(str(VICTIM)).samples[0].text and len(self.text) > 5:
            victims.append(engine.state_of(str(VICTIM)))
            raise Broken("text")
        return pushed(self, token_id, may_stop)

    def lenient_push(self, token_id, may_stop=True):
        return push(self, token_id, may_stop) if str(VICTIM) in engine._requests else pushed(self, token_id, may_stop)

    monkeypatch.setattr(TextStream, "push", lenient_push)
    outputs = run_all(engine, params=params)
    assert outputs[VICTIM].finish_reason == "error" and "Broken: text" in outputs[VICTIM].outputs[0].error
    assert victims[0].finish_reason == "error" and engine.metrics.finished == {"length": 3, "error": 1}
    others = [n for n in range(4) if n != VICTIM]
    assert [outputs[n].token_ids for n in others] == [plain[n] for n in others]
    assert engine.scheduler.pool.num_held == 0


def test_logits_that_are_no_numbers_end_their_request_alone(engine_for, plain_answers, tiny, monkeypatch):
    plain = [output.token_ids for output in plain_answers(params=EACH)]
    engine = engine_for(max_num_batched_tokens=512)
    forward, calls = tiny.model.forward, []

    def damaged(rows, cache, taps=()):
        output = forward(rows, cache, taps)
        calls.append(len(output.logits))
        if len(calls) == 5:
            output.logits[VICTIM] = np.nan
        return output

    monkeypatch.setattr(tiny.model, "forward", damaged)
    outputs = run_all(engine, params=EACH)
    assert [output.finish_reason for output in outputs] == ["length", "length", "error", "length"]
    assert [o.token_ids for n, o in enumerate(outputs) if n != VICTIM] == [
        p for n, p in enumerate(plain) if n != VICTIM
    ]


def test_a_failed_pass_ends_its_requests_and_those_that_wait_go_on(engine_for, plain_answers, tiny, monkeypatch):
    plain = [output.token_ids for output in plain_answers(params=EACH)]
    engine = engine_for(max_num_seqs=2)
    forward, calls = tiny.model.forward, []

    def failing(rows, cache, taps=()):
        calls.append(1)
        if len(calls) == 4:
            raise Broken("pass")
        return forward(rows, cache, taps)

    monkeypatch.setattr(tiny.model, "forward", failing)
    outputs = run_all(engine, params=EACH)
    assert [output.finish_reason for output in outputs] == ["error", "error", "length", "length"]
    assert [output.token_ids for output in outputs[2:]] == plain[2:]
    assert all(output.token_ids == said[: len(output.token_ids)] for output, said in zip(outputs, plain, strict=True))
    engine.scheduler.check_integrity()


def test_requests_that_fail_one_after_the_other_end_nobody_else(engine_for, tiny, monkeypatch):
    """A poison prompt may come as often as it likes: the engine asks whether the model still works."""
    poison, good = "xyz", "abcabc"
    forward = tiny.model.forward

    def failing(rows, cache, taps=()):
        if ord("z") in rows.token_ids.tolist():
            raise Broken("poison")
        return forward(rows, cache, taps)

    engine = engine_for(max_num_seqs=1)
    monkeypatch.setattr(tiny.model, "forward", failing)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, bad_words=("z",))
    outputs = run_all(engine, [poison] * 5 + [good], params)
    assert [output.finish_reason for output in outputs] == ["error"] * 5 + ["length"]
    assert outputs[-1].token_ids == run_all(engine_for(), [good], params)[0].token_ids


def test_numpys_integers_are_taken_for_what_they_are(engine_for):
    class Numpy(Babbler):
        def propose(self, contexts):
            return [TokenTree.chain([np.int64(7)]) for _ in contexts]

    outputs = run_all(engine_for(FIXED, Numpy()), params=EACH)
    assert all(type(token) is int for output in outputs for token in output.token_ids)


@pytest.mark.parametrize("tap", [-2, 4, 99])
def test_hidden_states_that_there_are_not_are_refused_before_every_pass_fails(engine_for, tap):
    with pytest.raises(InvalidParameter, match="a model of 3 layers"):
        engine_for({"method": "tests.drafters.own_drafter:Deep", "options": {"tap": tap}})
    engine_for({"method": "tests.drafters.own_drafter:Deep", "options": {"tap": 3}})


def test_warnings_that_are_errors_end_no_engine(engine_for, plain_answers):
    plain = [output.token_ids for output in plain_answers(params=EACH)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs = run_all(engine_for(FIXED, Faulty("propose")), params=EACH)
    assert [output.token_ids for output in outputs] == plain


def test_an_engine_gives_up_when_no_pass_succeeds(engine_for, tiny, monkeypatch):
    def failing(rows, cache, taps=()):
        raise Broken("pass")

    monkeypatch.setattr(tiny.model, "forward", failing)
    with pytest.raises(EngineDead, match="Broken"):
        run_all(engine_for(max_num_seqs=1), params=EACH)


def test_a_healthy_drafter_is_not_warned_about(engine_for):
    with no_drafter_fails():
        run_all(engine_for({"method": "ngram"}), params=EACH)
    with pytest.raises(AssertionError), no_drafter_fails():
        run_all(engine_for(FIXED, Faulty("propose")), params=EACH)
