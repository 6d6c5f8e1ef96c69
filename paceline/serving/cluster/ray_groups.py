"""Groups as Ray actors in placement groups, on a Ray of this machine or one that runs already.

Ray places the groups and assigns each its reserved devices. On an existing Ray cluster a group of several devices may
span nodes; its ranks are then separate actors. Not for dispatch and recovery (`dispatcher.py`), or for starting Ray or
joining one (`ray_session.py`).
"""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from paceline.engine.async_llm import AsyncLLM
from paceline.errors import EngineDead, InvalidParameter, WorkerDied
from paceline.extras import needs_ray
from paceline.models.processors import check_threads
from paceline.placement.tokens import TokenProfile
from paceline.serving.cluster.plan import ClusterPlan
from paceline.serving.cluster.ray_session import join_ray, start_ray
from paceline.serving.models.job import Chunk, Job
from paceline.serving.models.model_spec import ModelSpec
from paceline.serving.models.worker import OpenModel, Worker, open_model

with needs_ray():
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

MAX_CONCURRENCY = 256
"""Concurrent calls of an actor besides answers: aborts, checks and the like."""
ACCELERATOR, A_BIT = "accelerator_type:", 0.001
"""Resource that Ray gives each node by its GPUs, such as ``accelerator_type:H100``, and how much of it a part takes: it
only says where the part may lie."""
READY_TIMEOUT = 60.0
"""Timeout in seconds for a placement group's reservation."""
_OWN_NAME = re.compile(r"^paceline\.errors\.\w+: ")
"""Prefix of the message of this project's errors when Ray reports them."""
READY_SECONDS = 5.0
"""Timeout in seconds for Ray to report that an actor has ended."""


class RankActor:
    """A rank other than 0 of a model that spans devices of several nodes."""

    def run(self, assignment: Any) -> None:
        """See `run_worker`."""
        from paceline.models.torch_executor.parallel import run_worker

        run_worker(assignment)


class RayWorkers:
    """`Workers` that are Ray actors, each in a bundle of the group's placement group.

    Args:
        assignments: of ranks 1 and up; rank r takes bundle r.
        bundle: what each bundle holds.
    """

    def __init__(self, bundle: Mapping[str, float], assignments: Sequence[Any]) -> None:
        self._actors, self._runs = [], []
        place: Any = ray.util.get_current_placement_group()
        for assignment in assignments:
            where = PlacementGroupSchedulingStrategy(place, assignment.rank)
            cpus, gpus = bundle["CPU"], bundle.get("GPU", 0.0)
            options: Any = {"num_cpus": cpus, "num_gpus": gpus, "scheduling_strategy": where}
            self._actors.append(ray.remote(RankActor).options(**options).remote())  # type: ignore[attr-defined]
            self._runs.append(self._actors[-1].run.remote(assignment))

    def check(self) -> None:
        """Raise WorkerDied when a rank has ended."""
        ended, _ = ray.wait(self._runs, num_returns=len(self._runs), timeout=0)
        if ended:
            raise self._death(ended[0], "")

    def obituary(self, symptom: str = "") -> WorkerDied:
        """A WorkerDied error that names the first rank that ended and the reason, as far as Ray reports it in time."""
        ended, _ = ray.wait(self._runs, num_returns=1, timeout=READY_SECONDS)
        return self._death(ended[0], symptom) if ended else WorkerDied(f"the ranks lost each other ({symptom})")

    def stop(self, grace: float = 5.0) -> None:
        """End all ranks; kill those that still run after `grace` seconds."""
        if grace:
            ray.wait(self._runs, num_returns=len(self._runs), timeout=grace)
        for actor in self._actors:
            ray.kill(actor)

    def _death(self, run: Any, symptom: str) -> WorkerDied:
        rank = 1 + self._runs.index(run)
        try:
            ray.get(run)
        except RayError as error:
            return WorkerDied(f"the worker of rank {rank} ended: {str(error).splitlines()[-1]}")
        return WorkerDied(f"the worker of rank {rank} ended {symptom}".rstrip())


class GroupActor(Worker):
    """A `Worker` that also reports its process id.

    Args:
        models, open_model: see `Worker`.
        bundle: where the ranks of its models are actors in bundles of their own, what each of these holds.
    """

    def __init__(
        self, models: Sequence[ModelSpec], open_model: OpenModel, bundle: Mapping[str, float] | None = None
    ) -> None:
        if bundle is None:
            super().__init__(models, open_model)
            return
        from paceline.models.torch_executor.parallel import Elsewhere, elsewhere

        where = Elsewhere(ray.util.get_node_ip_address(), partial(RayWorkers, bundle))
        with elsewhere(where):
            super().__init__(models, open_model)

    async def pid(self) -> int:
        """Process id of the actor, for tests that end it."""
        return os.getpid()


