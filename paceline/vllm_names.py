"""Names of vLLM's interface, and a few of others, that are called otherwise here, or not supported.

They end in InvalidParameter with the remedy instead of "unexpected keyword argument" or "No such option". Names that
mean the same in both are not listed. A mapping that says how to draft may have vLLM's keys.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, TypeVar

from paceline.errors import InvalidParameter

_F = TypeVar("_F", bound=Callable[..., Any])
_C = TypeVar("_C")

_IGNORED = "leave it out"
_NO_BEAMS = "there is no beam search; use SamplingParams(n=...), and choose by logprobs"
_WITH_THE_MODEL = "leave it out: the model BASE+ADAPTER_FOLDER is BASE with that adapter"
_OF_THE_MODEL = "leave it out: the model brings its own"
_CONFIG_SAYS = "leave it out: the model's config says it"
_AT_REVISION = "name it with the model, hf:OWNER/MODEL@REVISION"
_A_MAPPING = "give SamplingParams a mapping, structured_outputs={'json': schema}"
ONE_GRAMMAR_ENGINE = "leave it out: llguidance is the only one"

SAMPLING = {
    "guided_decoding": "use structured_outputs, e.g. {'json': schema}",
    "skip_special_tokens": "leave it out: token_ids has them, and the text has those around calls and reasoning",
    "spaces_between_special_tokens": "leave it out: no spaces are added to the text",
    "detokenize": "leave it out: the text is always made",
    "truncate_prompt_tokens": "cut the token ids of the prompt",
    "logits_processors": "use logit_bias, bad_words, allowed_token_ids or structured_outputs",
    "best_of": "use n, and choose by logprobs",
    "use_beam_search": "leave it out: there is no beam search; use n, and choose by logprobs",
    "early_stopping": "leave it out: it ends beam search, which there is not",
    "max_new_tokens": "use max_tokens",
    "do_sample": "use temperature, 0 for greedy decoding",
    "num_return_sequences": "use n",
    "response_format": "use structured_outputs, e.g. {'json': schema}",
    "length_penalty": "leave it out: it weighs the hypotheses of beam search, which there is not",
    "extra_args": "leave it out: a request has the fields of SamplingParams alone",
    "output_kind": "leave it out; LLM.stream gives tokens one by one",
}
"""Fields of vLLM's SamplingParams and of transformers' generate, with what to do instead."""

SPECULATIVE = {
    "num_speculative_tokens": "use num_draft_tokens",
    "prompt_lookup_max": "use options={'prompt_lookup_max': ...}",
    "prompt_lookup_min": "use options={'prompt_lookup_min': ...}",
    "draft_tensor_parallel_size": "use options={'draft_tensor_parallel_size': ...}",
}
"""Keys of vLLM's speculative_config."""

ENGINE = {
    "speculative_config": "use speculative, e.g. speculative={'method': 'ngram', 'num_draft_tokens': 4}",
    "num_speculative_tokens": "use speculative={'method': ..., 'num_draft_tokens': ...}",
    "speculative_model": "use speculative={'method': 'draft_model', 'model': ...}",
    "gpu_memory_utilization": "use memory_fraction, the cache's share of the free memory",
    "enable_prefix_caching": "use prefix_caching",
    "quantization": "use dtype, e.g. dtype='int8'",
    "tokenizer": _OF_THE_MODEL,
    "trust_remote_code": "leave it out: no code of models is run",
    "enforce_eager": _IGNORED,
    "enable_chunked_prefill": "leave it out: long prompts are always read in chunks",
    "block_size": _IGNORED,
    "swap_space": _IGNORED,
    "disable_log_stats": _IGNORED,
    "seed": "give a seed to the requests' SamplingParams",
    "data_parallel_size": "start one server for each replica, or plan them with paceline place",
    "rope_scaling": _CONFIG_SAYS,
    "rope_theta": _CONFIG_SAYS,
    "model_impl": "use executor",
    "revision": _AT_REVISION,
    "tokenizer_revision": _AT_REVISION,
    "download_dir": "set the environment variable PACELINE_CACHE",
    "hf_overrides": "leave it out: the model's config counts",
    "tokenizer_mode": _OF_THE_MODEL,
    "load_format": "leave it out: safetensors folders and GGUF files are told apart",
    "generation_config": "give SamplingParams instead",
    "logits_processors": "use logit_bias, bad_words, allowed_token_ids or structured_outputs of SamplingParams",
    "guided_decoding_backend": ONE_GRAMMAR_ENGINE,
    "structured_outputs_config": ONE_GRAMMAR_ENGINE,
    "compilation_config": "leave it out: kernels are compiled once and kept",
    "distributed_executor_backend": "leave it out: processes of this machine are used, or paceline place and Ray",
    "max_loras": _WITH_THE_MODEL,
    "n_ctx": "use max_model_len",
    "n_gpu_layers": "use device, e.g. device='cuda:0'",
    "enable_lora": _WITH_THE_MODEL,
}
"""Arguments of vLLM's LLM."""

