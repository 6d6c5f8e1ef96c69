"""Groups on a Ray of several nodes: each on nodes with its type of device, and one whose ranks are on two of them.

And a Ray of one's own beside it: on loopback only, with a token of this run. One Ray of several nodes serves both.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="the cluster needs Ray: pip install 'paceline[cluster]'")
pytest.importorskip("torch")
pytest.importorskip("psutil")

from paceline.types import SamplingParams
from tests.serving.cluster.several_nodes import PARAMS, open_split, without_ray

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def told():
    environment = without_ray(os.environ) | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-m", "tests.serving.cluster.several_nodes"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_groups_lie_on_nodes_of_their_type_and_one_spans_two(told):
    assert told["typed"] == [["big"], ["other"]]
    assert told["split"] == [["big", "other"]]
    assert told["text"] == open_split(None)._llm.generate("the cat", SamplingParams(**PARAMS))[0].text


def test_a_ray_of_ones_own_is_started_beside_one_that_runs(told):
    assert told["beside"]["address"] != told["address"]


def test_nobody_else_gets_in(told):
    own = told["beside"]
    assert own["listening"] == ["127.0.0.1"]
    assert own["right"] == 0 and own["wrong"] != 0
