"""How an engine runs: frozen dataclasses, composed, each default written once, unknown keys refused.

Not for what one request asks (`types.SamplingParams`) or for the shape of a model (`models/architecture/config.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from os import PathLike
from typing import Any, Literal, TypeVar

from paceline.errors import InvalidParameter, nearest
from paceline.limits import is_whole
from paceline.vllm_names import ENGINE, SPECULATIVE, constructor_knows_vllm, in_our_words, refuse

Executor = Literal["auto", "numba", "torch", "cuda"]
SchedulerName = Literal["stall_free", "sarathi", "orca", "request_level"]
LengthPolicyName = Literal["auto", "fixed", "heuristic", "confidence", "disco", "goodput", "cascade"]

_T = TypeVar("_T")
_DTYPE_SPELLINGS = {
    "half": "float16", "fp16": "float16", "float": "float32", "fp32": "float32", "bf16": "bfloat16",
}  # fmt: skip
"""Other spellings of dtypes, with those that are known."""


@constructor_knows_vllm(SPECULATIVE)
@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """How drafts are made and verified.

    Attributes:
        method: a drafter's name (``ngram``, ``suffix``, ``draft_model``, ...), ``module.path:ClassName``, or ``auto``
            (`drafters.auto.resolve_drafter` chooses).
        num_draft_tokens: most drafted tokens (tree nodes besides the root) that a target pass verifies per request; 0
            switches drafting off, None takes the method's default (8 for most).
        model: the draft model of ``draft_model``.
        rule: how drafts are verified. ``auto`` depends on the request: with a seed, the text equals that of plain
            sampling token for token; without one, the exact rule that accepts most is used. Lossy rules must be named.
        rule_options: the rule's own options, e.g. ``{"lenience": 0.5}``.
        policy: how many tokens are drafted each step: ``fixed``, ``heuristic``, ``confidence``, ``disco``, ``goodput``
            or ``cascade``. ``auto`` is ``goodput``, which adapts to what a pass costs and what is accepted.
        policy_options: the policy's own options, e.g. ``{"threshold": 0.5}``.
        options: the drafter's own options, e.g. ``{"prompt_lookup_max": 4}``.
    """

    method: str
    num_draft_tokens: int | None = None
    model: str | None = None
    rule: str = "auto"
    rule_options: Mapping[str, float] = field(default_factory=dict)
    policy: LengthPolicyName = "auto"
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        number = self.num_draft_tokens
        if number is not None and not (is_whole(number) and int(number) >= 0):
            problem = f"{number!r} is not a whole number of 0 or more"
            raise InvalidParameter("num_draft_tokens", problem, "use 0 to switch drafting off")
        for name, kinds in (("method", str), ("rule", str), ("model", str | PathLike | None)):
            if not isinstance(getattr(self, name), kinds):
                raise InvalidParameter(name, f"{getattr(self, name)!r} is no text", "give a name")
        for name in ("rule_options", "policy_options", "options"):
            if not isinstance(getattr(self, name), Mapping):
                raise InvalidParameter(name, f"{getattr(self, name)!r} is no mapping", "give e.g. {'name': value}")
        if self.policy not in LengthPolicyName.__args__:
            known = ", ".join(LengthPolicyName.__args__)
            raise InvalidParameter("policy", f"{self.policy!r} is unknown", f"use one of {known}")
        if self.method == "draft_model" and not self.model:
            remedy = "name a smaller model of the same family (--draft-model)"
            raise InvalidParameter("model", "the method draft_model needs one", remedy)

    @classmethod
    def of(cls, value: "str | Mapping[str, Any] | SpeculativeConfig | None") -> "SpeculativeConfig | None":
        """The config for a method's name, a mapping of fields or a config; None for None, "none" and "plain".

        A mapping with the method "none" is None too; "plain" there is the drafter that proposes nothing.
        A mapping may have the keys of vLLM's ``speculative_config``.

        Raises:
            InvalidParameter: it is none of these, or a field has a value that cannot be used.
        """
        if value in (None, "plain"):
            return None
        config = value if isinstance(value, SpeculativeConfig) else cls._read(value)
        return None if config.method == "none" else config

    @classmethod
    def _read(cls, value: "str | Mapping[str, Any]") -> "SpeculativeConfig":
        if isinstance(value, str):
            return cls(value)
        if not isinstance(value, Mapping):
            raise InvalidParameter("speculative", f"{value!r} is no drafter", "give a name, or a mapping with a method")
        value = in_our_words(value)
        if "method" not in value:
            raise InvalidParameter("method", "is missing in speculative", "name a drafter, e.g. 'ngram'")
        return from_mapping(cls, value)


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How a model is run.

    Attributes:
        dtype: storage of weights: ``bfloat16``, ``float16``, ``float32`` or ``int8`` (lossy against the others);
            ``w8a8`` rounds activations to 8 bits too and multiplies integers (lossy against int8, and the fastest for
            many rows); ``gguf`` does so with the blocks of a GGUF file as they are;
            ``auto`` chooses one that leaves the text as the file has it (`models.dtypes.choose_dtype`).
        executor: ``numba`` (CPU kernels), ``torch`` (every family, any device), ``cuda`` (graphs and kernels for
            GPUs), or ``auto``: cuda on a CUDA device, torch on others, on the CPU numba where it can.
        device: torch device of the torch and cuda executors, e.g. ``cuda:0``. The cuda executor runs on ``cpu`` too,
            slowly, for tests.
        num_threads: threads of a pass; None takes the number of physical cores that the process may use.
        tensor_parallel_size: processes that share every layer, on the cuda executor or the torch executor; on CUDA each
            process has a device of its own.
        pipeline_parallel_size: pipeline stages, each a group of `tensor_parallel_size` processes with some layers.
        pipeline_layer_partition: number of layers of each stage; None balances the stages.
        pipeline_head_share: share of the output head's weights, in [0, 1], that counts in this balance: 1 for decoding,
            nearly 0 for long prompts, for which the head computes one row only.
        max_model_len: most tokens of a request, prompt and output; None takes the model's own limit.
        max_num_seqs: most requests decoding at once.
        max_num_batched_tokens: most rows of a pass; None takes what `paceline tune --target-ms` chose, else as many as
            prefill at nearly the best rate: 512 with torch and cuda, 128 with numba, or more, up to 512, with
            many experts or for twice `max_num_seqs`.
        kv_cache_memory_bytes: memory of the KV cache; pages are only touched when used. 512 MiB when neither this nor
            `memory_fraction` is given.
        kv_cache_dtype: storage of keys and values on the numba executor: ``float32``, ``float16`` (half the memory,
            rounded), ``int8`` (a quarter, lossy), or ``auto``: float16 with w8a8, gguf, and with bfloat16 where the
            processor has AVX-512 BF16, else float32. The torch executor keeps the weights' type.
        memory_fraction: memory of the KV cache as a share, in (0, 1], of the memory that is free once the model is
            loaded; with several GPUs, of all of them.
        prefix_caching: whether requests with a common prefix compute its pages once.
        scheduler: scheduling policy by name.
        chat_template: a file with a Jinja template, or the template itself, in place of the model's own.
        parse_special_tokens: whether control tokens written in prompts and messages (``<|im_end|>``) are encoded as
            such. If not, they are plain text, and only the chat template can end a turn.
        deterministic: for the cuda executor: the logits of a row are bitwise the same whatever rows share its pass, as
            those of the CPU kernels always are, so that greedy and seeded texts depend neither on drafts nor on other
            requests. Passes of more than 32 rows are slower. Otherwise texts may depend on them where two tokens are
            about equally probable.
        profile: measured cost of a pass: a file that `paceline tune` wrote, ``auto`` for the one in the cache, if any,
            or ``none``. Without a profile a few passes are timed when the engine is created. In both cases the costs
            are updated with every pass.
    """

    dtype: str = "auto"
    executor: Executor = "auto"
    device: str = "cpu"
    num_threads: int | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    pipeline_layer_partition: tuple[int, ...] | None = None
    pipeline_head_share: float = 1.0
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: str = "auto"
    memory_fraction: float | None = None
    prefix_caching: bool = True
    scheduler: SchedulerName = "stall_free"
    chat_template: str | PathLike[str] | None = None
    parse_special_tokens: bool = True
    deterministic: bool = False
    profile: str = "auto"

    def __post_init__(self) -> None:
        for name in ("num_threads", "tensor_parallel_size", "pipeline_parallel_size", "max_model_len", "max_num_seqs",
                     "max_num_batched_tokens", "kv_cache_memory_bytes"):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not (is_whole(value) and int(value) >= 1):
                raise InvalidParameter(
                    name, f"{value!r} is not a whole number of 1 or more", "change it, or leave it out"
                )
        for name in ("dtype", "device", "kv_cache_dtype", "profile"):
            if not isinstance(getattr(self, name), str):
                raise InvalidParameter(name, f"{getattr(self, name)!r} is no text", "give a string, or leave it out")
        for name in ("prefix_caching", "parse_special_tokens", "deterministic"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidParameter(name, f"{getattr(self, name)!r} is not True or False", "give a bool")
        if self.chat_template is not None and not (
            isinstance(self.chat_template, str | PathLike) and str(self.chat_template)
        ):
            problem = f"{self.chat_template!r} is neither a file's name nor a template"
            raise InvalidParameter("chat_template", problem, "change it, or leave it out")
        if not self.profile:
            raise InvalidParameter("profile", "is empty", "name a file of `paceline tune`, or give auto or none")
        if self.dtype in _DTYPE_SPELLINGS:
            raise InvalidParameter("dtype", f"{self.dtype!r} is unknown", f"use {_DTYPE_SPELLINGS[self.dtype]!r}")
        if self.memory_fraction is not None:
            if self.kv_cache_memory_bytes is not None:
                raise InvalidParameter("memory_fraction", "is given beside kv_cache_memory_bytes", "give one of them")
            if not (isinstance(self.memory_fraction, Real) and 0 < self.memory_fraction <= 1):
                raise InvalidParameter("memory_fraction", f"{self.memory_fraction!r} is not in (0, 1]", "e.g. 0.5")
        if not (isinstance(self.pipeline_head_share, Real) and 0 <= self.pipeline_head_share <= 1):
            raise InvalidParameter("pipeline_head_share", f"{self.pipeline_head_share!r} is not in [0, 1]", "e.g. 0.2")
        if self.device.partition(":")[0] in ("gpu", "nvidia"):
            raise InvalidParameter("device", f"{self.device!r} is unknown", "use cuda:0 for the first GPU, or cpu")
        for name, choice in (("executor", Executor), ("scheduler", SchedulerName)):
            if getattr(self, name) not in choice.__args__:
                problem = f"{getattr(self, name)!r} is unknown"
                raise InvalidParameter(name, problem, f"use one of {', '.join(choice.__args__)}")
        if self.executor == "numba" and self.is_parallel:
            raise InvalidParameter("executor", "'numba' runs in one process", "use torch for a parallel run")
        if self.executor == "numba" and self.device != "cpu":
            raise InvalidParameter("device", f"{self.device!r} is no place for the numba executor", "use cpu")

    @property
    def is_parallel(self) -> bool:
        """Whether the model runs on several processes."""
        return self.tensor_parallel_size * self.pipeline_parallel_size > 1

    @property
    def chosen_executor(self) -> Executor:
        """The executor to use; ``auto`` means numba, or torch where numba cannot run the model."""
        if self.executor != "auto":
            return self.executor
        if self.device.startswith("cuda"):
            return "cuda"
        return "auto" if self.device == "cpu" and not self.is_parallel else "torch"

    def in_one_process(self) -> "EngineConfig":
        """The same config for a draft model, which runs in this process alone and is given no conversations."""
        one: dict[str, Any] = {
            "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "pipeline_layer_partition": None,
            "chat_template": None,
        }  # fmt: skip
        return replace(self, **one)


def from_mapping(cls: type[_T], values: Mapping[str, Any], beside: tuple[str, ...] = ()) -> _T:
    """An instance of the dataclass `cls`.

    Args:
        beside: further names that the caller knows, for the message.

    Raises:
        InvalidParameter: an unknown key; the message lists the known ones.
    """
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    unknown = [key for key in values if key not in known]
    refuse(unknown, ENGINE if cls is EngineConfig else SPECULATIVE)
    for key in unknown:
        names = [*beside, *known]
        remedy = f"{nearest(key, names)}use one of {', '.join(names)}"
        raise InvalidParameter(key, "is an unknown configuration key", remedy)
    return cls(**values)
