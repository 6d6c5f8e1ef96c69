"""Runs of one model on several processes: tensor-parallel shares of every layer, stages of a pipeline, or both.

`launch_model` starts the processes on this machine; `docs/parallel.md` tells how to start them elsewhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from paceline.errors import InvalidParameter
from paceline.models.dtypes import choose_dtype
from paceline.models.files.checkpoint import Checkpoint
from paceline.models.processors import usable_cores
from paceline.models.torch_executor.parallel.launch import (
    Elsewhere,
    LocalWorkers,
    Workers,
    current_elsewhere,
    elsewhere,
)
from paceline.models.torch_executor.parallel.layout import Layout
from paceline.models.torch_executor.parallel.links import Rendezvous
from paceline.models.torch_executor.parallel.model import MICROBATCH_ROWS, ParallelCache, ParallelModel
from paceline.models.torch_executor.parallel.profile import StageProfile, prefill_rows, profile_stages
from paceline.models.torch_executor.parallel.worker import Assignment, run_worker

__all__ = [
    "Assignment", "Elsewhere", "Layout", "ParallelCache", "ParallelModel", "Rendezvous", "StageProfile",
    "devices_of_ranks", "elsewhere", "first_and_others", "launch_model", "prefill_rows", "profile_stages", "run_worker",
]  # fmt: skip


def launch_model(
    checkpoint: Checkpoint,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    *,
    layer_partition: Sequence[int] | None = None,
    head_share: float = 1.0,
    device: str = "cpu",
    dtype: str = "float32",
    num_threads: int | None = None,
    timeout: float = 600.0,
    microbatch_rows: int = MICROBATCH_ROWS,
) -> ParallelModel:
    """A model over `tensor_parallel_size` x `pipeline_parallel_size` processes, including this one.

    The others run on this machine, or where the context `elsewhere` starts them.

    Args:
        checkpoint: the weights; must be picklable, as readers of files are.
        layer_partition: layers of each pipeline stage; balanced by default, with `head_share` as of `Layout.of`.
        device: ``cpu``, or ``cuda``: rank r takes ``cuda:r``.
        dtype: ``float32``, ``bfloat16``, or ``auto``, see `choose_dtype`.
        num_threads: total threads of all ranks on a CPU; None takes all processors. Sets this process's torch threads.
        timeout: seconds that ranks wait for each other, at the start and in the middle of a pass.
        microbatch_rows: least rows of a micro-batch of the pipeline.

    Raises:
        InvalidParameter: degrees that do not fit the model or the devices.
        WorkerDied: a worker could not start; its traceback is in the message.
    """
    layout = Layout.of(checkpoint.config, tensor_parallel_size, pipeline_parallel_size, layer_partition, head_share)
    devices = devices_of_ranks(device, layout.world_size)
    choice = choose_dtype(dtype, checkpoint, "torch", device)
    make = partial(Assignment, checkpoint, layout, dtype=choice.name)
    model = ParallelModel(*first_and_others(make, devices, num_threads, timeout), microbatch_rows)
    model.dtype_choice = choice
    return model


def first_and_others(
    make: Callable[..., Assignment], devices: Sequence[str], num_threads: int | None, timeout: float
) -> tuple[Assignment, Callable[[Rendezvous], Workers]]:
    """The assignment of rank 0, and what starts the other ranks.

    Args:
        make: makes an assignment of a rank, a rendezvous, a device and a number of threads, given by name.
        devices: of each rank, see `devices_of_ranks`.
        num_threads, timeout: as of `launch_model`.
    """
    where, world_size = current_elsewhere(), len(devices)
    threads = None if devices[0] != "cpu" else max(1, (num_threads or usable_cores()) // world_size)
    meeting = Rendezvous(timeout=timeout) if where is None else Rendezvous(where.host, timeout=timeout)
    first = make(rank=0, meeting=meeting, device=devices[0], num_threads=threads)
    start = LocalWorkers if where is None else where.start

    def start_others(meeting: Rendezvous) -> Workers:
        others = range(1, world_size)
        return start([replace(first, rank=rank, device=devices[rank], meeting=meeting) for rank in others])

    if threads is not None:
        torch.set_num_threads(threads)
    return first, start_others


def devices_of_ranks(device: str, world_size: int) -> list[str]:
    """The device of each rank of a model on `device`, as of `launch_model`.

    Raises:
        InvalidParameter: there are not enough devices.
    """
    return _devices(device, world_size) if current_elsewhere() is None else _own_devices(device, world_size)


def _own_devices(device: str, world_size: int) -> list[str]:
    """Devices of ranks that each have a machine, or one visible GPU, to themselves."""
    if device not in ("cpu", "cuda"):
        raise InvalidParameter("device", f"{device!r} is one device for {world_size} ranks", "use cpu or cuda")
    return ["cpu" if device == "cpu" else "cuda:0"] * world_size


def _devices(device: str, world_size: int) -> list[str]:
    if device == "cpu":
        return [device] * world_size
    if device != "cuda":
        raise InvalidParameter("device", f"{device!r} is one device for {world_size} ranks", "use cpu or cuda")
    found = torch.cuda.device_count()
    if found < world_size:
        lower = f"lower tensor_parallel_size or pipeline_parallel_size to {found} devices in all"
        remedy = lower if found else "use cpu"
        raise InvalidParameter("device", f"{world_size} ranks need as many CUDA devices, {found} found", remedy)
    return [f"cuda:{rank}" for rank in range(world_size)]
