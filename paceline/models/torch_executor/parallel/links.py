"""`Links`: what one rank can say to the others, over torch.distributed's gloo (CPU) or nccl (CUDA) groups.

The groups are objects of this model alone: torch's global default group stays untouched, so several parallel models
can live in one process. Commands go over gloo on every device; hidden states and sums over the device's own backend.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage] (documented)

from paceline.models.torch_executor.parallel.layout import Layout
from paceline.models.torch_executor.parallel.messages import HEADER_LENGTH, Message, decode, payload_length

LOOPBACK = "127.0.0.1"
_FOREVER = timedelta(days=365)
"""How long a rank waits for its next command; the death of rank 0 ends the wait at once."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the ranks of one model meet.

    Attributes:
        host, port: of rank 0's store; rank 0 may give port 0 to take a free one.
        timeout: seconds that a rank waits for another in the middle of work, and for all to arrive.
    """

    host: str = LOOPBACK
    port: int = 0
    timeout: float = 600.0

    def store(self, rank: int, world_size: int) -> TCPStore:
        """The store that the ranks share; rank 0 serves it, the others come to it.

        Raises:
            ConnectionError: rank 0 is not there.
        """
        try:
            return TCPStore(self.host, self.port, world_size, rank == 0, timedelta(seconds=self.timeout), False)
        except RuntimeError as error:
            raise ConnectionError(f"rank {rank} cannot meet the others at {self.host}:{self.port}: {error}") from error


Sent = list[tuple[Any, Tensor]]
"""What is on its way: the work that waits for its arrival, and the tensor, which must live until then."""


class Links:
    """The groups of `rank`; made by every rank at the same time, because each waits for the others.

    Raises:
        ConnectionError: here and from every method, when a rank is gone or does not answer in time.
    """

    def __init__(self, layout: Layout, rank: int, meeting: Rendezvous, store: Store, device: torch.device) -> None:
        self.rank, self.layout, self._device = rank, layout, device
        self._meeting, self._store = meeting, store
        self._sending: Sent = []
        world = range(layout.world_size)
        peers = layout.ranks_of(layout.stage_of(rank))
        with self._reached():
            self._commands = self._group("commands", world, torch.device("cpu"))
            self._data = self._group("data", world, device)
            self._peers = self._group(f"stage-{layout.stage_of(rank)}", peers, device) if len(peers) > 1 else None

    def total(self, part: Tensor) -> Tensor:
        """The sum of `part`, which may be overwritten, over the ranks that share this stage."""
        if self._peers is not None:
            part = part.contiguous()
            with self._reached():
                self._peers.allreduce([part]).wait()
        return part

    def send(self, tensor: Tensor, rank: int) -> None:
        """Give a tensor to `rank`, which must receive in the order of sending. Returns before it has arrived."""
        if not tensor.numel():
            return
        tensor = tensor.contiguous()
        with self._reached():
            self._sending.append((self._data.send([tensor], rank, 0), tensor))

    def receive(self, shape: Sequence[int], dtype: torch.dtype, rank: int) -> Tensor:
        """The next tensor from `rank`."""
        tensor = torch.empty(tuple(shape), dtype=dtype, device=self._device)
        if tensor.numel():
            with self._reached():
                self._data.recv([tensor], rank, 0).wait()
        return tensor

    def take_sent(self) -> Sent:
        """What was sent and perhaps has not arrived, for `flush`; whoever takes it waits for it."""
        sent, self._sending = self._sending, []
        return sent

    def flush(self, sent: Sent) -> None:
        """Wait until all of `sent` has arrived."""
        with self._reached():
            for work, _ in sent:
                work.wait()

    def wait_for_all(self) -> None:
        """Go on when every rank has come here."""
        with self._reached():
            self._commands.barrier().wait()

    def tell(self, message: Message) -> None:
        """Rank 0: give every rank its next command. Returns before they have it: they may be busy with another.

        Each is told by itself. A broadcast goes from rank to rank, so that a busy one would keep the next waiting.
        """
        parts = [part for part in (message.header(), message.payload()) if len(part)]
        with self._reached():
            for rank in range(1, self.layout.world_size):
                self._sending += [(self._commands.send([part], rank, 0), part) for part in parts]

    def listen(self) -> Message:
        """The other ranks: the next command, whenever it comes."""
        header = torch.empty(HEADER_LENGTH, dtype=torch.int64)
        with self._reached():
            self._commands.recv([header], 0, 0).wait(_FOREVER)
            payload = torch.empty(payload_length(header), dtype=torch.int32)
            if len(payload):
                self._commands.recv([payload], 0, 0).wait()
        return decode(header, payload)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """torch reports a rank that is gone or late as a RuntimeError."""
        try:
            yield
        except RuntimeError as error:
            raise ConnectionError(f"rank {self.rank} lost another rank: {error}") from error

    def _group(self, name: str, ranks: range, device: torch.device) -> Any:
        store, own = PrefixStore(name, self._store), ranks.index(self.rank)
        timeout = timedelta(seconds=self._meeting.timeout)
        if device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            return dist.ProcessGroupNCCL(store, own, len(ranks), options)
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timeout
        here = self._meeting.host in (LOOPBACK, "localhost")
        options._devices = [gloo.create_device(hostname=LOOPBACK) if here else gloo.create_default_device()]
        return gloo(store, own, len(ranks), options)
