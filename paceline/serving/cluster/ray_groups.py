"""Groups as Ray actors in placement groups, on a Ray of this machine. The only file that imports Ray.

What the groups are told, and what happens when one dies, is decided elsewhere (`dispatcher.py`). Ray's processes listen
on loopback and ask everyone for a token that is made for this run: whoever can reach their ports can run code there.
"""

import asyncio
import logging
import os
import secrets
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from paceline.engine.async_llm import AsyncLLM
from paceline.errors import EngineDead, InvalidParameter, WorkerDied
from paceline.placement.tokens import TokenProfile
from paceline.serving.cluster.plan import ClusterPlan
from paceline.serving.job import Chunk, Job
from paceline.serving.model_spec import ModelSpec
from paceline.serving.worker import OpenModel, Worker, open_model

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
"""Ray's name for "this machine only": its processes then listen at 127.0.0.1. It is read when Ray is imported."""
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
if "ray" not in sys.modules:  # read at the import too; one that was imported before keeps its own habit
    os.environ["RAY_AUTH_MODE"] = "token"

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ModuleNotFoundError:
    raise InvalidParameter("cluster", "Ray is not installed", "pip install 'paceline[cluster]'") from None

OBJECT_STORE_BYTES = 80 * 2**20
"""Ray's least, about: only requests and answers pass through it."""
MAX_CONCURRENCY = 256
"""Calls that an actor may have open besides answers: aborts, checks and the like."""
READY_TIMEOUT = 60.0
"""Seconds until a placement group must have its CPUs."""


class GroupActor(Worker):
    """A worker that also says which process it is."""

    async def pid(self) -> int:
        """Process id of the actor, for tests that end it."""
        return os.getpid()


class RayGroup:
    """A `GroupHandle`: an actor that is made anew at each start, within resources that stay reserved.

    Args:
        models: what it loads.
        open_model: loads one.
        cpus: of each device.
        num_devices: of the group.
    """

    def __init__(self, models: Sequence[ModelSpec], open_model: OpenModel, cpus: float, num_devices: int) -> None:
        self._models, self._open_model, self._cpus = tuple(models), open_model, cpus * num_devices
        self._place = placement_group([{"CPU": self._cpus}], strategy="STRICT_PACK")
        self._actor: Any = None
        self.pid: int | None = None
        """Process of the actor; None before its first start."""

    async def start(self) -> None:
        """See `GroupHandle.start`."""
        if not await self._has_place():
            remedy = "raise num_cpus, or plan for fewer devices"
            raise InvalidParameter("num_cpus", f"{self._cpus:g} CPUs are not free for a group", remedy)
        await self.kill()
        where = PlacementGroupSchedulingStrategy(self._place)
        seats = sum(spec.seats for spec in self._models)
        calls = MAX_CONCURRENCY + seats
        options: Any = {"num_cpus": self._cpus, "max_concurrency": calls, "scheduling_strategy": where}
        actor = ray.remote(GroupActor).options(**options)  # type: ignore[attr-defined]
        self._actor = actor.remote(self._models, self._open_model)
        self.pid = await self._call("pid")

    async def _has_place(self) -> bool:
        return await asyncio.to_thread(self._place.wait, READY_TIMEOUT)

    async def generate(self, job: Job) -> AsyncGenerator[Chunk, None]:
        """See `GroupHandle.generate`."""
        if not job.stream:
            yield await self._call("whole", job)
            return
        with _translated():
            async for reference in self._actor.stream.options(num_returns="streaming").remote(job):
                yield await reference

    async def pass_profiles(self) -> Mapping[str, TokenProfile]:
        """See `Worker.pass_profiles`."""
        return await self._call("pass_profiles")

    async def metrics(self) -> bytes:
        """See `Worker.metrics`."""
        return await self._call("metrics")

    async def abort(self, job: Job) -> None:
        """See `GroupHandle.abort`."""
        await self._call("abort", job)

    async def check(self) -> None:
        """See `GroupHandle.check`."""
        await self._call("check")

    async def kill(self) -> None:
        """See `GroupHandle.kill`."""
        if self._actor is not None:
            ray.kill(self._actor)

    async def _call(self, method: str, *arguments: Any) -> Any:
        with _translated():
            return await getattr(self._actor, method).remote(*arguments)


@contextmanager
def _translated() -> Iterator[None]:
    """Ray's errors become ours: what the worker raised itself, or that it died."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, EngineDead):
            raise WorkerDied(str(error.cause)) from error
        raise (error.cause if isinstance(error.cause, Exception) else WorkerDied(str(error))) from error
    except RayError as error:
        raise WorkerDied(f"the group's process is gone ({type(error).__name__})") from error


def start_groups(
    plan: ClusterPlan, num_cpus: int | None = None, open_model: Callable[..., AsyncLLM] = open_model, **options: Any
) -> list[RayGroup]:
    """Start a Ray of this machine and reserve a place for every group of `plan`.

    The CPUs are shared evenly by the plan's devices, in fractions if there are fewer CPUs than devices.

    Args:
        num_cpus: CPUs for all groups together; None takes those of the machine.
        open_model: loads a model in a group's process, told what `worker.open_model` is told.
        options: for all models, on top of their own and of what the plan says, e.g. ``speculative``.

    Raises:
        InvalidParameter: fewer than one CPU.
    """
    found = len(os.sched_getaffinity(0)) if num_cpus is None else num_cpus
    if found < 1:
        raise InvalidParameter("num_cpus", f"{found}", "give at least 1")
    _start_ray(found)
    cpus = int(1e4 * found / plan.placement.num_devices) / 1e4
    groups = []
    for index, group in enumerate(plan.placement.groups):
        degrees = group.parallel
        opener = partial(
            open_model,
            tensor_parallel_size=degrees.tensor,
            pipeline_parallel_size=degrees.pipeline,
            num_threads=max(1, int(cpus * degrees.num_devices)),
            **options,
        )
        groups.append(RayGroup(plan.held_by(index), opener, cpus, degrees.num_devices))
    return groups


def stop_ray() -> None:
    """End what `start_groups` started."""
    with suppress(RayError):
        ray.shutdown()


def _start_ray(num_cpus: int) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own default gives way to all else on the machine
    ray.init(
        num_cpus=num_cpus,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=OBJECT_STORE_BYTES,
    )
