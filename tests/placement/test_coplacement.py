"""Where drafters live: costs by hand, a case that each place wins, and what is refused."""

import pytest

from paceline.cli.terminal.plans import drafts_record, plan_record
from paceline.errors import InvalidParameter
from paceline.placement import Case, Cluster, Evaluator, ModelProfile, ParallelConfig, PlacedModel, Placement, Stages
from paceline.placement.arrivals import draw_for_models
from paceline.placement.case_file import case_from
from paceline.placement.coplacement import coplan, resolve
from paceline.placement.drafting import Drafting, request_profile
from paceline.serving.cluster.plan import plan_of
from paceline.theory.queueing import pipeline_latency, simple_latency

ONE, TWO = ParallelConfig(1, 1), ParallelConfig(1, 2)
TARGET = ModelProfile("target", {ONE: Stages((0.03,), (10.0,)), TWO: Stages((0.015, 0.02), (4.0, 6.0))})
DRAFTER = ModelProfile("drafter", {ONE: Stages((0.005,), (2.0,))})
GOOD = Drafting("drafter", output_tokens=168.08, acceptance_rate=0.8, num_draft_tokens=4)
"""3.3616 tokens per pass: 50 passes, each 0.02 s of drafting and 0.03 s of verifying."""


def test_seconds_and_bytes_by_hand():
    assert GOOD.passes == pytest.approx(50)
    plain = request_profile("p", TARGET, DRAFTER, GOOD, "plain")
    assert plain.stages(ONE).latency == pytest.approx((168.08 * 0.03,))
    together = request_profile("t", TARGET, DRAFTER, GOOD, "together")
    assert together.stages(ONE).latency == pytest.approx((50 * (0.02 + 0.03),))
    assert together.stages(ONE).weight_mem == (12.0,)
    assert together.stages(TWO).latency == pytest.approx((50 * (0.02 + 0.015), 50 * 0.02))
    assert together.stages(TWO).weight_mem == (6.0, 6.0)
    apart = request_profile("a", TARGET, DRAFTER, GOOD, "apart")
    assert apart.stages(TWO).latency == pytest.approx((50 * 0.02, 50 * 0.03))
    assert apart.stages(TWO).weight_mem == (2.0, 10.0)
    assert ParallelConfig(1, 3) in apart.entries and ONE not in apart.entries


def test_verify_ratio_and_hand_over_cost_their_stage():
    dear = Drafting("drafter", 168.08, 0.8, 4, verify_ratio=1.5, hand_over=0.01)
    apart = request_profile("a", TARGET, DRAFTER, dear, "apart").stages(TWO)
    assert apart.latency == pytest.approx((50 * (0.02 + 0.01), 50 * 0.045))
    together = request_profile("t", TARGET, DRAFTER, dear, "together").stages(ONE)
    assert together.latency == pytest.approx((50 * (0.02 + 0.045),))


def case_of(num_devices, mem, drafting=GOOD, slo=1e9, num_models=1, rate=0.1, profile=TARGET, duration=2000.0) -> Case:
    models = tuple(PlacedModel(f"m{i}", "target", rate, 1.0, slo) for i in range(num_models))
    profiles = {"target": profile, "drafter": DRAFTER}
    drafts = dict.fromkeys(range(num_models), drafting)
    return Case("co", Cluster(num_devices, mem), models, profiles, draw_for_models(models, duration), drafts)


WHOLE = ModelProfile("target", {ONE: Stages((0.03,), (10.0,))})


def test_a_poor_drafter_is_left_out():
    """1.111 tokens per pass: 151.3 passes of 0.05 s against 168.08 of 0.03 s."""
    poor = Drafting("drafter", 168.08, acceptance_rate=0.1, num_draft_tokens=4)
    assert coplan(case_of(2, 100.0, poor, profile=WHOLE)).places == {0: "plain"}


def test_a_good_drafter_joins_its_target_where_there_is_one_device():
    """2.5 s against 5.04 s plain; a second device is not there."""
    found = coplan(case_of(1, 12.0, slo=4.0, profile=WHOLE))
    assert found.places == {0: "together"}
    assert found.plan.placement.to_lists() == [[1, 1, [0]]]


def test_a_drafter_gets_a_device_of_its_own_where_memory_is_short():
    """The target fills its device; plain misses the deadline, and together needs 12 bytes of 11."""
    found = coplan(case_of(2, 11.0, slo=4.0, profile=WHOLE))
    assert found.places == {0: "apart"}
    assert found.plan.placement.to_lists() == [[1, 2, [0]]]
    assert [reached for _, reached in found.tried[:2]] == [None, None]


def test_two_targets_share_a_draft_device_where_bursts_fill_the_other():
    """Two targets fit one device and two drafters the other, or a target and its drafter each: section 3.4 of AlpaServe
    says which. A pass of 2.5 s with 1.5 s as its slowest stage (beta = 1.2) wins up to load 1.16 or so."""
    seconds, slowest, rate = 50 * 0.05, 50 * 0.03, 0.1
    load = 2 * rate * seconds
    assert pipeline_latency(load, 1.0, slowest / seconds) < simple_latency(load, 1.0)
    pair = case_of(2, 21.0, num_models=2, rate=rate, profile=WHOLE, duration=40_000.0)
    apart = Evaluator(resolve(pair, dict.fromkeys(range(2), "apart"))).score(Placement.from_lists([[1, 2, [0, 1]]]))
    together = resolve(pair, dict.fromkeys(range(2), "together"))
    each = Evaluator(together).score(Placement.from_lists([[1, 1, [0]], [1, 1, [1]]]))
    assert apart.mean_latency_served == pytest.approx(pipeline_latency(2 * rate, seconds, slowest), rel=0.04)
    assert each.mean_latency_served == pytest.approx(simple_latency(2 * rate, seconds), rel=0.04)
    assert apart.mean_latency_served < each.mean_latency_served
    assert coplan(case_of(2, 21.0, num_models=2, rate=rate, profile=WHOLE)).places == {0: "apart", 1: "apart"}


