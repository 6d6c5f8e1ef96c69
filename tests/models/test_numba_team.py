"""The team's threads end with it, and hold nothing while they wait."""

import gc
import threading
import time
import weakref

import numpy as np
import pytest
from numba import njit

from paceline.errors import EngineDead, PacelineError
from paceline.models.numba_executor.team import Team


@njit(nogil=True)
def touch(thread, values):
    values[thread] += 1


def soon(condition) -> bool:
    end = time.monotonic() + 10
    while not condition() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    return condition()


def team_threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name.startswith("paceline-")]


def test_every_member_runs_the_kernel():
    team, values = Team(3), np.zeros(3)
    team.run(touch, values)
    assert soon(lambda: values.tolist() == [1, 1, 1])
    team.close()


@pytest.mark.parametrize("closed", [True, False])
def test_threads_end_with_their_team(closed):
    before = set(team_threads())  # of other tests' teams, which may end at any moment
    team = Team(3)
    own = set(team_threads()) - before
    assert len(own) == 2
    if closed:
        team.close()
    else:
        del team
    assert soon(lambda: not any(one.is_alive() for one in own))


def test_idle_threads_keep_no_array_alive():
    team, values = Team(2), np.zeros(2)
    team.run(touch, values)
    ref = weakref.ref(values)
    del values
    assert soon(lambda: ref() is None)
    team.close()


def test_a_closed_team_refuses_a_kernel_and_waits_for_nobody():
    team, values = Team(2), np.zeros(2)
    team.close()
    with pytest.raises(EngineDead, match="closed"):
        team.run(touch, values)
    assert values.tolist() == [0, 0]


def test_where_a_thread_cannot_start_the_others_end(monkeypatch):
    before, start = set(team_threads()), threading.Thread.start

    def refuse_the_third(thread):
        if thread.name == "paceline-3":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_third)
    with pytest.raises(PacelineError, match="num_threads: thread 4 of 9 cannot start"):
        Team(9)
    assert soon(lambda: not set(team_threads()) - before)
