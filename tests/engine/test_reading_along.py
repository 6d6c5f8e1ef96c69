"""Drafters that compute texts: they do so while prompts are prefilled, where it pays, at a price of its own."""

import pytest

from paceline.drafters.base import BaseDrafter
from paceline.engine.loop.guarded_policy import GuardedPolicy
from paceline.errors import DrafterWarning, PolicyWarning
from paceline.evaluation.advise.rehearsal import Observer
from paceline.evaluation.audit.recorder import Recorder
from paceline.sampling import TokenTree
from paceline.speculation.policies import Around, Cascade, Fixed, Goodput, LengthPolicy, WhereFaster
from paceline.speculation.prices import FixedPrices, LearnedPass, LearnedPrices
from paceline.speculation.records import BatchStats, DraftStats
from paceline.speculation.traits import DrafterTraits
from paceline.training.online.recorded import Recorded
from paceline.training.online.ring import ServedRing
from paceline.training_jobs import draft_traces
from paceline.types import SamplingParams
from tests.engine.conftest import run_all
from tests.fakes import no_drafter_fails

DRAFT = {"method": "plain", "num_draft_tokens": 4, "policy": "fixed"}
PROMPTS = [[1 + i % 100 for i in range(70)], [3, 4, 5]]
PARAMS = SamplingParams(temperature=0, max_tokens=12)


class Reader(BaseDrafter):
    """Notes what it is asked to read, and proposes nothing."""

    traits = DrafterTraits(cost_ratio=0.1, reads=True)

    def __init__(self, refuses=None):
        self.read_so_far, self.refuses = [], refuses

    def read_along(self, context):
        if context.request_id == self.refuses:
            raise RuntimeError("no more")
        assert (context.num_prompt_tokens, context.budget) == (70, 0)
        assert list(context.token_ids) == PROMPTS[0][: len(context.token_ids)]
        self.read_so_far.append(len(context.token_ids))
        return len(context.token_ids)

    def propose(self, contexts):
        return [TokenTree()] * len(contexts)


def test_a_prompt_is_read_as_far_as_the_target_has_computed_it(engine_for):
    drafter = Reader()
    engine = engine_for(DRAFT, drafter, max_num_batched_tokens=16)
    [output] = run_all(engine, PROMPTS[:1], PARAMS)
    assert drafter.read_so_far == [16, 32, 48, 64]
    assert output.token_ids == run_all(engine_for(), PROMPTS[:1], PARAMS)[0].token_ids


def test_what_was_read_need_not_be_read_before_the_first_draft(engine_for):
    engine = engine_for(DRAFT, Reader(), max_num_batched_tokens=16)
    engine.add_request("r", PROMPTS[0], PARAMS)
    stats = engine.state_of("r").draft_stats
    unread = []
    while engine.state_of("r").num_output_tokens < 2:
        engine.step()
        unread.append(stats.num_unread)
    assert unread == [70, 54, 38, 22, 6, 7]


def test_seconds_of_reading_are_not_the_price_of_drafts(engine_for):
    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    clock, steps = Clock(), []

    class Slow(Reader):
        def read_along(self, context):
            clock.now += 5.0
            return super().read_along(context)

    engine = engine_for(DRAFT, Slow(), clock, max_num_batched_tokens=16)
    engine.prices.observe = steps.append
    run_all(engine, PROMPTS[:1], PARAMS)
    assert [(one.seconds.drafting, one.seconds.chosen) for one in steps[:6]] == [(0, 0), *[(5.0, 5.0)] * 4, (0, 0)]


def test_an_error_while_reading_switches_drafts_off_for_that_request(engine_for):
    drafter = Reader(refuses="0")
    engine = engine_for(DRAFT, drafter, max_num_batched_tokens=16)
    with pytest.warns(DrafterWarning, match=r"failed for request '0' and is switched off for it: .*no more"):
        outputs = run_all(engine, PROMPTS, PARAMS)
    assert [one.token_ids for one in outputs] == [one.token_ids for one in run_all(engine_for(), PROMPTS, PARAMS)]


