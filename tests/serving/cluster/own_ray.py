"""Who reaches the Ray that a server starts for itself, printed as JSON; in a process of its own, as a server is."""

import json
import os
import subprocess
import sys

import psutil

from paceline.serving.cluster import ray_session

ASK = "import sys; from ray._raylet import GcsClient as C; C(sys.argv[1]).internal_kv_keys(b'', None, timeout=5)"


def main():
    import ray

    ray_session.start_ray(1)
    ray.get(ray.remote(lambda: 1).remote())
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found = [one for each in processes for one in each.net_connections("tcp") if one.status == "LISTEN"]
    listening = {one.laddr.ip.removeprefix("::ffff:") for one in found}
    address = ray.get_runtime_context().gcs_address
    told = {"listening": sorted(listening), "address": address}
    told |= {"right": answer_to(os.environ["RAY_AUTH_TOKEN"], address), "wrong": answer_to("0" * 64, address)}
    ray_session.stop_ray()
    print(json.dumps(told))


def answer_to(token, address):
    environment, command = os.environ | {"RAY_AUTH_TOKEN": token}, [sys.executable, "-c", ASK, address]
    return subprocess.run(command, env=environment, capture_output=True, timeout=60).returncode


if __name__ == "__main__":
    main()
