"""A rank other than 0: hold a shard, do what rank 0 says, leave when it says so or is gone.

`run_worker` is for any launcher, a cluster's actors included; `python -m` of this module is what `launch.py` starts,
with a pickled `Assignment` on standard input.
"""

import os
import pickle
import signal
import sys
import traceback
from dataclasses import dataclass
from typing import Any

import torch

from paceline.models.checkpoint import Checkpoint
from paceline.models.torch_executor.parallel.layout import Layout
from paceline.models.torch_executor.parallel.links import Links, Rendezvous
from paceline.models.torch_executor.parallel.messages import Command
from paceline.models.torch_executor.parallel.rank import Rank

LOST_PEER = 75
"""Exit status of a worker that ended because another rank did: nothing to report of its own."""


@dataclass(frozen=True, eq=False, slots=True)
class Assignment:
    """What a rank needs to know to join.

    Attributes:
        checkpoint: the weights; readers of files travel as their path.
        layout: the grid.
        rank: this rank's place in it.
        meeting: where the ranks meet.
        device, dtype: as in `Stage`.
        num_threads: of this rank's part of a pass; None leaves torch's own.
    """

    checkpoint: Checkpoint
    layout: Layout
    rank: int
    meeting: Rendezvous
    device: str
    dtype: str
    num_threads: int | None = None

    def join(self, store: Any) -> tuple[Links, Rank]:
        """Meet the other ranks and load the shard; returns when this rank is ready, not when all are.

        Raises:
            ConnectionError: another rank did not come.
            CorruptWeights, InvalidParameter: as `Stage`.
        """
        links = Links(self.layout, self.rank, self.meeting, store, torch.device(self.device))
        return links, Rank(self.checkpoint, links, self.device, self.dtype)


def ready_key(rank: int, what: str) -> str:
    """The store's entry by which `rank` says that it is ``here``, and later that its shard is ``loaded``."""
    return f"{what}/{rank}"


def run_worker(assignment: Assignment) -> None:
    """Serve rank 0 until it closes the model.

    Raises:
        ConnectionError: rank 0 or another rank is gone.
    """
    if assignment.num_threads is not None:
        torch.set_num_threads(assignment.num_threads)
    store = assignment.meeting.store(assignment.rank, assignment.layout.world_size)
    store.set(ready_key(assignment.rank, "here"), "")
    links, rank = assignment.join(store)
    store.set(ready_key(assignment.rank, "loaded"), "")
    while (message := links.listen()).command is not Command.CLOSE:
        rank.handle(message)


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
