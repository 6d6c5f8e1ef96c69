"""`Worker`: the models of one group, in the process that runs them. Who asks, and from where, is not its business."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from paceline.config import SpeculativeConfig
from paceline.engine.async_llm import AsyncLLM
from paceline.engine.llm import LLM
from paceline.engine.loop.step import StepOutput, VerifiedDraft
from paceline.engine.setup.warm_up import warm_up
from paceline.engine.text.prompts import Prompt
from paceline.engine.threads.turns import Turns
from paceline.errors import EngineDead, InvalidParameter
from paceline.models.text.thought_tags import THINK, ThoughtTags
from paceline.models.text.tokenizer import Tokenizer
from paceline.placement.tokens import TokenProfile
from paceline.serving.models.job import Chunk, Job, Piece, Step, Summary, Thinking
from paceline.serving.models.merging import merged
from paceline.serving.models.model_spec import ModelSpec
from paceline.types import (
    CompletionOutput,
    NamedProgress,
    RequestOutput,
    TokenLogprobs,
    TokenOutput,
    TokenProvenance,
    silent,
)

_OPENING = 32
"""Tokens at the end of a prompt among which a thought may begin."""
OpenModel = Callable[[ModelSpec], AsyncLLM]
"""Loads a model."""


def open_model(
    spec: ModelSpec, speculative: SpeculativeConfig | None = None, progress: NamedProgress = silent, **engine: Any
) -> AsyncLLM:
    """A model ready to be asked; its own options, and its own way to draft, go before `engine` and `speculative`."""
    if spec.speculative is not None:
        speculative = SpeculativeConfig.of(spec.speculative)
    llm = LLM(spec.path, speculative=speculative, progress=progress, **(engine | dict(spec.options)))
    llm.engine.grammars.warm_up()
    warm_up(llm.loaded.model, llm.engine, progress)
    return AsyncLLM(llm)


class Worker:
    """Answers for several models, which take turns on the group's devices.

    Args:
        models: what to load, by the names that jobs use.
        open_model: loads one.
    """

    def __init__(self, models: Sequence[ModelSpec], open_model: OpenModel) -> None:
        self._llms = {spec.name: open_model(spec) for spec in models}
        if len(self._llms) > 1:
            turns = Turns()
            for llm in self._llms.values():
                llm.take_turns(turns)

    async def stream(self, job: Job) -> AsyncGenerator[Chunk, None]:
        """The answer step by step."""
        llm = self._llms[job.model]
        prompt = await self._token_ids(job)
        params = llm.params_for(_asked(job), job.params)
        known = {"num_prompt_tokens": len(prompt), "thinking": _thinking(job, prompt, llm.tokenizer),
                 "thought_tags": (llm.tokenizer.thought_tags or THINK)[:2],
                 "call_format": llm.tokenizer.call_format.name}  # fmt: skip
        how: dict[str, Any] = {"priority": job.priority, "timeout": job.timeout, "cache_salt": job.cache_salt}
        how["joined"] = not job.trace
        async with aclosing(llm.generate(prompt, params, job.request_id, **how)) as outputs:
            async for output in outputs if job.stream_interval == 1 else _evenly(outputs, job.stream_interval):
                if job.detail and output.finished:  # its whole prompt is told of
                    chunk = await asyncio.to_thread(_chunk, output, llm.tokenizer, known)
                else:
                    chunk = _chunk(output, llm.tokenizer if job.detail else None, known)
                step = output.draft if job.trace else None
                yield chunk if step is None else replace(chunk, step=_step(output, step, llm.tokenizer))

    async def whole(self, job: Job) -> Chunk:
        """The answer of one sample in one piece."""
        parts, texts, pieces, last = [], [], [], Chunk("")
        async with aclosing(self.stream(job)) as chunks:
            async for last in chunks:
                parts.append(last.text)
                texts += last.texts
                pieces += last.pieces
        return replace(last, text="".join(parts), texts=tuple(texts), pieces=tuple(pieces), step=None)

    async def tokenize(self, job: Job) -> list[tuple[int, bytes]]:
        """See `TextBackend.tokenize`."""
        token_bytes, token_ids = self._llms[job.model].tokenizer.token_bytes, await self._token_ids(job)
        return await asyncio.to_thread(lambda: [(token_id, token_bytes(token_id)) for token_id in token_ids])

    async def detokenize(self, model: str, token_ids: Sequence[int]) -> str:
        """See `TextBackend.detokenize`."""
        tokenizer = self._llms[model].tokenizer
        for token_id in token_ids:
            if not 0 <= token_id < tokenizer.vocab_size:
                problem = f"{token_id} is outside the vocabulary of {tokenizer.vocab_size}"
                raise InvalidParameter("tokens", problem, "use this model's own ids")
        return tokenizer.decode(token_ids, skip_special=False)

    def describe(self, model: str) -> Mapping[str, Any]:
        """See `Backend.describe`."""
        return self._llms[model].describe()

    async def state(self) -> Mapping[str, Any]:
        """See `TextBackend.state`."""
        return {name: await llm.metrics() for name, llm in self._llms.items()}

    async def abort(self, job: Job) -> None:
        """End a job; whoever reads its stream sees it end."""
        await self._llms[job.model].abort(job.request_id)

    @property
    def death(self) -> EngineDead | None:
        """Why one of the engines has ended; None while all are well."""
        return next((llm.death for llm in self._llms.values() if llm.death is not None), None)

    @property
    def step_seconds(self) -> float:
        """How long the slowest of the engines' present steps has taken."""
        return max(llm.step_seconds for llm in self._llms.values())

    async def check(self) -> None:
        """Return when all is well. Raises EngineDead when an engine has failed."""
        if self.death is not None:
            raise self.death

    async def metrics(self) -> bytes:
        """Prometheus text of all engines, every family once."""
        return merged([await llm.prometheus_text(name) for name, llm in self._llms.items()])

    async def max_model_lens(self) -> Mapping[str, int]:
        """Tokens of the longest request of every model."""
        return {name: llm.describe()["max_model_len"] for name, llm in self._llms.items()}

    async def pass_profiles(self) -> Mapping[str, TokenProfile]:
        """What passes of every model cost, as `paceline tune` measured or by a few passes now."""
        return {name: TokenProfile(**await llm.pass_costs()) for name, llm in self._llms.items()}

    async def close(self) -> None:
        """End all engines."""
        for llm in self._llms.values():
            await llm.shutdown()

    async def _token_ids(self, job: Job) -> list[int]:
        llm = self._llms[job.model]
        if job.messages:
            prompt = await llm.chat_prompt(
                job.messages, job.template, add_generation_prompt=job.add_generation_prompt,
                continue_final_message=job.continue_final_message,
            )  # fmt: skip
            return prompt + _without_thought(job, prompt, llm.tokenizer)
        return await llm.token_ids_of(_asked(job), job.add_special_tokens)


