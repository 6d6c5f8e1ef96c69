"""Groups that run many requests at once: the controller decides as the simulator does, and learns what differs."""

import heapq

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import RequestRejected
from paceline.placement.arrivals import gamma_times
from paceline.placement.tokens import TokenAsk, TokenGroup, TokenModel, TokenProfile, TokenRequests, simulate_tokens
from paceline.placement.workload import Workload
from paceline.serving.cluster.controller import Controller
from paceline.serving.cluster.ticket import Slo, Ticket
from paceline.serving.cluster.token_queue import TokenQueue

FLAT = TokenProfile({0: {1: 0.125, 8: 0.25, 64: 1.0}}, seats=4, token_budget=32, kv_tokens=300)
STEEP = TokenProfile({0: {1: 0.0625, 8: 0.5}}, segment_seconds={0: 0.03125}, seats=3)
SMALL = TokenProfile({0: {1: 1 / 64, 8: 1 / 32, 64: 1 / 8}}, seats=64)
GROUPS = [{"a": FLAT, "b": STEEP}, {"b": FLAT, "c": FLAT}, {"a": FLAT}]
MODELS = [TokenModel("a", slo=12.0), TokenModel("b", slo=8.0, slo_first=2.0), TokenModel("c", slo_token=0.5)]


def replay(requests):
    """Requests through the controller; engines that take just the profiled time say when answers are there."""
    queues = [TokenQueue(held) for held in GROUPS]
    slos = {model.name: Slo(model.slo, model.slo_first, model.slo_token) for model in MODELS}
    controller = Controller(queues, slos, {model.name: model.expected_tokens for model in MODELS})
    engines, routes = [TokenGroup(held) for held in GROUPS], []

    def answer(now):
        ended = [(end, number, g) for g, engine in enumerate(engines) for number, _, end in engine.advance(now)]
        heapq.heapify(ended)
        while ended:
            end, number, group = heapq.heappop(ended)
            controller.start(group, end)
            controller.finish(str(number), end, int(requests.output_tokens[number]))
            controller.start(group, end)

    for number, (now, model) in enumerate(zip(requests.arrivals.times, requests.arrivals.models, strict=True)):
        answer(float(now))
        try:
            name, prompt = MODELS[model].name, requests.prompt_tokens[number]
            group = controller.submit(str(number), name, float(now), prompt_tokens=prompt)
        except RequestRejected:
            routes.append(-1)
            continue
        controller.start(group, float(now))
        routes.append(group)
        expected = queues[group]._tickets[str(number)][1].expected_tokens
        engines[group].join(number, TokenAsk(name, prompt, expected), float(now), requests.output_tokens[number])
    return routes, controller


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_routes_and_rejections_are_those_of_the_simulator(seed, load):
    rng = np.random.default_rng(seed)
    count = 60
    times = np.round(np.cumsum(rng.exponential(1 / load, count)) * 1024) / 1024
    prompts, outputs = rng.integers(1, 60, count), rng.integers(1, 40, count)
    requests = TokenRequests(Workload(times, rng.integers(0, 3, count)), prompts, outputs)
    result = simulate_tokens(requests, MODELS, GROUPS)
    routes, controller = replay(requests)
    assert routes == result.routes.tolist()
    assert controller.counts["rejected"] == int((result.routes < 0).sum())


def test_as_many_run_as_the_engine_has_seats():
    queue = TokenQueue({"a": FLAT, "b": STEEP})
    for number in range(8):
        queue.add(Ticket(str(number), "ab"[number % 2], 0.0), 0.0)
    assert [ticket.request_id for ticket in queue.start(0.0)] == ["0", "1", "2", "3", "4", "5", "6"]
    assert queue.num_running == 7 and queue.start(0.0) == []
    queue.finish("1", 1.0, 5)
    assert [ticket.request_id for ticket in queue.start(1.0)] == ["7"]


def test_the_speed_of_a_group_is_learned_under_load():
    """Engines twice as slow as their profile, always several requests at once."""
    engine, queue = TokenGroup({"a": FLAT}), TokenQueue({"a": FLAT})
    engine.scale = 2.0
    for number in range(60):
        now = 5.0 * number
        for done, _, end in engine.advance(now):
            queue.finish(str(done), end, 16)
        queue.add(Ticket(str(number), "a", now, expected_tokens=16), now)
        queue.start(now)
        engine.join(number, TokenAsk("a", 1, 16), now, 16)
    assert queue.scale == pytest.approx(2.0, rel=0.15)


def played(times, engine, queue, prompt=1, tokens=16, slo=2.0):
    """Requests through one group, whose engine may be slower than believed: whether each was answered in time."""
    controller = Controller([queue], {"a": slo}, {"a": tokens})
    in_time = np.zeros(len(times), bool)

    def answer(until):
        for number, _, end in engine.advance(until):
            controller.finish(str(number), end, tokens)
            in_time[number] = end - times[number] <= slo
            controller.start(0, end)

    for number, now in enumerate(times):
        answer(now)
        try:
            controller.submit(str(number), "a", now, prompt_tokens=prompt)
        except RequestRejected:
            continue
        controller.start(0, now)
        engine.join(number, TokenAsk("a", prompt, tokens), now, tokens)
    answer(float("inf"))
    return in_time


