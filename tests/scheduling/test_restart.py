"""Beginning again with an empty cache after a pass that failed: texts, order and books survive."""

import pytest

from paceline.errors import InvalidParameter
from paceline.scheduling import PagePool, RequestState, SchedulerConfig, Status, StepResult
from paceline.speculation import Fixed
from paceline.types import SamplingParams
from tests.scheduling.fake_engine import FakeEngine, plain_text


def request(name: str, prompt: list[int], max_tokens: int = 8, **fields) -> RequestState:
    return RequestState(name, prompt, SamplingParams(max_tokens=max_tokens), **fields)


def running(num_requests: int = 3, **config) -> tuple[FakeEngine, list[RequestState]]:
    """An engine in the middle of its work."""
    fake = FakeEngine(SchedulerConfig(tile=1, **config), PagePool(32, 4), Fixed(2))
    states = [fake.add(request(f"r{i}", [i % 2, 1, 1, 0, 1], arrival_time=float(i))) for i in range(num_requests)]
    fake.step()
    fake.step()
    return fake, states


def test_whoever_holds_pages_waits_and_is_computed_anew():
    fake, states = running()
    said = [state.output_token_ids for state in states]
    assert fake.scheduler.restart() == states
    fake.lose_the_cache()
    fake.scheduler.check_integrity()
    assert [state.output_token_ids for state in states] == said
    assert all(state.status is Status.WAITING and not state.num_computed for state in states)
    pool = fake.scheduler.pool
    assert (fake.scheduler.num_running, pool.num_free, pool.num_cached) == (0, 32, 0)
    fake.drain()
    assert [state.output_token_ids for state in states] == [
        plain_text(list(state.prompt_token_ids), 8) for state in states
    ]


def test_nothing_computed_before_is_found_again():
    fake, _ = running()
    fake.scheduler.restart()
    fake.lose_the_cache()
    hits = fake.scheduler.prefix_cache_hits
    late = fake.add(request("late", [0, 1, 1, 0, 1]))
    fake.step()  # the first request and the late one begin alike, but nobody has computed a page yet
    assert fake.scheduler.prefix_cache_hits == hits and late.num_cached_tokens == 0


def test_order_is_kept_among_those_that_ran_and_those_that_waited():
    fake, states = running(max_num_seqs=2)
    assert fake.scheduler.num_running == 2
    assert fake.scheduler.restart() == states[:2]
    fake.lose_the_cache()
    fake.step()
    assert [grant.request for grant in fake.plans[-1].grants] == states[:2]


def test_samples_that_wait_for_their_leaders_prompt_go_on_waiting_and_share_it():
    fake = FakeEngine(SchedulerConfig(tile=1, max_num_batched_tokens=4), PagePool(32, 4), Fixed(0))
    leader = fake.add(request("r-0", [1] * 10))
    other = fake.add(request("r-1", [1] * 10, leader=leader))
    fake.step()
    assert fake.scheduler.restart() == [leader]
    fake.lose_the_cache()
    fake.scheduler.check_integrity()
    fake.drain()
    assert leader.output_token_ids == other.output_token_ids == plain_text([1] * 10, 8)


def test_a_restart_with_nothing_running_empties_the_prefix_cache():
    fake, _ = running()
    fake.drain()
    assert fake.scheduler.pool.num_cached > 0
    assert fake.scheduler.restart() == []
    assert fake.scheduler.pool.num_cached == 0
    fake.scheduler.check_integrity()


@pytest.mark.parametrize("reason", ["abort", "error", "timeout"])
def test_a_request_ends_for_the_reason_that_is_given(reason):
    fake, states = running()
    ended = fake.scheduler.abort("r1", 5.0, reason)
    assert ended is states[1]
    assert (states[1].finish_reason, states[1].finish_time) == (reason, 5.0)
    fake.scheduler.check_integrity()
    fake.drain()
    assert [states[i].finish_reason for i in (0, 2)] == ["length"] * 2


def test_results_from_before_a_restart_are_refused():
    fake, states = running(1)
    fake.scheduler.schedule(2.0)
    fake.scheduler.restart()
    with pytest.raises(InvalidParameter, match="no open grant"):
        fake.scheduler.update([StepResult("r0", 0, (0,))], 2.0)
    assert states[0].num_computed == 0
    fake.scheduler.check_integrity()