def _asked(job: Job) -> Prompt:
    """The prompt of a job without messages."""
    return "" if job.prompt is None else job.prompt


def _thinking(job: Job, prompt: Sequence[int], tokenizer: Tokenizer) -> Thinking:
    """How an answer thinks aloud, by the model's chat template; a grammar leaves no room for thoughts."""
    tags = tokenizer.thought_tags
    if not job.messages or tags is None or job.params.structured_outputs is not None:
        return "none"
    if tokenizer.speaks_harmony:
        return "several"
    return "open" if _opens(job, prompt, tags, tokenizer) else "tagged"


def _opens(job: Job, prompt: Sequence[int], tags: ThoughtTags, tokenizer: Tokenizer) -> bool:
    """Whether a prompt ends within a thought: with its opening, or in an answer that goes on from there.

    The tag may also stand in what the user says, before that.
    """
    end = tokenizer.decode(prompt[-_OPENING:], skip_special=False)
    if job.continue_final_message:
        return end.rfind(tags.opening) > end.rfind(tags.closing)
    return end.rstrip().endswith(tags.opening)


def _without_thought(job: Job, prompt: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """Tokens that close a thought which the chat template opens, where a grammar begins with the answer."""
    tags = tokenizer.thought_tags
    if job.params.structured_outputs is None or job.continue_final_message or tags is None:
        return []
    is_open = not tokenizer.speaks_harmony and _opens(job, prompt, tags, tokenizer)
    return tokenizer.encode(f"\n{tags.closing}\n\n", add_special_tokens=False) if is_open else []


async def _evenly(outputs: AsyncIterator[StepOutput], size: int) -> AsyncIterator[StepOutput]:
    """`outputs` with `size` tokens each, the last of every sample excepted: how many a pass brought does not show."""
    held: dict[int, tuple[TokenOutput, ...]] = {}
    async for output in outputs:
        tokens = (*held.pop(output.index, ()), *output.tokens)
        is_last = output.completion is not None or output.finished is not None
        while len(tokens) > size or (len(tokens) == size and not is_last):
            yield replace(output, tokens=tokens[:size], completion=None, finished=None, tail="")
            tokens = tokens[size:]
        if is_last:
            yield replace(output, tokens=tokens)
        elif tokens:
            held[output.index] = tokens


def _chunk(output: StepOutput, tokenizer: Tokenizer | None, known: Mapping[str, Any]) -> Chunk:
    """What a step gave one sample; with the pieces of its text where a tokenizer is given."""
    tokens = output.tokens
    text = tokens[0].text if len(tokens) == 1 else "".join([token.text for token in tokens])
    texts = () if known["thinking"] == "none" else tuple([token.text for token in tokens])
    pieces: tuple[Piece, ...] = ()
    if tokenizer is not None:
        pieces = tuple(_piece(tokenizer, t.token_id, t.text, t.provenance, t.logprobs) for t in tokens)
    done, finished = output.completion, output.finished
    if done is None and finished is None:
        return Chunk(text, index=output.index, pieces=pieces, num_tokens=len(tokens), texts=texts, **known)
    done = done or finished.outputs[output.index]  # type: ignore[union-attr]
    return Chunk(
        text + output.tail, done.finish_reason, num_output_tokens=len(done.token_ids), index=output.index,
        goes_on=finished is None, pieces=pieces, summary=_summary(done, finished, tokenizer), num_tokens=len(tokens),
        texts=texts, **known,
    )  # fmt: skip


def _step(output: StepOutput, draft: VerifiedDraft, tokenizer: Tokenizer) -> Step:
    path, above = [], -1
    for token in output.tokens[: draft.num_accepted]:
        at = zip(draft.parents, draft.tokens, strict=True)
        above = next(i for i, node in enumerate(at) if node == (above, token.token_id))
        path.append(above)
    named = tuple((token_id, tokenizer.token_bytes(token_id).decode("utf-8", "replace")) for token_id in draft.tokens)
    return Step(named, draft.parents, tuple(path), draft.is_own, draft.rows._asdict())


def _summary(done: CompletionOutput, finished: RequestOutput | None, tokenizer: Tokenizer | None) -> Summary:
    prompt: tuple[Piece, ...] = ()
    if finished is not None and tokenizer is not None:
        scores = finished.prompt_logprobs or [None] * len(finished.prompt_token_ids)
        pairs = zip(finished.prompt_token_ids, scores, strict=True)
        prompt = tuple(_piece(tokenizer, token_id, "", "prompt", score) for token_id, score in pairs)
    return Summary(
        error=done.error,
        stats=done.stats,
        num_cached_tokens=0 if finished is None else finished.metrics.num_cached_tokens,
        num_predicted_tokens=done.num_predicted_tokens,
        num_accepted_predictions=done.num_accepted_predictions,
        prompt=prompt,
        stop_reason=done.stop_reason,
        lossy=done.lossy,
    )


def _piece(
    tokenizer: Tokenizer, token_id: int, text: str, provenance: TokenProvenance, scores: TokenLogprobs | None
) -> Piece:
    spell = tokenizer.token_bytes
    if scores is None:
        return Piece(token_id, text, spell(token_id), provenance)
    top = tuple((each, spell(each), logprob) for each, logprob in scores.top)
    return Piece(token_id, text, spell(token_id), provenance, scores.logprob, top, scores.rank)