LOADED = TokenProfile({0: {1: 0.008, 4: 0.016, 16: 0.05, 64: 0.3}})
HEAVY = TokenProfile({0: {1: 0.094, 4: 0.1, 16: 0.3, 64: 1.2}}, {0: {1: 0.09, 16: 0.14, 64: 0.4}})


@pytest.mark.parametrize("slowness", [0.6, 1.5, 2.5])
@pytest.mark.parametrize(("profile", "rate", "slo"), [(LOADED, 9.0, 1.3), (HEAVY, 0.9, 9.6)])
def test_lasting_slowness_under_bursts_is_learned_within_a_few_answers(monkeypatch, profile, rate, slo, slowness):
    """Four minutes of bursts: after the first, as many are in time as if the speed had been known, within 5 points."""
    times = gamma_times(rate, 4.0, 240.0, np.random.default_rng(1)).tolist()
    engine, queue = TokenGroup({"a": profile}), TokenQueue({"a": profile})
    engine.scale = slowness
    speeds, before = [], queue._learn

    def learn(*answer):
        before(*answer)
        speeds.append(queue.scale)

    monkeypatch.setattr(queue, "_learn", learn)
    in_time = played(times, engine, queue, prompt=16, tokens=24, slo=slo)
    count = len(times)
    requests = TokenRequests(Workload(np.array(times), np.zeros(count, int)), np.full(count, 16), np.full(count, 24))
    known = simulate_tokens(requests, [TokenModel("a", slo, expected_tokens=24)], [{"a": profile}], 0.0, [slowness])
    later = np.array(times) > 30
    assert in_time[later].mean() == pytest.approx(known.in_time[later].mean(), abs=0.05)
    assert speeds[-1] == pytest.approx(slowness, rel=0.05)
    assert speeds[len(speeds) // 8] == pytest.approx(slowness, rel=0.2)


def stalled(seconds):
    """Whether each of a minute's requests is answered in time by an engine that stands still once."""
    times = np.cumsum(np.random.default_rng(0).exponential(0.1, 600)).tolist()
    engine, queue = TokenGroup({"a": SMALL}), TokenQueue({"a": SMALL})
    before = played(times[:100], engine, queue)
    engine.clock = max(engine.clock, times[100]) + seconds
    return np.concatenate([before, played(times[100:], engine, queue)])


def test_a_stall_costs_no_more_than_the_requests_that_it_holds_up():
    """Answers that were held up together are one observation, not as many as they are."""
    assert stalled(0.0).mean() == 1.0
    after = stalled(4.0)[100:]
    assert 0.85 < after.mean() < 1.0
    assert after[100:].all()


def test_a_group_that_is_believed_to_be_slow_tries_again_after_a_while():
    queue = TokenQueue({"a": SMALL})
    for number in range(40):  # each eight times as slow as the profile, one after the other
        queue.add(Ticket(str(number), "a", 3.0 * number, expected_tokens=16), 3.0 * number)
        queue.start(3.0 * number)
        queue.finish(str(number), 3.0 * number + 2.0, 16)
    assert queue.scale > 7

    def refuses(now):
        return queue.standing(Ticket("x", "a", now, deadline=now + 1.0, expected_tokens=16), now).problem is not None

    assert queue.standing(Ticket("y", "a", 119.0, expected_tokens=16), 119.0).end > 120.5, "nothing is refused yet"
    assert [refuses(now) for now in (119.0, 120.0, 124.0, 140.0)] == [True, True, True, False]


@pytest.mark.parametrize("slowness", [0.7, 1.5])
def test_the_speed_is_learned_from_long_prompts_with_short_answers(slowness):
    """What counts is the time that an answer took; in tokens, a prompt that was read late looks like any slowness."""
    engine, queue = TokenGroup({"a": FLAT}), TokenQueue({"a": FLAT})
    engine.scale = slowness
    played([20.0 * number for number in range(40)], engine, queue, prompt=200, tokens=2, slo=float("inf"))
    assert queue.scale == pytest.approx(slowness, rel=0.1)


def test_a_group_that_nobody_measured_takes_its_seats_and_learns_from_the_first_answer():
    queue = TokenQueue({"a": None}, seats={"a": 2})
    controller = Controller([queue], {"a": 1.0}, {"a": 10})
    accepted = 0
    for number in range(50):
        try:
            controller.submit(str(number), "a", 0.0)
            accepted += 1
        except RequestRejected as rejection:
            assert "before anything is known" in str(rejection)
    assert accepted == 2
    controller.start(0, 0.0)
    controller.finish("0", 0.5, 10)
    assert queue.scale == pytest.approx(50.0, rel=0.2)
    controller.cancel("1")
    assert queue.standing(Ticket("x", "a", 1.0, deadline=2.0, expected_tokens=10), 1.0).end == pytest.approx(
        1.5, rel=0.1
    )


def test_only_so_many_may_wait():
    controller = Controller([TokenQueue({"a": FLAT})], {"a": float("inf")}, max_waiting=3)
    for number in range(4):
        controller.submit(str(number), "a", 0.0)
        controller.start(0, 0.0)
    for number in range(4, 7):
        controller.submit(str(number), "a", 0.0)
    with pytest.raises(RequestRejected, match="3 requests wait"):
        controller.submit("7", "a", 0.0)
