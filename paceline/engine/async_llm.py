"""`AsyncLLM`: many clients on one engine, each with a stream of its own. What an HTTP server sits on.

The engine runs on a thread of its own (`lane.py`); everything here runs on the event loop. Where a pipeline has several
stages there are as many engines on the same weights, so that as many steps are in flight (Yu et al. 2022, ORCA, section
4.2). Not the place for protocols or prompts' templates.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import harmonic_mean
from typing import Any, TypeVar

from paceline.config import SpeculativeConfig
from paceline.engine.engine import Engine, StepOutput
from paceline.engine.lane import Client, Lane
from paceline.engine.llm import LLM, Prompt
from paceline.engine.metrics import EngineMetrics, Occupancy
from paceline.engine.prometheus import prometheus_text
from paceline.engine.turns import Turns
from paceline.errors import EngineDead
from paceline.models.base import RunsInParts
from paceline.models.loaded import LoadedModel
from paceline.models.tokenizer import Tokenizer
from paceline.types import SamplingParams

_T = TypeVar("_T")
_TRIES = 2
"""Times that steps beside each other are timed."""
_SHORT = 4096
"""Token ids that are checked, and characters that are tokenised, on the event loop: a millisecond at most. A thread
beside it would cost every short prompt two changes of threads."""


class AsyncLLM:
    """An `LLM` for asyncio.

    Args:
        llm: a model made for this; nobody else may use it from now on. Left out, one is made of the other arguments,
            which are those of `LLM`.

    A client that goes away (its task is cancelled, or its loop over `generate` is left) has its request aborted and its
    memory freed. An error of the engine reaches every client as `EngineDead`, and every later call too.

    Examples:
        >>> llm = AsyncLLM(model="smollm2-135m", speculative="ngram")            # doctest: +SKIP
        >>> async for output in llm.generate("1, 2, 3,"):                        # doctest: +SKIP
        ...     print("".join(token.text for token in output.tokens), end="")
    """

    def __init__(self, llm: LLM | None = None, **options: Any) -> None:
        self._llm = LLM(**options) if llm is None else llm
        self._numbers = itertools.count()
        self._aides = ThreadPoolExecutor(2, thread_name_prefix="paceline-aside")
        self._lanes = [Lane(engine) for engine in self._llm.engines_in_flight()]
        self._lane_of: dict[str, Lane] = {}
        if len(self._lanes) > 1:
            self.take_turns(Turns())

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the target."""
        return self._llm.tokenizer

    @property
    def speculative(self) -> SpeculativeConfig | None:
        """How it drafts; None for plain decoding."""
        return self._llm.speculative

    @property
    def loaded(self) -> LoadedModel:
        """The weights and where they come from."""
        return self._llm.loaded

    @property
    def death(self) -> EngineDead | None:
        """Why nothing can be generated any more; None while all is well."""
        return next((lane.thread.death for lane in self._lanes if lane.thread.death is not None), None)

    @property
    def step_seconds(self) -> float:
        """How long the engine's present step has taken, the longest of several; 0 between steps."""
        return max(lane.thread.step_seconds for lane in self._lanes)

    def chat_prompt(self, messages: Sequence[Any]) -> list[int]:
        """Token ids of a conversation in the model's chat template, ready for the answer."""
        return self._llm.chat_prompt(messages)

    async def chat_tokens(self, messages: Sequence[Any], template: Mapping[str, Any] | None = None) -> list[int]:
        """The same off the event loop; `template` is told to the chat template besides."""
        return await self._aside(self._llm.chat_prompt, messages, template)

    async def tokens(self, prompt: Prompt, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt; long ones are tokenised off the event loop. Raises InvalidParameter as of `LLM`."""
        if len(prompt) <= _SHORT:
            return self._llm.token_ids_of(prompt, add_special_tokens)
        return await self._aside(self._llm.token_ids_of, prompt, add_special_tokens)

    def describe(self) -> dict[str, Any]:
        """What the model is and how it is run, JSON-ready."""
        llm = self._llm
        config, own = llm.speculative, llm.engine.drafter.name
        return {
            "max_model_len": llm.max_model_len,
            "vocab_size": llm.tokenizer.vocab_size,
            "dtype": llm.dtype,
            "has_chat_template": llm.tokenizer.has_chat_template,
            "reads_tools": llm.tokenizer.reads_tools,
            "tags_calls": llm.tokenizer.tags_calls,
            "drafter": None if config is None else own if ":" in config.method else config.method,
            "rule": None if config is None else config.rule,
            "num_draft_tokens": llm.engine.speculation.most,
        }

    async def _aside(self, work: Callable[..., _T], *arguments: Any) -> _T:
        """Run `work` on one of two threads kept for what would hold up the event loop."""
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
        """The output, step by step: new tokens of one sample at a time; the last item has `finished`.

        Args:
            prompt: text or token ids.
            request_id: for `abort`; made up when left out.
            priority, timeout, cache_salt: see `Engine.add_request`.
            joined: steps of one sample that wait to be read come as one item, without their drafts.

        Raises:
            InvalidParameter: before the first item, when the request cannot be run.
            EngineDead: the engine failed or was shut down.
        """
        token_ids = await self.tokens(prompt)
        name = f"request-{next(self._numbers)}" if request_id is None else request_id
        params = sampling_params or SamplingParams()
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
        """End a request now; its client gets the output so far. Nothing happens when it is not running."""
        lane = self._lane_of.get(request_id)
        if lane is not None:
            await lane.abort(request_id)

    async def metrics(self) -> dict[str, Any]:
        """The engine's metrics as one JSON-ready mapping (`EngineMetrics.record`)."""
        return await self._measured(lambda metrics: metrics.record())

    async def prometheus_text(self, name: str | None = None) -> bytes:
        """The engine's metrics for a scraper, labelled with the model's own name or `name`."""
        name = name or self._llm.model_name
        return await self._measured(lambda metrics: prometheus_text(metrics, name))

    async def _measured(self, tell: Callable[[EngineMetrics], _T]) -> _T:
        """What `tell` says of the metrics, those of several engines added up; each is read between two of its steps."""
        if len(self._lanes) == 1:
            return await self._lanes[0].run(lambda engine: tell(engine.metrics))
        total = EngineMetrics(Occupancy())
        for lane in self._lanes:
            await lane.run(lambda engine: total.add(engine.metrics))
        return tell(total)

    async def pass_costs(self) -> dict[str, Any]:
        """What the engine's passes cost and what it has room for, as `placement.tokens.TokenProfile` has it.

        `paceline tune`'s profile where there is one, else a handful of passes on the engine's own thread. Where several
        steps are in flight, how far they hold each other up is timed as well.
        """
        costs, count = await self._lanes[0].run(self._llm.pass_costs), len(self._lanes)
        costs |= {"seats": count * costs["seats"], "kv_tokens": count * costs["kv_tokens"], "stages": count}
        if count == 1:
            return costs
        decodes, reads = await self._overlap(reads=False), await self._overlap(reads=True)
        return costs | {"overlap": decodes, "prefill_overlap": reads}

    async def _overlap(self, reads: bool) -> float:
        """Seconds of steps that go by in a second while all lanes are at work: from 1 to their number.

        The quicker of two tries counts: whatever else runs on the machine only holds them up.
        """
        step, count = partial(self._llm.step_seconds, reads=reads), len(self._lanes)
        alone, together = float("inf"), float("inf")
        for _ in range(_TRIES):
            alone = min(alone, await self._lanes[0].run(step))
            beside = await asyncio.gather(*(lane.run(step) for lane in self._lanes))
            together = min(together, harmonic_mean(beside))
        return min(max(1.0, count * alone / together), float(count))

    @property
    def steps_in_flight(self) -> int:
        """Steps that may run at once: a pipeline's stages, else 1."""
        return len(self._lanes)

    def take_turns(self, turns: Turns) -> None:
        """Run no step but in its turn, because other models share the device; to be called before the first one.

        Of several steps in flight a turn is over when the pipeline's first stage is free for the next.
        """
        for lane in self._lanes:
            lane.thread.turns = turns
        model = self.loaded.model
        if len(self._lanes) > 1 and isinstance(model, RunsInParts):
            model.when_first_stage_is_free(turns.leave)

    async def between_steps(self, work: Callable[[Engine], _T]) -> _T:
        """Run `work` on the (first) engine's thread between two steps. Raises EngineDead when it has ended."""
        return await self._lanes[0].run(work)

    async def shutdown(self) -> None:
        """End the engine after its current step; clients that still wait get `EngineDead`."""
        await asyncio.gather(*(asyncio.to_thread(lane.thread.stop) for lane in self._lanes))
        self._aides.shutdown(wait=False, cancel_futures=True)
