"""Names of vLLM's interface that users bring along and that are called otherwise here, or not supported.

They end in InvalidParameter with the remedy instead of "unexpected keyword argument". Names that mean the same in both
are not listed.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import Any, TypeVar

from paceline.errors import InvalidParameter

_F = TypeVar("_F", bound=Callable[..., Any])
_C = TypeVar("_C")

_IGNORED = "leave it out"

SAMPLING = {
    "guided_decoding": "use structured_outputs, e.g. {'json': schema}",
    "skip_special_tokens": "leave it out: the text has no special tokens, token_ids has them",
    "spaces_between_special_tokens": "leave it out: the text has no special tokens",
    "detokenize": "leave it out: the text is always made",
    "truncate_prompt_tokens": "cut the token ids of the prompt",
    "logits_processors": "use logit_bias, bad_words, allowed_token_ids or structured_outputs",
    "best_of": "use n, and choose by logprobs",
    "output_kind": "leave it out; LLM.stream gives tokens one by one",
}
"""Fields of vLLM's SamplingParams, with what to do instead."""

SPECULATIVE = {
    "num_speculative_tokens": "use num_draft_tokens",
    "prompt_lookup_max": "use options={'prompt_lookup_max': ...}",
    "prompt_lookup_min": "use options={'prompt_lookup_min': ...}",
    "draft_tensor_parallel_size": _IGNORED,
}
"""Keys of vLLM's speculative_config."""

ENGINE = {
    "speculative_config": "use speculative, e.g. speculative={'method': 'ngram', 'num_draft_tokens': 4}",
    "num_speculative_tokens": "use speculative={'method': ..., 'num_draft_tokens': ...}",
    "speculative_model": "use speculative={'method': 'draft_model', 'model': ...}",
    "gpu_memory_utilization": "use memory_fraction, the cache's share of the free memory",
    "enable_prefix_caching": "use prefix_caching",
    "quantization": "use dtype, e.g. dtype='int8'",
    "tokenizer": "leave it out: the model brings its own",
    "trust_remote_code": "leave it out: no code of models is run",
    "enforce_eager": _IGNORED,
    "enable_chunked_prefill": "leave it out: long prompts are always read in chunks",
    "block_size": _IGNORED,
    "swap_space": _IGNORED,
    "disable_log_stats": _IGNORED,
    "seed": "give a seed to the requests' SamplingParams",
}
"""Arguments of vLLM's LLM."""

CALL = {
    "use_tqdm": "use progress",
    "lora_request": "train the adapter into the weights",
    "prompt_token_ids": "give the ids as prompts",
}
"""Arguments of vLLM's LLM.generate and LLM.chat."""


def refuse(given: Iterable[str], table: Mapping[str, str]) -> None:
    """Raise InvalidParameter for the first of the names `given` that is in `table`."""
    for name in given:
        if name in table:
            raise InvalidParameter(name, "is vLLM's, and not known here", table[name])


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
