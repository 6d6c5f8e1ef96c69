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
ray_session.ray.cluster_resources = dict
try:
    ray_session.start_ray(1)
except KeyboardInterrupt:
    print("interrupted", *done)
else:
    print("went on", *done)
"""
NOTICING = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
IGNORING = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
"""As a shell starts what its script puts into the background; these tests may have been started so themselves."""


def test_ctrl_c_waits_until_ray_is_connected():
    """Else Ray crashes the process when it is shut down."""
    assert said(NOTICING + INTERRUPTED) == "interrupted connected"


def test_a_start_that_ignores_ctrl_c_goes_on():
    assert said(IGNORING + INTERRUPTED) == "went on connected"


def said(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert not done.returncode, done.stderr
    return done.stdout.strip()
