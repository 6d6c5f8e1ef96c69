"""`LocalBackend`: models in this process; every request goes to the engine at once, which batches them."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

from paceline.errors import InvalidParameter, UnknownModel
from paceline.serving.models.job import Chunk, Job
from paceline.serving.models.model_spec import ModelSpec
from paceline.serving.models.worker import OpenModel, Worker

_HUNG = 300.0
"""Seconds after which a step counts as hung; even a step that compiles kernels is shorter."""


class LocalBackend:
    """A `TextBackend` without a cluster. Deadlines are supported by clusters only and raise an error here.

    Args:
        models: the models to load.
        open_model: loads one model.
        more_metrics: Prometheus text besides the engines'.
    """

    def __init__(
        self, models: Sequence[ModelSpec], open_model: OpenModel, more_metrics: Callable[[], bytes] = bytes
    ) -> None:
        self._more_metrics = more_metrics
        self._models = [spec.name for spec in models]
        self._worker = Worker(models, open_model)

    @property
    def models(self) -> Sequence[str]:
        """See `Backend.models`."""
        return self._models

    def generate(self, job: Job) -> AsyncGenerator[Chunk, None]:
        """See `Backend.generate`."""
        self._check(job.model)
        if job.slo is not None:
            raise InvalidParameter("slo", "is for clusters, and this is one engine", "leave it out, or use timeout")
        return self._worker.stream(job)

    async def tokenize(self, job: Job) -> Sequence[tuple[int, bytes]]:
        """See `TextBackend.tokenize`."""
        self._check(job.model)
        return await self._worker.tokenize(job)

    async def detokenize(self, model: str, token_ids: Sequence[int]) -> str:
        """See `TextBackend.detokenize`."""
        self._check(model)
        return await self._worker.detokenize(model, token_ids)

    def describe(self, model: str) -> Mapping[str, Any]:
        """See `Backend.describe`."""
        self._check(model)
        return self._worker.describe(model)

    async def state(self) -> Mapping[str, Any]:
        """See `TextBackend.state`."""
        return await self._worker.state()

    def health(self) -> Mapping[str, Any]:
        """See `Backend.health`."""
        death = self._worker.death
        if death is not None:
            return {"status": "down", "reason": str(death)}
        if self._worker.step_seconds > _HUNG:
            return {"status": "down", "reason": f"the engine's present step runs for over {_HUNG:g} s"}
        return {"status": "ok"}

    async def metrics(self) -> bytes:
        """See `Backend.metrics`."""
        return await self._worker.metrics() + self._more_metrics()

    async def close(self) -> None:
        """See `Backend.close`."""
        await self._worker.close()

    def _check(self, model: str) -> None:
        if model not in self._models:
            raise UnknownModel("model", f"{model[:100]!r} is unknown", f"use one of {', '.join(self._models)}")