CALL = {
    "use_tqdm": "use progress",
    "lora_request": "name the adapter with the model, LLM('BASE+ADAPTER_FOLDER'): it is merged when weights are loaded",
    "prompt_token_ids": "give the ids as prompts",
    "chat_template_content_format": "leave it out: templates are given contents as texts",
    "mm_processor_kwargs": "leave it out: no images or sounds are read",
}
"""Arguments of vLLM's LLM.generate and LLM.chat."""

NAMES = {
    "LoRARequest": "name the adapter with the model, LLM('BASE+ADAPTER_FOLDER')",
    "StructuredOutputsParams": _A_MAPPING,
    "GuidedDecodingParams": _A_MAPPING,
    "BeamSearchParams": _NO_BEAMS,
    "AsyncLLMEngine": "use AsyncLLM",
    "LLMEngine": "use LLM or AsyncLLM",
    "EngineArgs": "give LLM its arguments",
}
"""Names of vLLM's package."""

METHODS = {
    "beam_search": _NO_BEAMS,
    "encode": "there are no embeddings; token_ids_of tokenises",
    "embed": "there are no embeddings",
    "classify": "there are no classifiers",
    "score": "there are no rankers; SamplingParams(prompt_logprobs=0) scores a text",
    "get_default_sampling_params": "use SamplingParams()",
    "get_metrics": "use llm.engine.metrics",
    "llm_engine": "use llm.engine",
    "shutdown": "use llm.close()",
    "sleep": "use llm.close()",
}
"""Attributes of vLLM's LLM."""


COMMAND_LINE = {
    name: remedy for name, remedy in {**SAMPLING, **ENGINE}.items() if remedy.startswith("leave it out")
} | {
    "speculative_config": "give it to generate, chat, serve, batch or audit; bench and advise take --spec LABEL={...}",
    "num_speculative_tokens": "use --num-draft-tokens",
    "speculative_model": "use --draft draft_model --draft-model MODEL",
    "speculative_draft_tensor_parallel_size": "use --draft-option draft_tensor_parallel_size=N",
    "prompt_lookup_max": "use --draft-option prompt_lookup_max=N",
    "prompt_lookup_min": "use --draft-option prompt_lookup_min=N",
    "ngram_prompt_lookup_max": "use --draft-option prompt_lookup_max=N",
    "ngram_prompt_lookup_min": "use --draft-option prompt_lookup_min=N",
    "gpu_memory_utilization": "use --kv-cache-memory-bytes, the memory of keys and values",
    "lora": "name the adapter with the model, as BASE+ADAPTER_FOLDER",
    "lora_modules": "name the adapter with the model, as BASE+ADAPTER_FOLDER",
    "enable_prefix_caching": "leave it out: common prefixes are computed once",
    "quantization": "use --dtype, e.g. --dtype int8",
    "disable_log_requests": _IGNORED,
    "enable_auto_tool_choice": "leave it out: tools are always known",
    "tool_call_parser": "leave it out: the chat template tells how the model writes calls",
    "reasoning_parser": "leave it out: the chat template tells the tags around reasoning",
    "enable_reasoning": "leave it out: reasoning is always told apart",
    "seed": "give a seed in each request",
    "ctx_size": "use --max-model-len",
    "n_predict": "use --max-tokens; requests to a server have max_tokens",
    "temp": "use --temperature; requests to a server have temperature",
    "repeat_penalty": "use --repetition-penalty; requests to a server have repetition_penalty",
    "system_prompt": "use --system; requests to a server have a message of the system",
    "n_gpu_layers": "use --device cuda:0, which takes the whole model",
    "gpu_layers": "use --device cuda:0, which takes the whole model",
    "parallel": "use --max-num-seqs",
    "hf_repo": "use --model hf:OWNER/MODEL:QUANTISATION",
    "model_draft": "use --draft-model",
    "draft_max": "use --num-draft-tokens",
    "prompt": "write it without an option: paceline generate PROMPT",
}
"""Options of the command lines of vLLM and llama.cpp, with underscores; what vLLM shares with the tables above has the
same remedy.

Commands that have such an option, as some have ``--speculative-config``, take it.
"""

