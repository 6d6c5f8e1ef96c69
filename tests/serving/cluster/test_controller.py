"""The controller's rules on a virtual clock: against the simulator, and under whatever may happen."""

import contextlib
import heapq
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import InvalidParameter, RequestRejected
from paceline.placement import Case, Placement
from paceline.placement.cluster import Cluster
from paceline.placement.model import PlacedModel
from paceline.placement.profile import ModelProfile, ParallelConfig, Stages
from paceline.placement.simulator import ControllerRules, Evaluator
from paceline.placement.workload import Workload
from paceline.serving.cluster.controller import Controller, Health
from paceline.serving.cluster.group_queue import GroupQueue

INFINITE = float("inf")
STAGES = {(1, 1): (0.125,), (1, 2): (0.0625, 0.09375), (1, 3): (0.03125, 0.0625, 0.046875)}


def queue_of(seconds=0.5, models=("a",)):
    return GroupQueue({model: (seconds,) for model in models})


def replay(case, placement, overhead):
    """Requests through a controller whose groups take exactly the profiled time; the group of each, -1 for none."""
    queues = []
    for group in placement.groups:
        stages = STAGES[group.parallel.tensor, group.parallel.pipeline]
        queues.append(
            GroupQueue({case.models[m].name: stages for m in group.models}, group.parallel.pipeline, overhead)
        )
    controller = Controller(queues, {model.name: model.slo for model in case.models})
    routes, ends = [], []
    for number, (now, model) in enumerate(zip(case.workload.times, case.workload.models, strict=True)):
        while ends and ends[0][0] <= now:
            end, _, request = heapq.heappop(ends)
            group = controller.group_of(request)
            controller.finish(request, end)
            controller.start(group, end)
        name = case.models[model].name
        try:
            group = controller.submit(str(number), name, float(now))
        except RequestRejected:
            routes.append(-1)
            continue
        routes.append(group)
        heapq.heappush(ends, (queues[group].free_at(float(now)), number, str(number)))
        controller.start(group, float(now))
    return np.array(routes)


@pytest.mark.parametrize("seed", range(6))
def test_routes_and_rejections_are_those_of_the_simulator(seed):
    rng = np.random.default_rng(seed)
    times = np.round(np.cumsum(rng.exponential(0.02, 600)) * 1024) / 1024
    profile = ModelProfile("t", {ParallelConfig(*c): Stages(s, (1.0,) * len(s)) for c, s in STAGES.items()})
    models = tuple(PlacedModel(f"m{i}", "t", slo=float(rng.choice([0.3125, 0.625, 1.25]))) for i in range(4))
    workload = Workload(times, rng.integers(0, 4, len(times)))
    case = Case("x", Cluster(16, 100.0), models, {"t": profile}, workload)
    placement = Placement.from_lists([[1, 1, [0, 1]], [1, 2, [1, 2, 3]], [1, 1, [0, 3]], [1, 3, [2, 3]]])
    rules = ControllerRules(overhead=0.015625, stage_overhead=0.0)
    result = Evaluator(case, rules=rules).simulate(placement, keep_latencies=True)
    routes = replay(case, placement, rules.overhead)
    assert 0.05 < (routes < 0).mean() < 0.95
    assert result.routes is not None
    np.testing.assert_array_equal(routes, result.routes)


def test_a_request_joins_the_shortest_queue_and_the_lowest_group_on_ties():
    controller = Controller([queue_of(), queue_of()], {"a": INFINITE})
    assert [controller.submit(str(i), "a", 0.0) for i in range(4)] == [0, 1, 0, 1]


def test_a_request_that_would_be_late_is_turned_away_and_leaves_no_trace():
    controller = Controller([queue_of(0.5)], {"a": 0.8})
    controller.submit("first", "a", 0.0)
    with pytest.raises(RequestRejected, match=r"would take 1\.000 s.*deadline is 0\.800") as rejection:
        controller.submit("second", "a", 0.0)
    assert rejection.value.seconds_late == pytest.approx(0.2)
    assert len(controller.queues[0]) == controller.num_open == 1
    controller.submit("patient", "a", 0.0, slo=2.0)


def test_a_group_whose_speed_is_unknown_learns_it():
    learning = GroupQueue({"a": None})
    controller = Controller([learning], {"a": 1.0})
    controller.submit("0", "a", 0.0)
    controller.start(0, 0.0)
    controller.finish("0", 0.75)
    assert learning.seconds("a") == pytest.approx([0.75])
    controller.submit("1", "a", 1.0)
    with pytest.raises(RequestRejected):
        controller.submit("2", "a", 1.0)
    controller.submit("half", "a", 1.0, size=0.25)


def test_what_takes_longer_than_predicted_delays_those_behind_it():
    controller = Controller([queue_of(0.5)], {"a": 1.0})
    controller.submit("slow", "a", 0.0)
    controller.start(0, 0.0)
    assert controller.queues[0].finish_at("a", 1.0, 0.25) == pytest.approx(1.0)
    assert controller.queues[0].finish_at("a", 1.0, 3.0) == pytest.approx(3.5)


