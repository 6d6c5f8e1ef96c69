"""Engines that share a device: which of them takes the next step."""

import threading
import time

import pytest

from paceline.engine.threads.turns import Turns


def entered(turns, log, name, gate=None):
    with turns:
        log.append(name)
        if gate is not None:
            gate.wait(10)


def until(condition):
    ends = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.001)


def test_one_runs_at_once_and_the_others_in_order():
    turns, log, gate = Turns(), [], threading.Event()
    threads = []
    for number in range(6):
        threads.append(threading.Thread(target=entered, args=(turns, log, number, gate)))
        threads[-1].start()
        until(lambda expected=number + 1: len(turns._line) == expected)
    assert log == [0]
    gate.set()
    for thread in threads:
        thread.join(10)
    assert log == list(range(6))
    with turns:  # nothing is left taken
        pass


def test_who_leaves_and_comes_again_is_last():
    """Otherwise the engine that has just made a step, and is awake, would make the next one too."""
    turns, log, gate = Turns(), [], threading.Event()

    def twice():
        entered(turns, log, "first", gate)
        entered(turns, log, "again")

    first = threading.Thread(target=twice)
    first.start()
    until(lambda: log)
    second = threading.Thread(target=entered, args=(turns, log, "second"))
    second.start()
    until(lambda: len(turns._line) == 2)
    gate.set()
    first.join(10)
    second.join(10)
    assert log == ["first", "second", "again"]


def test_a_step_that_fails_leaves_its_turn():
    turns = Turns()
    with pytest.raises(ZeroDivisionError), turns:
        _ = 1 / 0
    assert not turns._line
    with turns:
        pass


def test_a_place_can_be_taken_before_it_is_needed_and_given_up():
    turns, log = Turns(), []
    turns.reserve()
    other = threading.Thread(target=entered, args=(turns, log, "other"))
    other.start()
    until(lambda: len(turns._line) == 2)
    with turns:
        log.append("first")
        turns.leave()  # the rest of the step needs no device
        other.join(10)
    turns.reserve()
    turns.leave()
    assert log == ["first", "other"] and not turns._line
