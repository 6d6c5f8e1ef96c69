"""`AsyncLLM`: many clients on one engine, each with a stream of its own. What an HTTP server sits on.

The engine runs on a thread of its own (`engine_thread.py`); everything here runs on the event loop. Not the place for
protocols or prompts' templates.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, TypeVar

from paceline.config import SpeculativeConfig
from paceline.engine.engine import Engine, StepOutput
from paceline.engine.engine_thread import EngineThread
from paceline.engine.llm import LLM, Prompt
from paceline.engine.prometheus import prometheus_text
from paceline.errors import EngineDead
from paceline.models.loaded import LoadedModel
from paceline.models.tokenizer import Tokenizer
from paceline.types import SamplingParams

_T = TypeVar("_T")
_Mail = StepOutput | EngineDead
_SHORT = 4096
"""Token ids that are checked, and characters that are tokenised, on the event loop: a millisecond at most. A thread
beside it would cost every short prompt two changes of threads."""
_PAUSE = 0.02
"""Seconds between wake-ups of an event loop for tokens that can wait. Every processor of a small machine is busy with a
pass, so whoever wakes up meanwhile holds it up."""


@dataclass(eq=False, slots=True)
class _Client:
    """Who waits for a request; `has_begun` once it was sent something."""

    loop: asyncio.AbstractEventLoop
    inbox: "asyncio.Queue[_Mail]"
    has_begun: bool = False


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
        self._clients: dict[str, _Client] = {}
        self._held: dict[asyncio.AbstractEventLoop, list[tuple[_Client, _Mail]]] = {}
        self._woken = 0.0
        self._thread = EngineThread(self._llm.engine, self._deliver, self._deliver_death)

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
        return self._thread.death

    @property
    def step_seconds(self) -> float:
        """How long the engine's present step has taken; 0 between steps."""
        return self._thread.step_seconds

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
        client = _Client(asyncio.get_running_loop(), asyncio.Queue())

        def add(engine: Engine) -> None:
            engine.add_request(name, token_ids, params, priority=priority, timeout=timeout, cache_salt=cache_salt)
            self._clients[name] = client
            self._send()  # its prompt is read next, which may take a while

        added = self._thread.call(add)
        try:
            await asyncio.wrap_future(added)
            while True:
                mail = [await client.inbox.get()]
                while not client.inbox.empty():
                    mail.append(client.inbox.get_nowait())
                for output in _joined(mail) if joined and len(mail) > 1 else mail:
                    if isinstance(output, EngineDead):
                        raise EngineDead(*output.args) from output
                    yield output
                    if output.finished:
                        return
        finally:
            self._leave(name, client)

    async def abort(self, request_id: str) -> None:
        """End a request now; its client gets the output so far. Nothing happens when it is not running."""

        def end(engine: Engine) -> None:
            finished = engine.abort(request_id)
            if finished is not None:
                self._deliver([StepOutput(request_id, (), finished)])

        await asyncio.wrap_future(self._thread.call(end))

    async def metrics(self) -> dict[str, Any]:
        """The engine's metrics as one JSON-ready mapping (`EngineMetrics.record`)."""
        return await asyncio.wrap_future(self._thread.call(lambda engine: engine.metrics.record()))

    async def prometheus_text(self, name: str | None = None) -> bytes:
        """The engine's metrics for a scraper, labelled with the model's own name or `name`."""
        name = name or self._llm.model_name
        return await asyncio.wrap_future(self._thread.call(lambda engine: prometheus_text(engine.metrics, name)))

    async def pass_costs(self) -> dict[str, Any]:
        """What the engine's passes cost and what it has room for, as `placement.tokens.TokenProfile` has it.

        `paceline tune`'s profile where there is one, else a handful of passes on the engine's own thread.
        """
        return await asyncio.wrap_future(self._thread.call(self._llm.pass_costs))

    async def between_steps(self, work: Callable[[Engine], _T]) -> _T:
        """Run `work` on the engine's thread between two steps. Raises EngineDead when it has ended."""
        return await asyncio.wrap_future(self._thread.call(work))

    async def shutdown(self) -> None:
        """End the engine after its current step; clients that still wait get `EngineDead`."""
        await asyncio.to_thread(self._thread.stop)
        self._aides.shutdown(wait=False, cancel_futures=True)

    def _leave(self, name: str, client: _Client) -> None:
        """A client is gone: whatever of its request is left ends."""

        def forget(engine: Engine) -> None:
            if self._clients.get(name) is client:
                del self._clients[name]
                engine.abort(name)

        try:
            self._thread.call(forget)
        except EngineDead:
            self._clients.pop(name, None)

    def _deliver(self, outputs: Sequence[StepOutput]) -> None:
        """Runs on the engine's thread: first tokens and ends are sent at once, others with what comes in `_PAUSE`."""
        is_urgent = False
        for output in outputs:
            client = self._clients.get(output.request_id)
            if client is not None:
                self._held.setdefault(client.loop, []).append((client, output))
                is_urgent |= output.finished is not None or not client.has_begun
                client.has_begun = True
        if is_urgent or monotonic() - self._woken >= _PAUSE:
            self._send()

    def _send(self) -> None:
        """Send what is held: one wake-up per event loop."""
        for loop, mail in self._held.items():
            _wake(loop, mail)
        self._held, self._woken = {}, monotonic()

    def _deliver_death(self, death: EngineDead) -> None:
        self._send()
        for client in list(self._clients.values()):
            _wake(client.loop, [(client, death)])


def _joined(mail: Sequence[_Mail]) -> list[_Mail]:
    """`mail` with outputs that follow one another and belong to one sample as one output."""
    together: list[_Mail] = []
    for item in mail:
        match together[-1:], item:
            case [StepOutput(completion=None) as last], StepOutput(index=index) if index == last.index:
                together[-1] = replace(item, tokens=last.tokens + item.tokens, draft=None)
            case _:
                together.append(item)
    return together


def _wake(loop: asyncio.AbstractEventLoop, mail: list[tuple[_Client, _Mail]]) -> None:
    def put() -> None:
        for client, item in mail:
            client.inbox.put_nowait(item)

    try:
        loop.call_soon_threadsafe(put)
    except RuntimeError:  # the loop is closed: its clients are gone
        return
