"""`LLM`: a model with its engine, for programs and notebooks. Servers use `AsyncLLM`."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from time import perf_counter
from typing import TYPE_CHECKING, Any

from paceline.config import EngineConfig, SpeculativeConfig, from_mapping
from paceline.drafters.auto import AUTO, resolve_drafter
from paceline.engine.loop.engine import Engine
from paceline.engine.loop.memory import cache_capacity
from paceline.engine.progress import watched
from paceline.engine.setup.build import build_engine
from paceline.engine.setup.first_start import start_compiler
from paceline.engine.setup.load import load
from paceline.engine.setup.pass_costs import pass_costs, step_seconds
from paceline.engine.setup.profiles import dtype_of
from paceline.engine.text.prompts import Message, Prompt, Prompts, as_list, named, per_prompt, text_of, variables_of
from paceline.engine.threads.calls import Calls, Inbox, TokenStream
from paceline.errors import InvalidParameter
from paceline.models.base import PAGE_SIZE, HasDtype, RunsInParts
from paceline.models.loaded import LoadedModel
from paceline.models.resolve import ModelSource
from paceline.models.text.tokenizer import Tokenizer
from paceline.types import NamedProgress, RequestOutput, SamplingParams, silent
from paceline.vllm_names import CALL, METHODS, hint, knows_vllm


class LLM:
    """A language model with speculative decoding, which generates the same text as without it, only faster.

    Several threads may generate at the same time; their requests share passes. Programs of asyncio use `AsyncLLM`.

    Args:
        model: built-in name (``smollm2-135m``), GGUF file, safetensors folder or hub id.
        speculative: how to draft: a method's name (``"ngram"``), a mapping or `SpeculativeConfig`; ``"auto"`` chooses a
            method, None is plain decoding. vLLM's name for it, `speculative_config`, and the keys of its mapping are
            taken too.
        progress: called with (what, done, total) while the model is fetched, converted and warmed up.
        engine: fields of `EngineConfig`, e.g. ``dtype="int8"``.

    Raises:
        ModelNotFound, DownloadFailed, CorruptWeights, UnsupportedModel, InvalidParameter: with the field at fault and
            what to do about it.

    Examples:
        >>> llm = LLM("smollm2-135m", speculative="ngram")                       # doctest: +SKIP
        >>> llm.generate("1, 2, 3,", SamplingParams(temperature=0))[0].text      # doctest: +SKIP
    """

    def __init__(
        self,
        model: str | PathLike[str] = "smollm2-135m",
        *,
        speculative: str | Mapping[str, Any] | SpeculativeConfig | None = AUTO,
        progress: NamedProgress = silent,
        **engine: Any,
    ) -> None:
        if not isinstance(model, str | PathLike):
            raise InvalidParameter("model", f"{model!r} is no name", "give a built-in name, a path or a hub id")
        if "speculative_config" in engine:
            if speculative != AUTO:
                problem = "is vLLM's word for speculative, which is given too"
                raise InvalidParameter("speculative_config", problem, "leave one of the two out")
            speculative = engine.pop("speculative_config")
        model, config = str(model), from_mapping(EngineConfig, engine, ("model", "speculative", "progress"))
        wanted = SpeculativeConfig.of(speculative)
        start_compiler(model, config)
        self._set_up(load(model, config, progress), config, wanted, progress)

    @classmethod
    def from_loaded(
        cls, loaded: LoadedModel, config: EngineConfig | None = None,
        speculative: str | Mapping[str, Any] | SpeculativeConfig | None = None, progress: NamedProgress = silent,
    ) -> "LLM":  # fmt: skip
        """An `LLM` over weights that are loaded already, by default without drafts.

        All `LLM`s on the same weights run their steps in turn, also those of different threads.

        Raises:
            InvalidParameter: the drafter does not fit the weights.
            EngineDead: the weights are closed.
        """
        llm = cls.__new__(cls)
        llm._set_up(loaded, config or EngineConfig(), SpeculativeConfig.of(speculative), progress)
        return llm

    def _set_up(
        self, loaded: LoadedModel, config: EngineConfig, wanted: SpeculativeConfig | None, progress: NamedProgress
    ) -> None:
        loaded.check_open()
        self._loaded, self._config, self._turn = loaded, config, loaded.turn
        self.speculative = resolve_drafter(wanted, loaded)
        with self._turn:  # an engine runs passes before its first step
            engine = build_engine(loaded, config, self.speculative, progress)
        self._calls = Calls(engine, loaded)
        self._limit_prompts(config)

    def _limit_prompts(self, config: EngineConfig) -> None:
        """Let prompts be as long as an engine of `config` can hold."""
        longest = cache_capacity(self._loaded.model, config).max_model_len
        self._prompts = Prompts(self.tokenizer, longest, config.parse_special_tokens)

    def pass_costs(self, engine: Engine) -> dict[str, Any]:
        """See `engine.pass_costs`; call it on the engine's thread."""
        return pass_costs(engine, self._loaded, self._config)

    def step_seconds(self, engine: Engine, reads: bool) -> float:
        """See `engine.pass_costs.step_seconds`; call it on the engine's thread."""
        return step_seconds(engine, self._loaded, self._config, reads, perf_counter)

    def engines_in_flight(self) -> list[Engine]:
        """Engines to run concurrently: one per pipeline stage, sharing weights, `max_num_seqs` and cache memory.

        Only one where the model drafts (each engine would load its own drafter), where the cache is too small to hold
        one request for each, or where the executor has one step in flight.
        """
        config, model = self._config, self._loaded.model
        room = self.engine.scheduler.pool.num_pages * PAGE_SIZE
        longest = config.max_model_len or PAGE_SIZE
        count = min(config.pipeline_parallel_size, config.max_num_seqs, room // longest)
        if count < 2 or self.speculative is not None or not isinstance(model, RunsInParts):
            return [self.engine]
        share = replace(
            config,
            max_num_seqs=-(-config.max_num_seqs // count),
            memory_fraction=None,
            kv_cache_memory_bytes=self.engine.cache.num_bytes // count,
        )
        del self._calls.engine  # its cache makes room for theirs
        model.keep_passes_whole()
        engines = [build_engine(self._loaded, share, None) for _ in range(count)]
        self._calls.engine = engines[0]
        self._limit_prompts(share)
        return engines

    def drafting_with(
        self, speculative: str | Mapping[str, Any] | SpeculativeConfig | None, progress: NamedProgress = silent
    ) -> "LLM":
        """Another `LLM` on the same loaded weights, with another drafter and its own cache and engine."""
        other = LLM.__new__(LLM)
        other._set_up(self._loaded, self._config, SpeculativeConfig.of(speculative), progress)
        return other

    def close(self) -> None:
        """Stop the model's threads or, in a parallel run, processes. Every `LLM` that shares these loaded weights
        (`drafting_with`, `from_loaded`) is closed too.

        Leaving a ``with`` block calls it, and so does the end of the program. Whoever generates or streams afterwards,
        or was about to, gets EngineDead.
        """
        with self._turn:  # between two steps
            self._loaded.close()

    if not TYPE_CHECKING:  # or a type checker would take every attribute for one

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"'LLM' object has no attribute {name!r}{hint(name, METHODS)}")

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def max_model_len(self) -> int:
        """Most tokens of a request, prompt and output."""
        return self._prompts.max_model_len

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's tokenizer."""
        return self._loaded.source.tokenizer

    def get_tokenizer(self) -> Tokenizer:
        """The target's tokenizer, as `tokenizer`: vLLM's name for it."""
        return self.tokenizer

    @property
    def loaded(self) -> LoadedModel:
        """The weights and their source, shared with the results of `drafting_with`."""
        return self._loaded

    @property
    def source(self) -> ModelSource:
        """Where the target came from."""
        return self._loaded.source

    @property
    def model_name(self) -> str:
        """The model's name as the user gave it."""
        return self._loaded.source.name

    @property
    def dtype(self) -> str:
        """Type of the weights; for ``auto`` the type that was chosen."""
        return dtype_of(self._loaded, self._config.dtype)

    @property
    def dtype_reason(self) -> str:
        """Why ``auto`` chose this dtype; empty when the user named it."""
        model = self._loaded.model
        return model.dtype_choice.reason if isinstance(model, HasDtype) else ""

    @property
    def engine(self) -> Engine:
        """The engine that runs the requests; see its `metrics`."""
        return self._calls.engine

    @knows_vllm(CALL)
    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        timeout: float | None = None,
        cache_salt: str = "",
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Generate answers to one prompt or several, returned in the order of the prompts. All share every pass.

        Args:
            prompts: texts or token ids, or vLLM's ``{"prompt": text}`` and ``{"prompt_token_ids": ids}``. The answer
                to ``{"prompt": text, "suffix": text}`` is what a code model writes between the two; ``"files": {name:
                text}`` are others of the project.
            sampling_params: one for all prompts, or one for each.
            priority: one for all prompts, or one for each; smaller values run earlier.
            timeout: seconds after which unfinished requests end with the tokens they have, finish reason ``timeout``.
            cache_salt: see `Engine.add_request`.
            progress: show a progress bar.

        Raises:
            InvalidParameter: a prompt that is empty or longer than the context, or a number of `sampling_params` or
                priorities that differs from that of the prompts.
            EngineDead: the `LLM` is closed.
        """
        items = as_list(prompts)
        wanted = SamplingParams() if sampling_params is None else sampling_params
        each = per_prompt("sampling_params", wanted, SamplingParams, len(items))
        priorities = per_prompt("priority", priority, int, len(items))
        ids: list[str] = []
        finished: dict[str, RequestOutput] = {}
        inbox: Inbox = deque()
        how = {"timeout": timeout, "cache_salt": cache_salt}
        try:
            for prompt, params, own in zip(items, each, priorities, strict=True):
                with named(len(ids), len(items)):
                    token_ids, ready = self._ready(prompt, params)
                    ids.append(self._calls.add(token_ids, ready, inbox, priority=own, **how))
            outputs = self._calls.finished(inbox, len(ids))
            for output in watched(outputs, len(ids)) if progress else outputs:
                finished[output.request_id] = output
        finally:  # when interrupted, abort the unfinished requests of this call
            self._calls.forget(ids)
        texts = [text_of(prompt) for prompt in items]
        return [replace(finished[i], prompt=text) for i, text in zip(ids, texts, strict=True)]

    @knows_vllm(CALL)
    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        timeout: float | None = None,
        cache_salt: str = "",
        progress: bool = False,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Generate answers to one conversation or several: lists of ``{"role": ..., "content": ...}``.

        A content is a text or a list of OpenAI's text parts; an assistant turn with ``tool_calls`` may have none. Roles
        are system, developer, user, assistant and tool. Arguments that are not listed here are as in `generate`.

        Args:
            chat_template: a Jinja template in place of the model's own, for this call.
            add_generation_prompt, continue_final_message: see `chat_prompt`.
            tools: OpenAI's definitions, for the template; told in words where it has no place for them. What an answer
                calls is in its text.
            chat_template_kwargs: further variables of the template.

        Raises:
            InvalidParameter: as `generate` and `chat_prompt`, or for tools or a template that cannot be used.
        """
        several = isinstance(messages, list | tuple) and messages and isinstance(messages[0], list | tuple)
        conversations: Any = messages if several else [messages]
        ending = {"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message}
        template = variables_of(chat_template_kwargs, tools)
        prompts = self._prompts.with_template(chat_template).of_chats(conversations, template, **ending)
        how: dict[str, Any] = {"priority": priority, "timeout": timeout, "cache_salt": cache_salt, "progress": progress}
        return self.generate(prompts, sampling_params, **how)

    def chat_prompt(
        self, messages: Sequence[Message], template: Mapping[str, Any] | None = None, *,
        add_generation_prompt: bool = True, continue_final_message: bool = False,
    ) -> list[int]:  # fmt: skip
        """Token ids of a conversation rendered by the chat template.

        Args:
            template: further variables of the template besides the messages, e.g. ``tools``.
            add_generation_prompt: end with the opening of the assistant's turn.
            continue_final_message: end inside the final message, right after its text, so that the answer goes on
                from there.

        Raises:
            InvalidParameter: the model has no template, a role is unknown, or the messages do not fit the template or
                the context.
        """
        how = {"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message}
        return self._prompts.of_chat(messages, template, **how)

    def user_prompt(self, text: str, raw: bool = False) -> list[int]:
        """Token ids of a user's text: as a message in the model's chat template, or as it is when `raw` or without one.

        Raises:
            InvalidParameter: as `chat_prompt` and `token_ids_of`.
        """
        return self._prompts.of_user(text, raw)

    def token_ids_of(self, prompt: Prompt, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt, which may already be token ids; see `Tokenizer.encode`.

        Raises:
            InvalidParameter: the prompt is empty, too long, or neither a text nor whole numbers; or it has a suffix,
                and the model cannot fill gaps.
        """
        return self._prompts.token_ids(prompt, add_special_tokens)

    def params_for(self, prompt: Prompt, params: SamplingParams) -> SamplingParams:
        """`params` for the answer to `prompt`: where that has a suffix, the tokens that end its answer are added.

        Raises:
            InvalidParameter: the model cannot fill gaps.
        """
        return self._prompts.params(prompt, params)

    def prepared(self, params: SamplingParams) -> SamplingParams:
        """`params` with the prediction tokenised and the grammar compiled, to keep that work out of the engine.

        Raises:
            InvalidParameter: the grammar does not compile.
        """
        if params.structured_outputs is not None:
            self.engine.grammars.compiled(params.structured_outputs)
        if not isinstance(params.prediction, str) or not params.prediction:
            return params
        return replace(params, prediction=self.tokenizer.encode(params.prediction, add_special_tokens=False))

    def _ready(self, prompt: Prompt, params: SamplingParams) -> tuple[list[int], SamplingParams]:
        """What the engine is given."""
        return self.token_ids_of(prompt), self.prepared(self.params_for(prompt, params))

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> TokenStream:
        """Stream the tokens of one answer as they are committed, each with its text and provenance.

        Closing the stream, or dropping the last reference to it, aborts the request.

        Raises:
            InvalidParameter: `n` is above 1 (use `generate` or `AsyncLLM`), or the prompt is invalid.
        """
        params = sampling_params or SamplingParams()
        if params.n > 1:
            raise InvalidParameter("n", f"{params.n} samples in one stream", "use generate, or AsyncLLM")
        inbox: Inbox = deque()
        return self._calls.stream(self._calls.add(*self._ready(prompt, params), inbox), inbox)
