"""The team's threads end with it, and hold nothing while they wait."""

# pyright: reportCallIssue=false, reportArgumentType=false
# (an intrinsic has another signature in compiled code than in Python)

import gc
import os
import threading
import time
import weakref

import numpy as np
import pytest

from paceline.errors import EngineDead, PacelineError
from paceline.models.compiled.kernel import entry, kernel
from paceline.models.numba_executor import team as team_module
from paceline.models.numba_executor.reference import stored
from paceline.models.numba_executor.team import Team, acquire, share, yield_processor


@kernel
def _touch(thread, args):
    (values,) = stored(args)
    values[thread] += 1


@entry
def touch(slot, args):
    share(slot, _touch, args)


@kernel
def _wait_for(thread, args):
    values, done = stored(args)
    if thread > 0:
        while acquire(done, 0) == 0:
            yield_processor()
    values[thread] += 1


@entry
def wait_for(slot, args):
    share(slot, _wait_for, args)


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
    for times in range(1, 1000):
        team.run(touch, values)
        assert values.tolist() == [times, times, times]  # nobody is still at work when a run ends
    team.close()


def test_members_that_sleep_are_woken():
    team, values, active = Team(3), np.zeros(3), [team_module._ACTIVE + index * team_module._LINE for index in (1, 2)]
    for times in range(1, 4):
        team.run(touch, values)
        assert values.tolist() == [times, times, times]
        assert soon(lambda: not team._slot[active].any())  # an idle team uses no processor
    team.close()


def test_members_go_to_sleep_while_runs_begin():
    """Pauses about as long as a member waits actively, so that runs begin while members go to sleep."""
    team, values, pause = Team(3), np.zeros(3), np.random.default_rng(1)
    for _ in range(300):
        team.run(touch, values)
        time.sleep(pause.uniform(0, 0.006))
    assert values.tolist() == [300, 300, 300]
    team.close()


def test_runs_of_several_threads_come_one_after_the_other():
    team, values = Team(2), np.zeros(2)

    def ask() -> None:
        for _ in range(500):
            team.run(touch, values)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert values.tolist() == [2000, 2000]
    team.close()


def test_a_run_that_fails_before_it_begins_leaves_the_team_as_it_was():
    team, values = Team(2), np.zeros(2)

    def interrupted(slot, args):
        raise KeyboardInterrupt

    team.run(touch, values)
    with pytest.raises(KeyboardInterrupt):
        team.run(interrupted, values)
    assert soon(lambda: not team._slot[team_module._ACTIVE + team_module._LINE])  # it sleeps
    team.run(touch, values)
    assert values.tolist() == [2, 2]
    team.close()


def test_a_team_that_is_closed_in_a_run_ends_after_it():
    team, values, done = Team(2), np.zeros(2), np.zeros(1, np.int64)
    leader = threading.Thread(target=team.run, args=(wait_for, values, done))
    leader.start()
    assert soon(lambda: values[0] == 1)
    team.close()
    assert values.tolist() == [1, 0]
    done[0] = 1
    leader.join(10)
    assert values.tolist() == [1, 1]
    with pytest.raises(EngineDead):
        team.run(touch, values)


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


@pytest.mark.parametrize(("cores", "waits"), [(2, True), (1, False)])
def test_a_team_of_more_threads_than_cores_does_not_wait_actively(cores, waits, monkeypatch):
    asked, (announce, wait) = [], team_module._compiled()

    def recorded(thread, slot, followed, patience):
        asked.append(patience)
        return wait(thread, slot, followed, patience)

    monkeypatch.setattr(team_module, "usable_cores", lambda: cores)
    monkeypatch.setattr(team_module, "_compiled", lambda: (announce, recorded))
    team, values = Team(2), np.zeros(2)
    team.run(touch, values)
    team.close()
    assert values.tolist() == [1, 1]
    assert [patience > 0 for patience in asked] == [waits]


def test_members_of_a_closed_team_do_not_wait_for_another_run(monkeypatch):
    monkeypatch.setattr(team_module, "usable_cores", lambda: 2)
    monkeypatch.setattr(team_module, "PATIENCE", 10**12)
    before = set(team_threads())
    team, values = Team(2), np.zeros(2)
    own = set(team_threads()) - before
    team.run(touch, values)
    time.sleep(0.05)
    assert team._slot[team_module._ACTIVE + team_module._LINE]  # a thousand seconds more, if it were not closed
    team.close()
    assert soon(lambda: not any(one.is_alive() for one in own))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_told_that_it_has_no_threads():
    team, values = Team(2), np.zeros(2)
    team.run(touch, values)
    child = os.fork()
    if not child:
        try:
            team.run(touch, values)
        except EngineDead:
            os._exit(7)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    team.run(touch, values)
    assert values.tolist() == [2, 2]
    team.close()
