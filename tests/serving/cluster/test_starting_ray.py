"""A start of Ray that is interrupted ends in order."""

import subprocess
import sys

import pytest

pytest.importorskip("ray", reason="the cluster needs Ray: pip install 'paceline[cluster]'")

INTERRUPTED = """
import os, signal
from paceline.serving.cluster import ray_session

done = []

def init(**_):
    os.kill(os.getpid(), signal.SIGINT)
    done.append("connected")

ray_session.ray.init = init
try:
    ray_session.start_ray(1)
except KeyboardInterrupt:
    print("interrupted", *done)
"""


def test_ctrl_c_waits_until_ray_is_connected():
    """Else Ray crashes the process when it is shut down."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["interrupted", "connected"], done.stderr
