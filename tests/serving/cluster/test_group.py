"""How often a group may be started again, and how long is waited."""

from paceline.serving.cluster.group import Life, Supervision

SUPERVISION = Supervision(max_restarts=3, backoff=0.5, stable_seconds=60.0)


def test_waits_double_until_a_group_is_given_up():
    life = Life()
    assert [life.end(now, SUPERVISION) for now in (1.0, 2.0, 3.0, 4.0)] == [0.5, 1.0, 2.0, None]
    assert life.number == 4


def test_a_long_life_is_forgiven():
    life = Life(restarts=3, since=10.0)
    assert life.end(71.0, SUPERVISION) == 0.5
