"""Real processes: groups as Ray actors, one of them killed under load."""

import asyncio
import os
import signal
import socket
import time

import pytest

pytest.importorskip("ray", reason="the cluster needs Ray: pip install 'paceline[cluster]'")

from paceline.errors import InvalidParameter, WorkerDied
from paceline.serving.cluster import ray_session, rehearsal
from paceline.serving.cluster.controller import Health
from paceline.serving.cluster.dispatcher import Dispatcher
from paceline.serving.cluster.group import Supervision
from paceline.serving.cluster.ray_groups import start_groups
from paceline.serving.cluster.ray_session import CONNECT_SECONDS, stop_ray
from tests.serving.echo_model import open_echo, open_nothing
from tests.serving.fakes import job, plan, say

SUPERVISION = Supervision(heartbeat=0.2, timeout=5.0, backoff=0.1)
WORDS = " ".join(map(str, range(12)))


@pytest.fixture(scope="module")
def groups():
    """Two groups that a test may kill, and one that cannot be made, on one Ray."""
    yield start_groups(plan([[1, 1, [0]], [1, 1, [0, 1]], [1, 1, [2]]], "abc"), num_cpus=1, open_model=open_some)
    stop_ray()


def open_some(spec, **options):
    return (open_nothing if spec.name == "c" else open_echo)(spec, **options)


def test_a_group_that_cannot_be_made_says_why(groups):
    with pytest.raises(WorkerDied, match=r"\(ActorDiedError\): [^:]*: 'c' has no weights; name others"):
        asyncio.run(groups[2].start())


def test_a_group_killed_under_load_loses_nothing_and_returns(groups, monkeypatch):
    monkeypatch.setattr(rehearsal, "_SECONDS", 0.0)

    async def scene():
        dispatcher = Dispatcher(plan([[1, 1, [0]], [1, 1, [0, 1]]]), groups[:2], SUPERVISION)
        await dispatcher.start()
        _nobody_else_reaches_ray()
        assert dispatcher.describe("b") == {"max_model_len": 512}
        long = " ".join([WORDS] * 6)  # still being answered when a group dies
        jobs = [job(str(i), "a", long, stream=i % 2 == 0) for i in range(8)]
        answers = [asyncio.create_task(say(dispatcher, one)) for one in jobs]
        await asyncio.sleep(0.4)
        assert await say(dispatcher, job("b", "b", "threads")) == "b: 1"
        for stream in (False, True):
            with pytest.raises(InvalidParameter, match="is bad"):
                await say(dispatcher, job(f"bad-{stream}", "b", "bad", stream=stream))
        busiest = max((0, 1), key=lambda group: len(dispatcher.controller.queues[group]))
        first_pid = groups[busiest].pid
        os.kill(first_pid, signal.SIGKILL)
        assert await asyncio.gather(*answers) == [f"a: {long}"] * 8
        async with asyncio.timeout(20):
            while dispatcher.controller.health[busiest] is not Health.READY or groups[busiest].pid == first_pid:
                await asyncio.sleep(0.05)
        assert dispatcher.controller.counts["served"] == 9
        assert dispatcher.controller.counts["moved"] > 0
        await _leaves_early(dispatcher)
        await dispatcher.close()
        with pytest.raises(WorkerDied):
            async with asyncio.timeout(20):
                while True:  # Ray ends a process a moment after it is told to
                    await groups[1].check()
                    await asyncio.sleep(0.05)

    asyncio.run(scene())


def _nobody_else_reaches_ray():
    """Every port that Ray's processes listen at is this machine's alone, and the token is in no file."""
    psutil = pytest.importorskip("psutil")
    ours = psutil.Process().children(recursive=True)
    listening = [c.laddr.ip for p in ours for c in p.net_connections() if c.status == psutil.CONN_LISTEN]
    assert listening and {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


async def _leaves_early(dispatcher):
    """A client that goes away ends its answer where it is made."""
    left = dispatcher.generate(job("left", "b", "w " * 1000, stream=True))
    await anext(left)
    await left.aclose()
    async with asyncio.timeout(5):
        assert await say(dispatcher, job("next", "b", "x")) == "b: x"


def test_a_ray_without_cpus_is_refused():
    for number, remedy in ((0, "at least 1"), (10_000, "lower it, or")):
        with pytest.raises(InvalidParameter, match=f"^num_cpus: .*{remedy}"):
            start_groups(plan([[1, 1, [0, 1]]]), num_cpus=number)


def test_devices_of_several_types_need_a_ray_that_has_them():
    with pytest.raises(InvalidParameter, match="type 'l4'"):
        start_groups(plan([[1, 1, [0, 1], "l4"]]), num_cpus=1)


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("ray://head:10001", "is a client's"), ("head", "no host:port"), ("head:many", "no host:port"),
        (":6379", "no host:port"), ("127.0.0.1:99999", "no host:port"), ("a..b:6379", "cannot be reached"),
        ("127.0.0.1:{closed}", "cannot be reached"), ("[::1]:{closed}", "cannot be reached"),
    ],
)  # fmt: skip
def test_a_ray_that_is_not_there_is_named_at_once(address, complaint):
    with socket.socket() as held:  # bound, and nobody listens
        held.bind(("127.0.0.1", 0))
        began = time.monotonic()
        with pytest.raises(InvalidParameter, match=complaint) as found:
            start_groups(plan([[1, 1, [0]]]), address=address.format(closed=held.getsockname()[1]))
    assert found.value.field == "ray_address" and time.monotonic() - began < 2 * CONNECT_SECONDS


def test_a_ray_that_is_found_and_does_not_listen_is_named_at_once(monkeypatch):
    """Such as the private one of another server, which listens at 127.0.0.1 alone."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        monkeypatch.setattr(ray_session, "canonicalize_bootstrap_address_or_die", lambda _: address)
        with pytest.raises(InvalidParameter, match=f"'{address}' cannot be reached"):
            start_groups(plan([[1, 1, [0]]]), address="auto")


def test_where_no_ray_runs_auto_says_so(monkeypatch):
    def find(_):
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(ray_session, "canonicalize_bootstrap_address_or_die", find)
    with pytest.raises(InvalidParameter, match=r"'auto' cannot be reached \(Could not find any") as found:
        start_groups(plan([[1, 1, [0]]]), address="auto")
    assert found.value.field == "ray_address"
