"""Pages for what a model begins before it is asked: there a step early, and at nobody's cost."""

import random

import pytest

from paceline.scheduling import PagePool, RequestState, SchedulerConfig
from paceline.types import SamplingParams
from tests.scheduling.fake_engine import FakeEngine


def engine(policy="stall_free", slots=1, num_pages=64, budget=16):
    config = SchedulerConfig(policy, budget, 8, prefix_caching=False, tile=4, num_lookahead_slots=slots)
    return FakeEngine(config, PagePool(num_pages, 4))


def add(fake, name, prompt_length, max_tokens):
    params = SamplingParams(max_tokens=max_tokens)
    return fake.add(RequestState(str(name), [1] * prompt_length, params, arrival_time=float(name)))


def test_the_page_of_the_token_after_the_last_is_there_and_none_after_the_longest_output():
    fake = engine()
    request = add(fake, 0, 3, max_tokens=7)
    pages = []
    while fake.scheduler.has_work:
        fake.step()
        pages.append((request.num_tokens, len(request.page_table)))
    assert pages[:-1] == [(4, 1), (5, 2), (6, 2), (7, 2), (8, 2), (9, 3)]
    assert fake.scheduler.pool.num_free == 64


@pytest.mark.parametrize("policy", ["stall_free", "sarathi", "orca", "request_level"])
@pytest.mark.parametrize("seed", range(8))
def test_nobody_waits_or_is_preempted_for_it(policy, seed):
    plans = []
    for slots in (0, 1):
        rng, fake = random.Random(seed), engine(policy, slots, num_pages=(9, 12, 20)[seed % 3])
        for name in range(12):
            add(fake, name, rng.randint(1, 14), rng.randint(1, 18))
            for _ in range(rng.randint(0, 4)):
                fake.step()
                fake.scheduler.check_integrity()
        fake.drain()
        assert fake.scheduler.pool.num_free == fake.scheduler.pool.num_pages
        plans.append([
            ([(grant.request.request_id, grant.num_prefill_tokens) for grant in plan.grants],
             [request.request_id for request in plan.preempted])
            for plan in fake.plans
        ])  # fmt: skip
    assert plans[0] == plans[1]