class RayGroup:
    """A `GroupHandle` whose actor is created anew at each start, within resources that stay reserved.

    Args:
        models: the models to load.
        open_model: loads one model.
        cpus, gpus: per device.
        num_devices: of the group.
        may_span: whether its devices may be on several nodes; otherwise all of its processes are on one.
        device: Ray's name of the device type; "" for any.
    """

    def __init__(
        self,
        models: Sequence[ModelSpec],
        open_model: OpenModel,
        cpus: float,
        num_devices: int,
        gpus: float = 0.0,
        may_span: bool = False,
        device: str = "",
    ) -> None:
        self._models, self._open_model = tuple(models), open_model
        self._is_spread = may_span and num_devices > 1
        count = 1 if self._is_spread else num_devices
        self._bundle = {"CPU": cpus * count} | ({"GPU": gpus * count} if gpus else {})
        self._bundle |= {ACCELERATOR + device.upper(): A_BIT} if device else {}
        bundles = [dict(self._bundle) for _ in range(num_devices if self._is_spread else 1)]
        self._place = placement_group(bundles, strategy="PACK" if self._is_spread else "STRICT_PACK")
        self._actor: Any = None
        self.pid: int | None = None
        """Process of the actor; None before its first start."""

    async def start(self) -> None:
        """See `GroupHandle.start`."""
        if not await self._has_place():
            need = ", ".join(f"{amount:g} {name}" for name, amount in self._bundle.items())
            remedy = "raise num_cpus, add nodes, or plan for fewer devices"
            raise InvalidParameter("cluster", f"{need} are not free for a group's part", remedy)
        await self.kill()
        where = PlacementGroupSchedulingStrategy(self._place, 0)
        seats = sum(spec.seats for spec in self._models)
        calls = MAX_CONCURRENCY + seats
        amounts = {"num_cpus": self._bundle["CPU"], "num_gpus": self._bundle.get("GPU", 0.0)}
        options: Any = {**amounts, "max_concurrency": calls, "scheduling_strategy": where}
        actor = ray.remote(GroupActor).options(**options)  # type: ignore[attr-defined]
        bundle = self._bundle if self._is_spread else None
        self._actor = actor.remote(self._models, self._open_model, bundle)
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

    async def max_model_lens(self) -> Mapping[str, int]:
        """See `Worker.max_model_lens`."""
        return await self._call("max_model_lens")

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
    """Translate Ray's errors: to the error that the worker raised, or to WorkerDied."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, EngineDead):
            raise WorkerDied(str(error.cause)) from error
        raise (error.cause if isinstance(error.cause, Exception) else WorkerDied(str(error))) from error
    except RayError as error:
        lines = str(error).split("creation task, ", 1)[1:]  # what it raised when it was made
        why = f": {_OWN_NAME.sub('', lines[0].strip().splitlines()[-1])}" if lines and lines[0].strip() else ""
        raise WorkerDied(f"the group's process is gone ({type(error).__name__}){why}") from error


def start_groups(
    plan: ClusterPlan,
    num_cpus: int | None = None,
    open_model: Callable[..., AsyncLLM] = open_model,
    address: str | None = None,
    **options: Any,
) -> list[RayGroup]:
    """Start Ray on this machine, or join an existing cluster, and reserve resources for every group of `plan`.

    The CPUs are divided evenly among the plan's devices, in fractions if there are fewer CPUs than devices. Devices of
    a group with a model whose engine has ``device="cuda"`` are GPUs. On an existing cluster, weights must be available
    on every node under their paths.

    Args:
        num_cpus: CPUs for all groups together; None takes those of the machine or cluster.
        open_model: loads a model in a group's process, with the arguments of `worker.open_model`.
        address: host:port of an existing cluster, or ``auto``; its token, if any, is in Ray's environment variables.
        options: for all models, overriding their own and those of the plan, e.g. ``speculative``.

    Raises:
        InvalidParameter: fewer than one CPU or more than could help, a Ray that cannot be reached, or several types of
            devices without one.
    """
    _check_cpus(num_cpus, address)
    typed = next((group.parallel.device for group in plan.placement.groups if group.parallel.device), "")
    if typed and address is None:
        problem = f"of type {typed!r} are planned for, those of one machine are alike"
        raise InvalidParameter("devices", problem, "join a Ray that has them (--ray-address)")
    gpus = [_has_gpus(plan.held_by(index), options) for index in range(len(plan.placement.groups))]
    if address is None:
        found = float(num_cpus or len(os.sched_getaffinity(0)))
        pairs = zip(plan.placement.groups, gpus, strict=True)
        start_ray(int(found), sum(group.parallel.num_devices for group, has in pairs if has))
    else:
        join_ray(address)
        found = float(num_cpus or ray.cluster_resources().get("CPU", 1.0))
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
        where = {"gpus": float(gpus[index]), "may_span": address is not None, "device": degrees.device}
        groups.append(RayGroup(plan.held_by(index), opener, cpus, degrees.num_devices, **where))
    return groups


def _check_cpus(num_cpus: int | None, address: str | None) -> None:
    """Raise InvalidParameter for fewer CPUs than one, or more than could help on this machine."""
    if num_cpus is not None and num_cpus < 1:
        raise InvalidParameter("num_cpus", f"{num_cpus}", "give at least 1")
    if address is None:
        try:
            check_threads(num_cpus)
        except InvalidParameter as error:
            raise InvalidParameter("num_cpus", error.problem, "lower it, or leave it out") from None


def _has_gpus(models: Sequence[ModelSpec], options: Mapping[str, Any]) -> bool:
    """Whether each device of a group is a GPU: one of its models runs there."""
    return any(str({**options, **spec.engine}.get("device", "cpu")).startswith("cuda") for spec in models)
