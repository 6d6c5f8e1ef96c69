"""Groups on a Ray of several nodes, for a process of its own: Ray is set up at its import.

The nodes are Ray's own processes on this machine, one CPU each.
"""

import asyncio
import json
import os
import subprocess
import sys

from paceline.config import EngineConfig
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.llm import LLM
from paceline.engine.setup.load import load_executor
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource
from paceline.serving.cluster.ray_groups import start_groups
from paceline.serving.cluster.ray_session import stop_ray
from paceline.types import silent
from tests.fakes import ByteTokenizer, RandomCheckpoint, small_config
from tests.serving.echo_model import open_echo
from tests.serving.fakes import job, plan

PARAMS = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}


def open_split(_spec, **degrees):
    """A tiny model over as many devices as a group has."""
    checkpoint = RandomCheckpoint(small_config(), seed=1)
    config = EngineConfig(dtype="float32", executor="torch", kv_cache_memory_bytes=1 << 22, profile="none", **degrees)
    source = ModelSource("random", checkpoint, ByteTokenizer())  # type: ignore[arg-type]
    llm = LLM.from_loaded(LoadedModel(source, load_executor(checkpoint, config, "random", silent)), config)
    return AsyncLLM(llm)


async def started(groups):
    """Nodes of each group, once it has started, by what they have."""
    import ray

    await asyncio.gather(*(group.start() for group in groups))
    big = {node["NodeID"] for node in ray.nodes() if "accelerator_type:BIG" in node["Resources"]}
    tables = [ray.util.placement_group_table(group._place) for group in groups]
    nodes = [table["bundles_to_node_id"].values() for table in tables]
    return [sorted("big" if node in big else "other" for node in each) for each in nodes]


async def said(group):
    return "".join([chunk.text async for chunk in group.generate(job("x", prompt="the cat", **PARAMS))])


def beside():
    """What a server finds that starts its own Ray here; in a process of its own."""
    command, environment = [sys.executable, "-m", "tests.serving.cluster.own_ray"], without_ray(os.environ)
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, timeout=120).stdout)


def without_ray(environment):
    return {name: value for name, value in environment.items() if not name.startswith("RAY_")}


def main():
    """Print the nodes on which each group's parts lie, what a model on two nodes says, and `beside`."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1, resources={"accelerator_type:BIG": 1})
    told = {}
    typed = start_groups(plan([[1, 1, [0], "big"], [1, 1, [0]]], ["a"]), open_model=open_echo, address=cluster.address)
    told["typed"] = asyncio.run(started(typed))
    stop_ray()
    split = start_groups(plan([[1, 2, [0]]], ["a"]), open_model=open_split, address=cluster.address)
    told["split"], told["text"] = asyncio.run(started(split)), asyncio.run(said(split[0]))
    stop_ray()
    told |= {"address": cluster.address, "beside": beside()}
    cluster.shutdown()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
