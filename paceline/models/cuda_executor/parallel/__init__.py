"""One model over several GPUs, each with a share of every layer, or with some layers: every rank runs the same passes.

Processes, groups and shards are those of `torch_executor/parallel/`. Not for several steps in flight, which only that
executor has.
"""

from collections.abc import Callable, Sequence
from functools import partial

from paceline.models.cuda_executor.attention import AttentionName
from paceline.models.cuda_executor.parallel.assignment import CudaAssignment
from paceline.models.cuda_executor.parallel.leading import LeadingModel
from paceline.models.dtypes import choose_dtype
from paceline.models.files.checkpoint import Checkpoint
from paceline.models.torch_executor.parallel import Assignment, Layout, Rendezvous, devices_of_ranks, first_and_others
from paceline.models.torch_executor.parallel.launch import Workers
from paceline.models.torch_executor.parallel.ranks import Ranks

__all__ = ["CudaAssignment", "LeadingModel", "launch_model", "lead"]


def launch_model(
    checkpoint: Checkpoint,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    *,
    layer_partition: Sequence[int] | None = None,
    head_share: float = 1.0,
    device: str = "cuda",
    dtype: str = "auto",
    attention: AttentionName = "auto",
    deterministic: bool = False,
    num_threads: int | None = None,
    timeout: float = 600.0,
) -> LeadingModel:
    """A `CudaModel` over `tensor_parallel_size` x `pipeline_parallel_size` processes, including this one.

    The others run on this machine, or where the context `elsewhere` starts them.

    Args:
        checkpoint: the weights; must be picklable, as readers of files are.
        layer_partition: layers of each pipeline stage; balanced by default, with `head_share` as of `Layout.of`.
        device: ``cuda``: rank r takes ``cuda:r``; or ``cpu``, for tests.
        dtype, attention, deterministic: as of `CudaModel`.
        num_threads: total threads of all ranks on a CPU; None takes all processors. Sets this process's torch threads.
        timeout: seconds that ranks wait for each other, at the start and in the middle of a pass.

    Raises:
        InvalidParameter: degrees that do not fit the model or the devices, or an option of `CudaModel`.
        WorkerDied: a worker could not start; its traceback is in the message.
    """
    layout = Layout.of(checkpoint.config, tensor_parallel_size, pipeline_parallel_size, layer_partition, head_share)
    devices = devices_of_ranks(device, layout.world_size)
    choice = choose_dtype(dtype, checkpoint, "torch", device)
    make = partial(
        CudaAssignment, checkpoint, layout, dtype=choice.name, attention=attention, deterministic=deterministic
    )
    model = lead(*first_and_others(make, devices, num_threads, timeout))
    model.dtype_choice = choice
    return model


def lead(assignment: Assignment, start_others: Callable[[Rendezvous], Workers] | None = None) -> LeadingModel:
    """The model on rank 0, whose assignment is a `CudaAssignment`; arguments and errors as of `Ranks`."""
    ranks = Ranks(assignment, start_others)
    _, model = ranks.joined()
    model.ranks = ranks
    return model
