"""Options in groups: one dataclass stands for several options of a command, so that no list of them is written twice.

    @grouped
    def chat(model: o.Model = o.DEFAULT_MODEL, *, drafting: Drafting, machine: Machine) -> None:

has the options of both classes, and is called with an object of each. A command with other defaults has a subclass of
its own. Not for what options mean (`model.py`).
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints

from paceline.cli.options import model as o
from paceline.cli.options.sizes import bytes_of
from paceline.config import SpeculativeConfig
from paceline.errors import InvalidParameter
from paceline.types import SamplingParams


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with a signature for typer: the fields of its dataclasses instead of the dataclasses."""
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind) and isinstance(kind, type)}
    flat: list[inspect.Parameter] = []
    for name, own in inspect.signature(command).parameters.items():
        kind = groups.get(name)
        flat += _options(kind) if kind else [own.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)]

    @wraps(command)
    def run(**values: Any) -> None:
        made = {
            name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            for name, kind in groups.items()
        }
        command(**made, **values)

    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in flat}
    del run.__wrapped__
    return run


def _options(kind: type) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name])
        for one in fields(kind)
    ]


@dataclass(frozen=True, slots=True)
class Drafting:
    """How drafts are made."""

    draft: o.Draft = o.DEFAULT_DRAFT
    draft_model: o.DraftModel = None
    num_draft_tokens: o.NumDraft = None
    rule: o.Rule = o.DEFAULT_RULE
    policy: o.Policy = "auto"
    draft_option: o.DraftOption = None
    policy_option: o.PolicyOption = None
    speculative_config: o.SpeculativeJson = None

    def config(self) -> SpeculativeConfig | None:
        """See `options.config_of_json`, or else `options.speculative_config`.

        Raises:
            InvalidParameter: another option of drafting beside ``--speculative-config``.
        """
        if self.speculative_config is not None:
            for one in fields(self):
                if one.name != "speculative_config" and getattr(self, one.name) != one.default:
                    problem = "is given beside --speculative-config, which says all of drafting"
                    raise InvalidParameter(one.name, problem, "write it there, or leave one of the two out")
            return o.config_of_json(self.speculative_config)
        return o.speculative_config(
            self.draft, self.draft_model, self.num_draft_tokens, self.rule, self.policy, self.draft_option,
            self.policy_option,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """How the model runs."""

    dtype: o.Dtype = o.DEFAULT_DTYPE
    threads: o.Threads = None
    executor: o.ExecutorName = "auto"
    device: o.Device = "cpu"
    deterministic: o.Deterministic = False

    def engine(self) -> dict[str, Any]:
        """As `LLM` takes it."""
        return {
            "dtype": self.dtype, "num_threads": self.threads, "executor": self.executor, "device": self.device,
            "deterministic": self.deterministic,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn."""

    max_tokens: o.MaxTokens = o.DEFAULT_MAX_TOKENS
    temperature: o.Temperature = o.DEFAULT_TEMPERATURE
    top_p: o.TopP = 1.0
    top_k: o.TopK = 0
    min_p: o.MinP = 0.0
    presence_penalty: o.PresencePenalty = 0.0
    frequency_penalty: o.FrequencyPenalty = 0.0
    repetition_penalty: o.RepetitionPenalty = 1.0
    seed: o.Seed = None

    def params(self, **more: Any) -> SamplingParams:
        """The sampling parameters, with further fields of the request."""
        return SamplingParams(
            temperature=self.temperature, top_p=self.top_p, top_k=self.top_k, min_p=self.min_p, seed=self.seed,
            max_tokens=self.max_tokens, presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty, repetition_penalty=self.repetition_penalty, **more,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Devices(Machine):
    """The same, on several processes, and how much memory keys and values get."""

    tensor_parallel_size: o.TensorParallel = 1
    pipeline_parallel_size: o.PipelineParallel = 1
    kv_cache_memory_bytes: o.CacheBytes = None
    kv_cache_dtype: o.CacheDtype = "auto"

    def engine(self) -> dict[str, Any]:
        """As `LLM` takes it."""
        own = ("tensor_parallel_size", "pipeline_parallel_size", "kv_cache_dtype")
        room = bytes_of("kv_cache_memory_bytes", self.kv_cache_memory_bytes)
        return Machine.engine(self) | {"kv_cache_memory_bytes": room} | {name: getattr(self, name) for name in own}