def test_a_dead_groups_requests_move_in_order_and_late_ones_are_kept():
    controller = Controller([queue_of(), queue_of()], {"a": 1.1})
    for name in ("0", "1", "2", "3"):
        controller.submit(name, "a", 0.0)
    controller.start(0, 0.0)
    controller.start(1, 0.0)
    moves = controller.group_died(0, 0.25, back_at=9.0)
    assert [(ticket.request_id, group) for ticket, group in moves.moved] == [("0", 1), ("2", 1)]
    assert not moves.lost
    assert controller.start(0, 0.25) == []
    controller.finish("1", 0.5)
    assert [ticket.request_id for ticket in controller.start(1, 0.5)] == ["3"]


def test_requests_wait_for_the_only_group_and_are_lost_with_it():
    controller = Controller([queue_of()], {"a": 5.0})
    controller.submit("0", "a", 0.0)
    controller.start(0, 0.0)
    assert [group for _, group in controller.group_died(0, 1.0, back_at=4.0).moved] == [0]
    assert controller.submit("1", "a", 1.0) == 0
    with pytest.raises(RequestRejected, match=r"4\.500 s"):
        controller.submit("2", "a", 1.0, slo=4.0)
    controller.group_ready(0, 3.0)
    assert [ticket.request_id for ticket in controller.start(0, 3.0)] == ["0"]
    assert [ticket.request_id for ticket in controller.group_died(0, 3.0, back_at=None).lost] == ["0", "1"]
    assert controller.num_open == 0
    with pytest.raises(RequestRejected, match="no group") as rejection:
        controller.submit("3", "a", 3.0)
    assert rejection.value.seconds_late is None


@pytest.mark.parametrize(
    ("change", "field"),
    [({"model": "b"}, "model"), ({"slo": 0.0}, "slo"), ({"size": -1.0}, "size"), ({"request_id": "0"}, "request_id")],
)
def test_what_cannot_be_used_is_refused(change, field):
    controller = Controller([queue_of()], {"a": 5.0})
    controller.submit("0", "a", 0.0)
    with pytest.raises(InvalidParameter) as refusal:
        controller.submit(**({"request_id": "1", "model": "a", "now": 0.0} | change))
    assert refusal.value.field == field


KINDS = ["submit", "submit", "submit", "finish", "cancel", "die", "lose", "ready"]
ACTIONS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 99)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(ACTIONS, st.integers(1, 3))
def test_every_accepted_request_ends_exactly_once_and_groups_serve_in_order(actions, num_stages):
    """Whatever happens: requests, answers, clients that leave, groups that die, return, or do not."""
    times = dict.fromkeys("ab", (0.5 / num_stages,) * num_stages)
    models = ["a", "ab", "b"]
    queues = [GroupQueue({m: times[m] for m in held}, num_stages) for held in models]
    controller = Controller(queues, {"a": 2.0, "b": INFINITE})
    ends, joined, running = {}, [[] for _ in queues], {}
    numbers, now = itertools.count(), 0.0

    def end(request, how):
        assert request not in ends
        ends[request] = how
        running.pop(request, None)
        for queue in joined:
            if request in queue:
                queue.remove(request)

    def give_turns():
        for group, queue in enumerate(joined):
            for ticket in controller.start(group, now):
                waiting = [request for request in queue if request not in running]
                assert ticket.request_id == waiting[0]
                assert ticket.model in models[group]
                running[ticket.request_id] = group
            assert sum(g == group for g in running.values()) <= num_stages

    for action, pick in actions:
        now += 0.1
        group = pick % len(queues)
        if action == "submit":
            request = str(next(numbers))
            with contextlib.suppress(RequestRejected):
                joined[controller.submit(request, "ab"[pick % 2], now)].append(request)
        elif action == "finish" and running:
            request = sorted(running)[pick % len(running)]
            controller.finish(request, now)
            end(request, "served")
        elif action == "cancel" and any(joined):
            open_now = [request for queue in joined for request in queue]
            request = open_now[pick % len(open_now)]
            controller.cancel(request)
            end(request, "cancelled")
        elif action in ("die", "lose") and controller.health[group] is not Health.LOST:
            moves = controller.group_died(group, now, now + 1 if action == "die" else None)
            for request in list(joined[group]):
                running.pop(request, None)
            joined[group].clear()
            for ticket, target in moves.moved:
                joined[target].append(ticket.request_id)
            for ticket in moves.lost:
                end(ticket.request_id, "lost")
        elif action == "ready" and controller.health[group] is Health.RESTARTING:
            controller.group_ready(group, now)
        give_turns()
        assert controller.num_open == sum(map(len, joined)) == sum(map(len, queues))
    counts = controller.counts
    assert counts["accepted"] == counts["served"] + counts["cancelled"] + counts["lost"] + controller.num_open
    assert counts["accepted"] + counts["rejected"] == next(numbers)
    for how in ("served", "cancelled", "lost"):
        assert counts[how] == sum(one == how for one in ends.values())
