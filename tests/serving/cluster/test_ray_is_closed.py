"""Ray's ports: on loopback only, with a token of this run. In a process of its own: Ray is set up at its import."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("ray", reason="the cluster needs Ray: pip install 'paceline[cluster]'")
pytest.importorskip("psutil")

START = """
import json, os, subprocess, sys
import psutil
from paceline.serving.cluster import ray_groups

ray_groups.start_ray(1)
import ray
ray.get(ray.remote(lambda: 1).remote())
processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
found = [one for each in processes for one in each.net_connections("tcp") if one.status == "LISTEN"]
listening = {one.laddr.ip.removeprefix("::ffff:") for one in found}
address = ray.get_runtime_context().gcs_address
ask = "import sys; from ray._raylet import GcsClient as C; C(sys.argv[1]).internal_kv_keys(b'', None, timeout=5)"

def others(token):
    environment, command = os.environ | {"RAY_AUTH_TOKEN": token}, [sys.executable, "-c", ask, address]
    return subprocess.run(command, env=environment, capture_output=True, timeout=60).returncode

told = {"listening": sorted(listening), "right": others(os.environ["RAY_AUTH_TOKEN"]), "wrong": others("0" * 64)}
ray_groups.stop_ray()
print(json.dumps(told))
"""


def test_nobody_else_gets_in():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", START], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["listening"] == ["127.0.0.1"]
    assert told["right"] == 0 and told["wrong"] != 0


INTERRUPTED = """
import os, signal
from paceline.serving.cluster import ray_groups

done = []

def init(**_):
    os.kill(os.getpid(), signal.SIGINT)
    done.append("connected")

ray_groups.ray.init = init
try:
    ray_groups.start_ray(1)
except KeyboardInterrupt:
    print("interrupted", *done)
"""


def test_ctrl_c_waits_until_ray_is_connected():
    """Else Ray crashes the process when it is shut down."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["interrupted", "connected"], done.stderr
