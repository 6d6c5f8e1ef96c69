"""A rank other than 0: it holds a shard, executes the commands of rank 0, and ends on command or when rank 0 is gone.

`run_worker` is for any launcher, including cluster actors. `launch.py` runs this module with `python -m` and a pickled
`Assignment` on standard input.
"""

import os
import pickle
import signal
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from paceline.models.files.checkpoint import Checkpoint
from paceline.models.torch_executor.parallel.layout import Layout
from paceline.models.torch_executor.parallel.links import Links, Rendezvous
from paceline.models.torch_executor.parallel.messages import Command, Message
from paceline.models.torch_executor.parallel.rank import Rank

LOST_PEER = 75
"""Exit status of a worker that ended because another rank did, and so is not the cause of a failure."""


class HandlesMessages(Protocol):
    """What a rank has of a model."""

    def handle(self, message: Message) -> Any:
        """Execute `message`, which all ranks have got. Rank 0 returns the result, the others None."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class Assignment:
    """Everything that a rank needs to join a parallel run.

    Attributes:
        checkpoint: the weights; readers of files are pickled as their path.
        layout: the layout of the model over ranks.
        rank: the number of this rank.
        meeting: the rendezvous of the ranks.
        device, dtype: as in `Stage`.
        num_threads: torch threads of this rank; None keeps torch's default.
    """

    checkpoint: Checkpoint
    layout: Layout
    rank: int
    meeting: Rendezvous
    device: str
    dtype: str
    num_threads: int | None = None

    def join(self, store: Any) -> "tuple[Links, HandlesMessages]":
        """Connect to the other ranks and load the shard; returns when this rank is ready, not when all are.

        Raises:
            ConnectionError: another rank did not connect.
            CorruptWeights, InvalidParameter: see `Stage`.
        """
        links = Links(self.layout, self.rank, self.meeting, store, torch.device(self.device))
        return links, self.load(links)

    def load(self, links: Links) -> "HandlesMessages":
        """The shard of this rank; an executor may replace it by its own. Errors as of `Stage`."""
        return Rank(self.checkpoint, links, self.device, self.dtype)


def ready_key(rank: int, what: str) -> str:
    """The store's key that `rank` sets when it is ``here``, and later when its shard is ``loaded``; then to the bytes
    that are free on its GPU, if it has one."""
    return f"{what}/{rank}"


def run_worker(assignment: Assignment) -> None:
    """Execute the commands of rank 0 until it closes the model. On a GPU the process ends when rank 0 is gone.

    Raises:
        ConnectionError: rank 0 or another rank is gone.
    """
    if assignment.num_threads is not None:
        torch.set_num_threads(assignment.num_threads)
    store = assignment.meeting.store(assignment.rank, assignment.layout.world_size)
    store.set(ready_key(assignment.rank, "here"), "")
    is_on_gpu, closed = assignment.device.startswith("cuda"), threading.Event()
    if is_on_gpu:
        torch.cuda.set_device(assignment.device)
    links, rank = assignment.join(store)
    if is_on_gpu:
        links.guard([0], lambda _: closed.is_set() or os._exit(LOST_PEER))
    free = str(torch.cuda.mem_get_info(assignment.device)[0]) if is_on_gpu else ""
    store.set(ready_key(assignment.rank, "loaded"), free)
    while (message := links.listen()).command is not Command.CLOSE:
        rank.handle(message)
    closed.set()


def main() -> None:
    """Run the assignment on standard input in this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C reaches all; rank 0 decides what it means
    assignment = pickle.load(sys.stdin.buffer)  # from the process that started this one
    status = 0
    try:
        run_worker(assignment)
    except ConnectionError as error:
        print(error, file=sys.stderr)
        status = LOST_PEER
    except Exception:
        traceback.print_exc()
        status = 1
    sys.stderr.flush()
    os._exit(status)  # not by returning: the groups' destructors would wait for the other ranks


if __name__ == "__main__":
    main()