_OPTIONS_OF_DRAFTERS = ("prompt_lookup_max", "prompt_lookup_min", "draft_tensor_parallel_size")


def refuse_option(written: str) -> None:
    """Raise InvalidParameter with its remedy if `written`, an option without its value, is one of vLLM's."""
    name = written.removeprefix("--").replace("-", "_")
    for known in (name, name.removeprefix("no_")):
        if known in COMMAND_LINE:
            raise InvalidParameter(written, "is not known here", COMMAND_LINE[known])


def in_our_words(speculative: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping that says how to draft, with our names for vLLM's keys.

    As in vLLM, a `model` without a `method` says what kind of draft it is.

    Raises:
        InvalidParameter: a key is given in both spellings.
    """
    found = dict(speculative)
    if "num_speculative_tokens" in found:
        _move(found, "num_speculative_tokens", found, "num_draft_tokens")
    if moved := [name for name in _OPTIONS_OF_DRAFTERS if name in found]:
        given = found.get("options", {})
        if not isinstance(given, Mapping):
            raise InvalidParameter("options", f"{given!r} is no mapping", "give e.g. {'name': value}")
        found["options"] = options = dict(given)
        for name in moved:
            _move(found, name, options, name)
    if found.get("model") is not None:
        found.setdefault("method", "auto")
    return found


def _move(values: dict[str, Any], name: str, to: dict[str, Any], ours: str) -> None:
    if ours in to:
        raise InvalidParameter(name, f"is vLLM's word for {ours}, which is given too", "leave one of the two out")
    to[ours] = values.pop(name)


def refuse(given: Iterable[str], table: Mapping[str, str]) -> None:
    """Raise InvalidParameter for the first of the names `given` that is in `table`."""
    for name in given:
        if name in table:
            raise InvalidParameter(name, "is not known here", table[name])


def hint(name: str, table: Mapping[str, str]) -> str:
    """How an error about the attribute `name` ends: with the remedy, where the table has one."""
    return f"; {table[name]}" if name in table else ""


def knows_vllm(table: Mapping[str, str]) -> Callable[[_F], _F]:
    """A decorator: keyword arguments in `table` that the function does not take are refused with their remedy."""

    def decorate(function: _F) -> _F:
        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            try:
                return function(*arguments, **named)
            except TypeError:
                refuse(named, table)
                raise

        return call  # type: ignore[return-value]

    return decorate


def constructor_knows_vllm(table: Mapping[str, str]) -> Callable[[type[_C]], type[_C]]:
    """`knows_vllm` for the constructor of a class."""

    def decorate(cls: type[_C]) -> type[_C]:
        cls.__init__ = knows_vllm(table)(cls.__init__)
        return cls

    return decorate
