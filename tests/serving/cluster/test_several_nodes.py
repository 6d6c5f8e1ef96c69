"""Groups on a Ray of several nodes: each on nodes with its type of device, and one whose ranks are on two of them.

In a process of its own: Ray is set up at its import. The nodes are Ray's own processes on this machine, one CPU each.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="the cluster needs Ray: pip install 'paceline[cluster]'")
pytest.importorskip("torch")

from paceline.config import EngineConfig
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.build import load_executor, silent
from paceline.engine.llm import LLM
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource
from paceline.types import SamplingParams
from tests.fakes import ByteTokenizer, RandomCheckpoint, small_config
from tests.serving.fakes import job, plan

ROOT = Path(__file__).parents[3]
PARAMS = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}


def open_split(_spec, **degrees):
    """A tiny model over as many devices as a group has."""
    checkpoint = RandomCheckpoint(small_config(), seed=1)
    config = EngineConfig(dtype="float32", executor="torch", kv_cache_memory_bytes=1 << 22, profile="none", **degrees)
    source = ModelSource("random", checkpoint, ByteTokenizer())  # type: ignore[arg-type]
    llm = LLM.from_loaded(LoadedModel(source, load_executor(checkpoint, config, "random", silent)), config)
    return AsyncLLM(llm)


def main():
    """Print the nodes on which each group's parts lie, and what a model on two nodes says."""
    import ray
    from ray.cluster_utils import Cluster

    from paceline.serving.cluster.ray_groups import start_groups, start_ray, stop_ray

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1, resources={"accelerator_type:BIG": 1})

    async def started(groups):
        """Nodes of each, by what they have."""
        await asyncio.gather(*(group.start() for group in groups))
        big = {node["NodeID"] for node in ray.nodes() if "accelerator_type:BIG" in node["Resources"]}
        tables = [ray.util.placement_group_table(group._place) for group in groups]
        nodes = [table["bundles_to_node_id"].values() for table in tables]
        return [sorted("big" if node in big else "other" for node in each) for each in nodes]

    async def said(group):
        return "".join([chunk.text async for chunk in group.generate(job("x", prompt="the cat", **PARAMS))])

    told = {}
    for name, groups in (("typed", [[1, 1, [0], "big"], [1, 1, [0]]]), ("split", [[1, 2, [0]]])):
        made = start_groups(plan(groups, ["a"]), open_model=open_split, address=cluster.address)
        told[name], told["text"] = asyncio.run(started(made)), asyncio.run(said(made[0]))
        stop_ray()
    start_ray(1)
    told["own"] = ray.get_runtime_context().gcs_address != cluster.address
    stop_ray()
    cluster.shutdown()
    print(json.dumps(told))


def test_groups_lie_on_nodes_of_their_type_and_one_spans_two():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-c", "from tests.serving.cluster.test_several_nodes import main; main()"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["typed"] == [["big"], ["other"]]
    assert told["split"] == [["big", "other"]]
    assert told["own"], "a Ray of its own is started beside one that runs"
    assert told["text"] == open_split(None)._llm.generate("the cat", SamplingParams(**PARAMS))[0].text