class Refusing(LengthPolicy):
    def budgets(self, requests, batch):
        return [2] * len(requests)

    def reads_along(self, request, batch):
        raise RuntimeError("unsure")


def test_a_policy_decides_and_its_errors_are_confined(engine_for):
    request, batch = DraftStats(num_left=100, num_unread=500), BatchStats(3, 100)
    assert LengthPolicy().reads_along(request, batch) and Around(LengthPolicy()).reads_along(request, batch)
    guarded = GuardedPolicy(Refusing())
    with pytest.warns(PolicyWarning, match="unsure"):
        assert not guarded.reads_along(request, batch)
    assert not guarded.reads_along(request, batch)


@pytest.mark.parametrize(
    ("num_decodes", "a_row", "a_level", "a_token", "is_read"),
    [
        (0, 0.01, 0.1, 1e-3, True),
        (0, 0.01, 5.0, 1e-3, False),
        (0, 0.01, 0.1, 1.0, False),
        (60, 1.0, 0.1, 1e-3, False),
    ],
    ids=["cheap", "dear drafts", "dear to read", "busy"],
)
def test_goodput_reads_where_the_request_would_draft(num_decodes, a_row, a_level, a_token, is_read):
    prices = FixedPrices(
        lambda rows, _context: 1 + a_row * rows, lambda _requests, _context: a_level, lambda tokens: a_token * tokens
    )
    policy = Goodput(prices)
    request = DraftStats(num_left=100, num_unread=500)
    assert policy.reads_along(request, BatchStats(num_decodes, 100)) == is_read


def test_a_drafter_that_reads_nothing_is_not_asked(engine_for):
    class Plain(BaseDrafter):
        def propose(self, contexts):
            return [TokenTree()] * len(contexts)

    engine = engine_for(DRAFT, Plain(), max_num_batched_tokens=16)
    with no_drafter_fails():
        assert run_all(engine, PROMPTS, PARAMS)[0].token_ids


@pytest.mark.parametrize(("max_tokens", "reads"), [(1, False), (2, False), (3, True)])
def test_nothing_is_read_for_a_request_that_cannot_draft(engine_for, max_tokens, reads):
    """With two tokens left, the first comes from the prompt and the last from the target."""
    drafter = Reader()
    run_all(engine_for(DRAFT, drafter, max_num_batched_tokens=16), PROMPTS[:1], SamplingParams(max_tokens=max_tokens))
    assert bool(drafter.read_so_far) == reads


def test_policies_that_draft_nothing_now_have_nothing_read():
    request, batch = DraftStats(num_left=100, num_unread=500), BatchStats(3, 100)
    assert Fixed(2).reads_along(request, batch) and not Fixed(0).reads_along(request, batch)
    assert not Goodput(FixedPrices(lambda rows, _context: 1.0), num_draft_tokens=0).reads_along(request, batch)
    cascade = Cascade()
    assert cascade.reads_along(request, batch) == (cascade.length > 0)
    faster = WhereFaster(Goodput(FixedPrices(lambda rows, _context: 1.0)), LearnedPrices(LearnedPass(lambda *_: 1.0)))
    assert faster.reads_along(request, batch)
    faster._way(4).drafts = False
    assert not faster.reads_along(request, batch)


class Noting(BaseDrafter):
    def __init__(self):
        self.contexts = []

    def read_along(self, context):
        self.contexts.append(context)
        return 7


WRAPPERS = {
    "audit": lambda inner, _: Recorder(inner),
    "advise": lambda inner, _: Observer(inner, lambda: 0.0),
    "traces": lambda inner, _: draft_traces._Recorder(inner),
    "online": lambda inner, path: Recorded(inner, ServedRing(path, (0,))),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_wrapper_reads_what_the_wrapped_drafter_reads(wrap, tmp_path):
    reader, context = Noting(), object()
    assert wrap(reader, tmp_path / "kept").read_along(context) == 7 and reader.contexts == [context]
    assert wrap(BaseDrafter(), tmp_path / "none").read_along(context) == 0
