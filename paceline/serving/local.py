"""`LocalBackend`: models in this process, every request let in at once and batched by the engine."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from paceline.errors import EngineDead, InvalidParameter
from paceline.serving.job import Chunk, Job
from paceline.serving.model_spec import ModelSpec
from paceline.serving.worker import OpenModel, Worker


class LocalBackend:
    """A `Backend` without a cluster. Deadlines are not enforced.

    Args:
        models: what to load.
        open_model: loads one.
    """

    def __init__(self, models: Sequence[ModelSpec], open_model: OpenModel) -> None:
        self._models = [spec.name for spec in models]
        self._worker = Worker(models, open_model)
        self._death: EngineDead | None = None

    @property
    def models(self) -> Sequence[str]:
        return self._models

    async def generate(self, job: Job) -> AsyncGenerator[Chunk, None]:
        """See `Backend.generate`."""
        if job.model not in self._models:
            raise InvalidParameter("model", f"{job.model!r} is unknown", f"use one of {', '.join(self._models)}")
        try:
            async with aclosing(self._worker.stream(job)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except EngineDead as death:
            self._death = death
            raise

    def health(self) -> Mapping[str, Any]:
        return {"status": "ok"} if self._death is None else {"status": "down", "reason": str(self._death)}

    async def metrics(self) -> bytes:
        return await self._worker.metrics()

    async def close(self) -> None:
        await self._worker.close()