def test_many_kinds_change_one_at_a_time():
    """Four kinds, 81 combinations: far fewer are tried, and each kind still gets its own place."""
    case = case_of(4, 13.0, num_models=4, profile=WHOLE, rate=0.02, duration=300.0)
    drafts = {m: Drafting("drafter", 100.0 + m, acceptance_rate=0.9 if m % 2 else 0.0) for m in range(4)}
    found = coplan(Case(case.name, case.cluster, case.models, case.profiles, case.workload, drafts), "sr-greedy")
    assert found.places == {0: "plain", 1: "together", 2: "plain", 3: "together"}
    assert len(found.tried) <= 15


def test_a_case_without_drafters_is_planned_as_it_is():
    case = case_of(2, 100.0, profile=WHOLE)
    plain = Case(case.name, case.cluster, case.models, case.profiles, case.workload)
    found = coplan(plain)
    assert found.places == {} and len(found.tried) == 1


def test_undecided_drafters_are_not_simulated():
    with pytest.raises(InvalidParameter, match="m0"):
        Evaluator(case_of(1, 12.0))


@pytest.mark.parametrize("places", [{}, {0: "together", 1: "plain"}, {0: "nowhere"}])
def test_places_must_match(places):
    case = case_of(1, 12.0, num_models=2)
    with pytest.raises(InvalidParameter):
        resolve(Case("c", case.cluster, case.models, case.profiles, case.workload, {0: GOOD}), places)


def test_no_place_serves_a_model_too_slow_for_its_deadline():
    with pytest.raises(InvalidParameter, match="slo"):
        coplan(case_of(2, 30.0, slo=0.5))


FIELDS = {
    "num_devices": 1,
    "mem_budget": 12.0,
    "duration": 100,
    "profiles": {
        "target": [{"latency": [0.03], "weight_mem": [10]}],
        "drafter": [{"latency": [0.005], "weight_mem": [2]}],
    },
}


def read(draft, tmp_path):
    model = {"type": "target", "rate": 1, "draft": draft}
    return case_from(FIELDS | {"models": [model]}, tmp_path, "case")


def test_a_case_file_has_drafts(tmp_path):
    draft = {"type": "drafter", "output_tokens": 100, "acceptance_rate": 0.7}
    assert read(draft, tmp_path).drafts == {0: Drafting("drafter", 100.0, 0.7)}
    assert read(draft | {"num_draft_tokens": 2, "hand_over": 0.1}, tmp_path).drafts[0].num_draft_tokens == 2


def test_the_place_of_a_drafter_configures_its_targets_engine(tmp_path):
    draft = {"type": "drafter", "output_tokens": 100, "acceptance_rate": 0.7, "path": "small.gguf"}
    drafted = {"method": "draft_model", "model": "small.gguf", "num_draft_tokens": 4}
    for change, place, wanted in (
        ({}, "together", drafted),
        ({"num_draft_tokens": 2}, "together", drafted | {"num_draft_tokens": 2}),
        ({"acceptance_rate": 0.0}, "plain", "none"),
    ):
        found = coplan(read(draft | change, tmp_path))
        assert found.places == {0: place}
        record = plan_record(found.case, found.plan) | drafts_record(found)
        (spec,) = plan_of(record).models
        assert spec.speculative == wanted


def test_a_head_of_the_case_goes_before_the_drafters_weights(tmp_path):
    draft = {"type": "drafter", "output_tokens": 100, "acceptance_rate": 0.7, "path": "small.gguf"}
    head = {"method": "eagle", "options": {"head": "folder"}}
    model = {"type": "target", "rate": 1, "draft": draft, "speculative": head}
    found = coplan(case_from(FIELDS | {"models": [model]}, tmp_path, "case"))
    assert found.places == {0: "together"} and found.case.models[0].speculative == head


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"type": "other"}, "draft.type"), ({"acceptance_rate": 1.5}, "draft.acceptance_rate"),
        ({"output_tokens": 0}, "draft.output_tokens"), ({"num_draft_tokens": 0}, "draft.num_draft_tokens"),
        ({"num_draft_tokens": 1.5}, "models[0].draft.num_draft_tokens"), ({"verify_ratio": 0.5}, "draft.verify_ratio"),
        ({"hand_over": -1}, "draft.hand_over"), ({"speed": 2}, "models[0].draft"),
        ({"output_tokens": None}, "models[0].draft.output_tokens"),
    ],
)  # fmt: skip
def test_bad_drafts_are_named(tmp_path, change, field):
    with pytest.raises(InvalidParameter) as caught:
        read({"type": "drafter", "output_tokens": 100, "acceptance_rate": 0.7} | change, tmp_path)
    assert caught.value.field == field
