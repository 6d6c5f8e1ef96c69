"""`Links`: communication of one rank with the others, over torch.distributed's gloo (CPU) or nccl (CUDA) groups.

The groups belong to one model: torch's global default group is not used, so one process can hold several parallel
models. Commands use gloo on every device; hidden states and all-reduces use the device's own backend.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage] (documented)

from paceline.models.torch_executor.parallel.layout import Layout
from paceline.models.torch_executor.parallel.messages import FIRST, Message, decode, length_of_rest
from paceline.models.torch_executor.shard import Shard

LOOPBACK = "127.0.0.1"
_FOREVER = timedelta(days=365)
"""How long a rank waits for its next command; the death of rank 0 ends the wait at once."""
_NEVER_SENT = 1
"""Tag of a message that is waited for only to learn that the connection has ended."""


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """The rendezvous of the ranks of one model.

    Attributes:
        host, port: address of rank 0's store; rank 0 may give port 0 to take a free one.
        timeout: seconds that a rank waits for another during work, and for all to arrive.
    """

    host: str = LOOPBACK
    port: int = 0
    timeout: float = 600.0

    def store(self, rank: int, world_size: int) -> TCPStore:
        """The store that the ranks share; rank 0 serves it, the others connect to it.

        Raises:
            ConnectionError: rank 0 cannot be reached.
        """
        try:
            return TCPStore(self.host, self.port, world_size, rank == 0, timedelta(seconds=self.timeout), False)
        except RuntimeError as error:
            raise ConnectionError(f"rank {rank} cannot meet the others at {self.host}:{self.port}: {error}") from error


Sent = list[tuple[Any, Tensor]]
"""Sends in progress: each with its work handle and its tensor, which must live until the send has completed."""


class Links:
    """The process groups of `rank`; all ranks must create them at the same time, because each waits for the others.

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

    @property
    def shard(self) -> Shard:
        """The shard of this rank."""
        return self.layout.shard(self.rank)

    def connect(self) -> None:
        """Make the connections of passes now; all ranks call this. NCCL makes each at its first use, with memory of its
        own, which a cache may have taken by then."""
        one, step = torch.zeros(1, device=self._device), self.layout.tensor_size
        self.total(one)
        self.spread(one)
        if self.rank >= step:
            self.receive((1,), torch.float32, self.rank - step)
        if self.rank + step < self.layout.world_size:
            self.hand(one, self.rank + step)
        for stage in range(2, len(self.layout.stages)):  # whose first ranks send the states of taps to rank 0
            first = self.layout.ranks_of(stage)[0]
            if self.rank == first:
                self.hand(one, 0)
            elif self.rank == 0:
                self.receive((1,), torch.float32, first)

    def total(self, part: Tensor) -> Tensor:
        """The sum of `part`, which may be overwritten, over the ranks that share this stage."""
        if self._peers is not None:
            part = part.contiguous()
            with self._reached():
                self._peers.allreduce([part]).wait()
        return part

    def gathered(self, part: Tensor) -> Tensor:
        """[ranks, *shape]: `part` of every rank that shares this stage, in order of rank."""
        part = part.contiguous()
        found = part.new_empty(self.layout.tensor_size, *part.shape)
        if self._peers is None or not part.numel():
            return found.copy_(part)
        with self._reached():
            self._peers._allgather_base(found.view(-1), part.view(-1)).wait()
        return found

    def spread(self, tensor: Tensor, rank: int = 0) -> None:
        """Overwrite a contiguous `tensor` on every rank of the model by that of `rank`."""
        group = self._peers if len(self.layout.stages) == 1 else self._data
        if group is not None and tensor.numel():
            with self._reached():
                group.broadcast(tensor, rank).wait()

    def hand(self, tensor: Tensor, rank: int) -> None:
        """Send a tensor to `rank`, which calls `receive`, and wait until it has taken it; on a GPU the device waits."""
        if tensor.numel():
            with self._reached():
                self._data.send([tensor.contiguous()], rank, 0).wait()

    def send(self, tensor: Tensor, rank: int) -> None:
        """Send a tensor to `rank`, which must receive in the order of sending. Returns before it has arrived."""
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
        """The sends that may still be in progress, to be passed to `flush` by the caller."""
        sent, self._sending = self._sending, []
        return sent

    def flush(self, sent: Sent) -> None:
        """Wait until all sends in `sent` have completed."""
        with self._reached():
            for work, _ in sent:
                work.wait()

    def wait_for_all(self) -> None:
        """Barrier: wait until every rank has called this."""
        with self._reached():
            self._commands.barrier().wait()

    def tell(self, message: Message) -> None:
        """On rank 0, send every rank its next command. Returns before they receive it, as they may be busy.

        The command is sent to each rank separately. In a broadcast, a busy rank would delay the ranks after it.
        """
        parts = [part for part in message.tensors() if len(part)]
        with self._reached():
            for rank in range(1, self.layout.world_size):
                self._sending += [(self._commands.send([part], rank, 0), part) for part in parts]

    def listen(self) -> Message:
        """On the other ranks, wait for the next command without a time limit."""
        first = torch.empty(FIRST, dtype=torch.int32)
        with self._reached():
            self._commands.recv([first], 0, 0).wait(_FOREVER)
            rest = torch.empty(length_of_rest(first), dtype=torch.int32)
            if len(rest):
                self._commands.recv([rest], 0, 0).wait()
        return decode(first, rest)

    def guard(self, ranks: Iterable[int], when_gone: Callable[[ConnectionError], object]) -> None:
        """Call `when_gone`, on a thread of its own, when one of `ranks` has ended.

        With gloo a call that waits for that rank fails then; work on a GPU would wait for ever.
        """

        def wait_for_end_of(rank: int) -> None:
            try:
                with self._reached():
                    self._commands.recv([torch.empty(1)], rank, _NEVER_SENT).wait(_FOREVER)
            except ConnectionError as error:
                when_gone(error)

        for rank in ranks:
            threading.Thread(target=wait_for_end_of, args=(rank,), daemon=True).start()

    def abort(self) -> None:
        """End the work between ranks that is in progress on the device; the groups cannot be used afterwards.

        Each group has a thread: NCCL ends the work at once, but then waits until all graphs that hold collectives of
        the group are gone, one of which may be waiting for the other group.
        """

        def end(group: Any) -> None:
            with suppress(RuntimeError):  # they are still held when the time limit has passed
                group.abort()

        for group in (self._peers, self._data):
            if group is not None:
                threading.Thread(target=end, args=(group,), daemon=True).start()

    @contextmanager
    def _reached(self) -> Iterator[None]:
        """A context that turns the RuntimeError of torch for a lost or late rank into a ConnectionError."""
        try:
            yield
        except RuntimeError as error:
            raise ConnectionError(f"rank {self.rank} lost another rank: {error}") from error

    def _group(self, name: str, ranks: range, device: torch.device) -> Any:
        store, own = PrefixStore(name, self._store), ranks.index(self.rank)
        timeout = timedelta(seconds=self._meeting.timeout)
        if device.type == "cuda":
            # Torch would end this process when another rank is lost; see `guard`. Recording graphs needs it off, too.
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout
            return dist.ProcessGroupNCCL(store, own, len(ranks), options)
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._timeout = timeout
        here = self._meeting.host in (LOOPBACK, "localhost")
        options._devices = [gloo.create_device(hostname=LOOPBACK) if here else gloo.create_default_device()]
        return gloo(store, own, len(ranks), options)
