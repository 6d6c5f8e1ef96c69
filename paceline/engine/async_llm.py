"""`AsyncLLM`: many concurrent clients on one engine, each with its own output stream. HTTP servers use it.

The engine runs on its own thread (`threads/lane.py`); everything here runs on the event loop. A pipeline of several
stages gets one engine per stage, all on the same weights, so that as many steps are in flight as there are stages (Yu
et al. 2022, ORCA, section 4.2). Not the place for protocols or prompt templates.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from statistics import harmonic_mean
from typing import Any, TypeVar

from paceline.config import SpeculativeConfig
from paceline.engine.llm import LLM
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.step import StepOutput
from paceline.engine.metrics import EngineMetrics, Occupancy
from paceline.engine.prometheus import prometheus_text
from paceline.engine.text.prompts import Prompt, plain_prompt
from paceline.engine.threads.lane import Client, Lane
from paceline.engine.threads.turns import Turns
from paceline.errors import EngineDead
from paceline.models.base import RunsInParts
from paceline.models.loaded import LoadedModel
from paceline.models.text.tokenizer import Tokenizer
from paceline.types import SamplingParams

_T = TypeVar("_T")
_TRIES = 2
"""Repetitions of the timing of concurrent steps in `_overlap`."""
_SHORT = 4096
"""Longest prompt, in characters or token ids, that is tokenised or checked on the event loop (at most a millisecond).
Longer ones go to a worker thread; for short ones the two thread switches would cost more than the work."""


class AsyncLLM:
    """An `LLM` for asyncio.

    Args:
        llm: the model to serve; nothing else may use it from now on. Others with its weights (`drafting_with`) run
            their steps in turn with it, but not beside a pipeline of several stages. When it is a name or None, one is
            constructed from that and `options`, the arguments of `LLM`.

    When a client goes away (its task is cancelled, or it leaves its loop over `generate`), its request is aborted and
    its cache pages are freed. After an engine error, every client and every later call gets `EngineDead`.

    Examples:
        >>> llm = AsyncLLM(model="smollm2-135m", speculative="ngram")            # doctest: +SKIP
        >>> async for output in llm.generate("1, 2, 3,"):                        # doctest: +SKIP
        ...     print("".join(token.text for token in output.tokens), end="")
    """

    def __init__(self, llm: LLM | str | None = None, **options: Any) -> None:
        if isinstance(llm, str):
            llm = LLM(llm, **options)
        self._llm = LLM(**options) if llm is None else llm
        self._numbers = itertools.count()
        self._aides = ThreadPoolExecutor(2, thread_name_prefix="paceline-aside")
        engines = self._llm.engines_in_flight()
        weights = self.loaded.turn if len(engines) == 1 else nullcontext()  # a pipeline takes several passes at once
        self._lanes = [Lane(engine, weights) for engine in engines]
        self._lane_of: dict[str, Lane] = {}
        if len(self._lanes) > 1:
            self.take_turns(Turns())

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's tokenizer."""
        return self._llm.tokenizer

    @property
    def speculative(self) -> SpeculativeConfig | None:
        """The drafting configuration; None for plain decoding."""
        return self._llm.speculative

    @property
    def loaded(self) -> LoadedModel:
        """The weights and where they come from."""
        return self._llm.loaded

    @property
    def death(self) -> EngineDead | None:
        """The error that ended an engine; None while all engines run."""
        return next((lane.thread.death for lane in self._lanes if lane.thread.death is not None), None)

    @property
    def step_seconds(self) -> float:
        """Seconds since the current step began (the largest value of several engines); 0 between steps."""
        return max(lane.thread.step_seconds for lane in self._lanes)

    async def chat_prompt(
        self, messages: Sequence[Any], template: Mapping[str, Any] | None = None, **ending: bool
    ) -> list[int]:
        """`LLM.chat_prompt`, with its arguments, on a worker thread."""
        return await self._aside(partial(self._llm.chat_prompt, **ending), messages, template)

    async def token_ids_of(self, prompt: Prompt, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt; long ones are tokenised on a worker thread. Raises as `LLM.token_ids_of`."""
        prompt = plain_prompt(prompt)
        if not isinstance(prompt, Sized) or len(prompt) <= _SHORT:
            return self._llm.token_ids_of(prompt, add_special_tokens)
        return await self._aside(self._llm.token_ids_of, prompt, add_special_tokens)

    def params_for(self, prompt: Prompt, params: SamplingParams) -> SamplingParams:
        """See `LLM.params_for`."""
        return self._llm.params_for(prompt, params)

    def describe(self) -> dict[str, Any]:
        """Model, dtype and drafting configuration as a JSON-ready mapping."""
        llm = self._llm
        config, own = llm.speculative, llm.engine.drafter.name
        return {
            "max_model_len": llm.max_model_len,
            "vocab_size": llm.tokenizer.vocab_size,
            "dtype": llm.dtype,
            "dtype_reason": llm.dtype_reason,
            "has_chat_template": llm.tokenizer.has_chat_template,
            "reads_tools": llm.tokenizer.reads_tools,
            "drafter": None if config is None else own if ":" in config.method else config.method,
            "rule": None if config is None else config.rule,
            "num_draft_tokens": llm.engine.speculation.num_draft_tokens,
        }

    async def _aside(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Run blocking `work` on one of two worker threads, so that it does not block the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._aides, work, *arguments)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
        joined: bool = False,
    ) -> AsyncGenerator[StepOutput, None]:
        """Yield the output step by step. Each item has new tokens of one sample; the last one has `finished` set.

        The text of a sample is that of its tokens, and the `tail` of its last item where it ended by a timeout or
        `abort`.

        Args:
            prompt: as in `LLM.generate`.
            request_id: name for `abort`; generated when None.
            priority, timeout, cache_salt: see `Engine.add_request`.
            joined: merge unread consecutive steps of one sample into one item, without their drafts.

        Raises:
            InvalidParameter: before the first item, when the request cannot be run.
            EngineDead: the engine failed, or was shut down or closed.
        """
        self.loaded.check_open()
        token_ids = await self.token_ids_of(prompt)
        name = f"request-{next(self._numbers)}" if request_id is None else request_id
        params = self._llm.params_for(prompt, sampling_params or SamplingParams())
        if params.structured_outputs is not None or params.prediction:
            params = await self._aside(self._llm.prepared, params)
        client = Client(asyncio.get_running_loop(), asyncio.Queue())
        is_new = name not in self._lane_of  # the engine refuses a name that is in use
        lane = min(self._lanes, key=lambda each: each.num_open) if is_new else self._lane_of[name]

        def add(engine: Engine) -> None:
            engine.add_request(name, token_ids, params, priority=priority, timeout=timeout, cache_salt=cache_salt)

        lane.num_open += 1
        self._lane_of[name] = lane
        try:
            await lane.join(name, client, add)
            while True:
                for output in await client.arrived(joined):
                    if isinstance(output, EngineDead):
                        raise EngineDead(*output.args) from output
                    yield output
                    if output.finished:
                        return
        finally:
            lane.num_open -= 1
            if is_new:
                del self._lane_of[name]
            lane.leave(name, client)

    async def abort(self, request_id: str) -> None:
        """End a request now; its client receives the output so far. Does nothing when the request is not running."""
        lane = self._lane_of.get(request_id)
        if lane is not None:
            await lane.abort(request_id)

    async def metrics(self) -> dict[str, Any]:
        """The engine's metrics as one JSON-ready mapping (`EngineMetrics.record`)."""
        return await self._measured(lambda metrics: metrics.record())

    async def prometheus_text(self, name: str | None = None) -> bytes:
        """The engine's metrics in Prometheus text format, labelled with `name` (default: the model's name)."""
        name = name or self._llm.model_name
        return await self._measured(lambda metrics: prometheus_text(metrics, name))

    async def _measured(self, tell: Callable[[EngineMetrics], _T]) -> _T:
        """`tell` applied to the metrics, summed over several engines. Each engine is read between two of its steps."""
        if len(self._lanes) == 1:
            return await self._lanes[0].run(lambda engine: tell(engine.metrics))
        total = EngineMetrics(Occupancy())
        for lane in self._lanes:
            await lane.run(lambda engine: total.add(engine.metrics))
        return tell(total)

    async def pass_costs(self) -> dict[str, Any]:
        """Step costs and capacity of the engine, as fields of `placement.tokens.TokenProfile`.

        Read from the profile of `paceline tune` where there is one, else measured by a few steps on the engine's
        thread. With several steps in flight, the slowdown that they cause each other is measured as well.
        """
        costs, count = await self.between_steps(self._llm.pass_costs), len(self._lanes)
        costs |= {"seats": count * costs["seats"], "kv_tokens": count * costs["kv_tokens"], "stages": count}
        if count == 1:
            return costs
        decodes, reads = await self._overlap(reads=False), await self._overlap(reads=True)
        return costs | {"overlap": decodes, "prefill_overlap": reads}

    async def _overlap(self, reads: bool) -> float:
        """Throughput of all lanes running concurrently, relative to one lane alone: from 1 to the number of lanes.

        The fastest of `_TRIES` measurements counts, because other processes on the machine only add time.
        """
        step, count = partial(self._llm.step_seconds, reads=reads), len(self._lanes)
        alone, together = float("inf"), float("inf")
        for _ in range(_TRIES):
            alone = min(alone, await self._lanes[0].run(step))
            beside = await asyncio.gather(*(lane.run(step) for lane in self._lanes))
            together = min(together, harmonic_mean(beside))
        return min(max(1.0, count * alone / together), float(count))

    def take_turns(self, turns: Turns) -> None:
        """Run every step within a turn of `turns`, because other engines share the device. Call before the first step.

        With several steps in flight, a turn ends as soon as the pipeline's first stage is free for the next step.
        """
        for lane in self._lanes:
            lane.thread.turns = turns
        model = self.loaded.model
        if len(self._lanes) > 1 and isinstance(model, RunsInParts):
            model.when_first_stage_is_free(turns.leave)

    async def between_steps(self, work: Callable[[Engine], _T]) -> _T:
        """Run `work`, which may run passes, on the (first) engine's thread between two steps.

        Raises:
            EngineDead: that thread has ended.
        """
        return await self._lanes[0].run_passes(work)

    async def shutdown(self) -> None:
        """Stop the engine after its current step; clients that still wait get `EngineDead`."""
        await asyncio.gather(*(asyncio.to_thread(lane.thread.stop) for lane in self._lanes))
        self._aides.shutdown(wait=False, cancel_futures=True)
