"""`Worker`: the models of one group, in the process that runs them. Who asks, and from where, is not its business."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any

from paceline.config import SpeculativeConfig
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.build import silent
from paceline.engine.llm import LLM
from paceline.serving.job import Chunk, Job
from paceline.serving.model_spec import ModelSpec
from paceline.types import NamedProgress

OpenModel = Callable[[ModelSpec], AsyncLLM]
"""Loads a model."""


def open_model(
    spec: ModelSpec, speculative: SpeculativeConfig | None = None, progress: NamedProgress = silent, **engine: Any
) -> AsyncLLM:
    """A model ready to be asked; its own options go before those of `engine`."""
    return AsyncLLM(LLM(spec.path, speculative=speculative, progress=progress, **(engine | dict(spec.engine))))


class Worker:
    """Answers for several models.

    Args:
        models: what to load, by the names that jobs use.
        open_model: loads one.
    """

    def __init__(self, models: Sequence[ModelSpec], open_model: OpenModel) -> None:
        self._llms = {spec.name: open_model(spec) for spec in models}

    async def stream(self, job: Job) -> AsyncGenerator[Chunk, None]:
        """The answer step by step."""
        llm = self._llms[job.model]
        prompt = llm.chat_prompt(job.messages) if job.messages else job.prompt
        assert prompt is not None
        async with aclosing(llm.generate(prompt, job.params, job.request_id)) as outputs:
            async for output in outputs:
                text = "".join(token.text for token in output.tokens)
                if output.finished is None:
                    yield Chunk(text)
                else:
                    done = output.finished
                    yield Chunk(text, done.finish_reason, len(done.prompt_token_ids), len(done.token_ids))

    async def whole(self, job: Job) -> Chunk:
        """The answer in one piece."""
        texts, last = [], Chunk("")
        async with aclosing(self.stream(job)) as chunks:
            async for last in chunks:
                texts.append(last.text)
        return Chunk("".join(texts), last.finish_reason, last.num_prompt_tokens, last.num_output_tokens)

    async def abort(self, job: Job) -> None:
        """End a job; whoever reads its stream sees it end."""
        await self._llms[job.model].abort(job.request_id)

    async def check(self) -> None:
        """Return when all is well. Raises EngineDead when an engine has failed."""
        for llm in self._llms.values():
            if llm.death is not None:
                raise llm.death

    async def metrics(self) -> bytes:
        """Prometheus text of all engines, one after the other."""
        return b"".join([await llm.prometheus_text() for llm in self._llms.values()])

    async def close(self) -> None:
        for llm in self._llms.values():
            await llm.shutdown()
