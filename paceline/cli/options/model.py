"""Options that several commands share, each written once, and how they become a loaded `LLM`."""

import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from paceline.cli.terminal.streams import messages, progress_bars
from paceline.config import EngineConfig, LengthPolicyName, SchedulerName, SpeculativeConfig
from paceline.drafters.auto import AUTO
from paceline.drafters.registry import drafter_names
from paceline.errors import InvalidParameter
from paceline.types import SamplingParams

if TYPE_CHECKING:
    from paceline.engine.llm import LLM

Number = TypeVar("Number", int, float)

NONE = "none"
"""The name for plain decoding in place of a drafter's."""
_ENGINE, _SAMPLING = EngineConfig(), SamplingParams()
_DRAFTERS = (AUTO, NONE, *(name for name in drafter_names() if name != "plain"))
_WITH_A_MODEL = (AUTO, "draft_model", "hybrid", "cross_vocabulary", "spire")
_RULE = next(field.default for field in fields(SpeculativeConfig) if field.name == "rule")

DRAFTING, SAMPLING, MACHINE, OUTPUT = "Drafting", "Sampling", "Model and machine", "Output"
SERVER = "Server"
"""Headings of --help."""

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_DRAFT = AUTO
DEFAULT_RULE = str(_RULE)
DEFAULT_DTYPE = _ENGINE.dtype
DEFAULT_MAX_NUM_SEQS = _ENGINE.max_num_seqs
DEFAULT_SCHEDULER = _ENGINE.scheduler
DEFAULT_TEMPERATURE = 0.0
DEFAULT_MAX_TOKENS = _SAMPLING.max_tokens


def option(panel: str, *names: str, help: str, **more: Any) -> Any:
    """A typer option under a heading of --help."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


_NAMED = (
    "Built-in name, GGUF file, safetensors folder or hub id (hf:owner/model:Q4_K_M); BASE+ADAPTER with a LoRA adapter."
)
Model = Annotated[str, option(MACHINE, "--model", "-m", help=_NAMED)]
ModelOrServers = Annotated[
    str, option(MACHINE, "--model", "-m", help=f"{_NAMED} With --url, none stands for no model beside the server.")
]
ModelOrPlan = Annotated[str | None, option(MACHINE, "--model", "-m", help=f"{_NAMED} Not with --cluster.")]
"""Commands with one of these take the model by position, too, unless they have arguments (`model_argument.py`)."""
Draft = Annotated[
    str,
    option(
        DRAFTING, "--draft", "-d",
        help=f"Drafter: {', '.join(_DRAFTERS)}, or module:Class (docs/drafters.md).",
    ),
]  # fmt: skip
DraftModel = Annotated[
    str | None, option(DRAFTING, "--draft-model", help="Smaller model of the same vocabulary, or a draft head.")
]
NumDraft = Annotated[
    int | None,
    option(
        DRAFTING, "--num-draft-tokens", "-k",
        help="Most drafted tokens per target pass; default 8 for most drafters, 0 switches it off.",
    ),
]  # fmt: skip
Rule = Annotated[
    str,
    option(
        DRAFTING, "--rule",
        help="Verification: auto, p/q, coupled, block, a baseline (sample_and_match, rejection_sampling), or a lossy "
        "rule (docs/exactness.md).",
    ),
]  # fmt: skip
Policy = Annotated[str, option(DRAFTING, "--policy", help=f"Draft length: {', '.join(LengthPolicyName.__args__)}.")]
PolicyOption = Annotated[
    list[str] | None, option(DRAFTING, "--policy-option", help="NAME=VALUE for the policy, e.g. threshold=0.5.")
]
DraftOption = Annotated[
    list[str] | None, option(DRAFTING, "--draft-option", help="NAME=VALUE for the drafter, e.g. prompt_lookup_max=4.")
]
SpeculativeJson = Annotated[
    str | None,
    option(
        DRAFTING, "--speculative-config",
        help='All of drafting as one JSON object, with vLLM\'s keys or ours: {"method": "ngram", '
        '"num_speculative_tokens": 4}. In place of the other options of drafting.',
    ),
]  # fmt: skip
MaxTokens = Annotated[int, option(SAMPLING, "--max-tokens", "-n", help="Most tokens of an answer.")]
Temperature = Annotated[float, option(SAMPLING, "--temperature", "-t", help="0 is greedy.")]
TopP = Annotated[float, option(SAMPLING, "--top-p", help="Nucleus, in (0, 1].")]
TopK = Annotated[int, option(SAMPLING, "--top-k", help="0 switches it off.")]
MinP = Annotated[float, option(SAMPLING, "--min-p", help="In [0, 1].")]
PresencePenalty = Annotated[
    float, option(SAMPLING, "--presence-penalty", help="In [-2, 2]: against tokens that the answer has already.")
]
FrequencyPenalty = Annotated[
    float, option(SAMPLING, "--frequency-penalty", help="In [-2, 2]: the same for each time that it has them.")
]
RepetitionPenalty = Annotated[
    float, option(SAMPLING, "--repetition-penalty", help="Above 1: against tokens of prompt and answer; 1 is none.")
]
System = Annotated[str | None, option(SAMPLING, "--system", help="System message.")]
Seed = Annotated[
    int | None,
    option(SAMPLING, "--seed", help="Same seed, same text, under the rules auto, coupled and sample_and_match."),
]
Raw = Annotated[
    bool, option(SAMPLING, "--raw", help="Take the prompt as it is, not as a message in the model's chat template.")
]
Dtype = Annotated[
    str,
    option(
        MACHINE,
        "--dtype",
        help="Weights: auto, bfloat16, float16, float32, int8, w8a8 (activations too), or gguf (a file's own blocks).",
    ),
]
Threads = Annotated[
    int | None, option(MACHINE, "--threads", min=1, help="Threads of a pass; default all physical cores.")
]
TensorParallel = Annotated[
    int, option(MACHINE, "--tensor-parallel-size", help="Processes, or GPUs, that share every layer.")
]
PipelineParallel = Annotated[
    int, option(MACHINE, "--pipeline-parallel-size", help="Groups of processes with some of the layers each.")
]
CacheBytes = Annotated[
    str | None,
    option(
        MACHINE, "--kv-cache-memory-bytes", metavar="BYTES",
        help="Room for keys and values, 512 MiB if left out; long texts need more. 4G is 4 GiB, 4g is 4 GB.",
    ),
]  # fmt: skip
CacheDtype = Annotated[
    str,
    option(
        MACHINE,
        "--kv-cache-dtype",
        help="Keys and values: float32, float16, int8 (lossy), or auto: float16 with the dtypes w8a8, gguf and, on "
        "processors with AVX-512 BF16, bfloat16; else float32.",
    ),
]
Device = Annotated[str, option(MACHINE, "--device", help="cpu, or a GPU, e.g. cuda:0.")]
Deterministic = Annotated[
    bool,
    option(
        MACHINE,
        "--deterministic",
        help="On a GPU: logits bitwise alike in every batch, as on a CPU; slower above 32 rows.",
    ),
]
MaxModelLen = Annotated[
    int | None, option(MACHINE, "--max-model-len", help="Most tokens of prompt and answer; default the model's own.")
]
MaxNumSeqs = Annotated[int, option(MACHINE, "--max-num-seqs", help="Most requests that decode at once.")]
MaxBatchedTokens = Annotated[
    int | None,
    option(
        MACHINE,
        "--max-num-batched-tokens",
        help="Most rows of a pass; default as tuned, else 128 with numba, 512 with others.",
    ),
]
SchedulerPolicy = Annotated[
    str, option(MACHINE, "--scheduler", help=f"Scheduling policy: {', '.join(SchedulerName.__args__)}.")
]
ChatTemplate = Annotated[
    str | None,
    option(
        MACHINE, "--chat-template",
        help="A file with a Jinja template, or the template itself on one line, in place of the model's own.",
    ),
]  # fmt: skip
ParseSpecial = Annotated[
    bool,
    option(
        MACHINE, "--parse-special-tokens/--no-parse-special-tokens",
        help="Control tokens written in prompts and messages count as such, or are plain text.",
    ),
]  # fmt: skip
MaxQueue = Annotated[int, option(SERVER, "--max-queue", help="Requests that may wait; 429 beyond.")]
MaxBody = Annotated[int, option(SERVER, "--max-body-bytes", help="Largest body of a request; 413 beyond.")]
RequestTimeout = Annotated[
    float | None, option(SERVER, "--request-timeout", help="Seconds after which an answer ends with what it has.")
]
PingSeconds = Annotated[float, option(SERVER, "--ping-seconds", help="Silence after which a stream sends a comment.")]
StreamInterval = Annotated[
    int,
    option(SERVER, "--stream-interval", help="Tokens of each event of a stream; 1: what is ready; more hide drafts."),
]
DrainSeconds = Annotated[float, option(SERVER, "--drain-seconds", help="How long answers may go on after SIGTERM.")]
ApiKey = Annotated[
    list[str] | None, option(SERVER, "--api-key", help="Ask for this key; repeatable. Rather use --api-key-file.")
]
ApiKeyFile = Annotated[Path | None, option(SERVER, "--api-key-file", help="Keys to ask for, one per line.")]
Insecure = Annotated[bool, option(SERVER, "--insecure", help="Listen to other machines without asking for a key.")]
AllowedHost = Annotated[
    list[str] | None,
    option(SERVER, "--allowed-host", help="Host header to answer; on loopback only its own by default."),
]
AllowedOrigin = Annotated[
    list[str] | None, option(SERVER, "--allowed-origin", help="Web pages of this origin may ask; repeatable.")
]
MetricsPrefix = Annotated[
    str, option(SERVER, "--metrics-prefix", help="Of names in /metrics; vllm for tools that read vLLM's.")
]
SpecMetrics = Annotated[
    bool, option(SERVER, "--per-request-spec-decode-metrics", help="Answers tell acceptance, in vLLM's shape.")
]
SharedCache = Annotated[
    bool, option(SERVER, "--shared-cache", help="Cached prompts and remembered texts are shared between API keys.")
]
Page = Annotated[bool, option(SERVER, "--page/--no-page", help="Serve the playground at /.")]
RequestLogFile = Annotated[
    Path | None,
    option(SERVER, "--request-log", help="A line of JSON for every request goes here; - for standard error."),
]
Otel = Annotated[
    bool,
    option(SERVER, "--otel", help="Tell OpenTelemetry of every request, by OTEL_EXPORTER_OTLP_ENDPOINT and the like."),
]
ExecutorName = Annotated[
    str, option(MACHINE, "--executor", help="auto, numba, torch or cuda (on --device cpu slowly, for tests).")
]
Json = Annotated[bool, option(OUTPUT, "--json", help="Print one JSON object and nothing else.")]


def speculative_config(
    draft: str,
    draft_model: str | None = None,
    num_draft_tokens: int | None = None,
    rule: str = DEFAULT_RULE,
    policy: str = "auto",
    draft_option: list[str] | None = None,
    policy_option: list[str] | None = None,
) -> SpeculativeConfig | None:
    """The config that the drafting options describe; None for plain decoding.

    Raises:
        InvalidParameter: an option that cannot be read, or one of drafting beside ``none``.
    """
    values: dict[str, Any] = {"method": draft, "model": draft_model, "rule": rule, "policy": policy}
    if num_draft_tokens is not None:
        values["num_draft_tokens"] = num_draft_tokens
    values["options"] = dict(_name_and_value("draft_option", text) for text in draft_option or [])
    values["policy_options"] = dict(_name_and_value("policy_option", text) for text in policy_option or [])
    config = SpeculativeConfig(**values)
    is_for_a_model = draft in _WITH_A_MODEL and "drafters" not in values["options"]
    if draft_model is not None and is_for_a_model and _is_head(draft_model):
        raise InvalidParameter("draft_model", f"{draft_model} is a draft head and no model", "add --draft head")
    if draft not in (NONE, "plain"):
        return config
    given = {
        "rule": rule if rule != DEFAULT_RULE else None,
        "draft_model": draft_model,
        "num_draft_tokens": num_draft_tokens,
        "draft_option": draft_option,
        "policy_option": policy_option,
        "policy": policy if policy != "auto" else None,
    }
    for name, value in given.items():
        if value:
            raise InvalidParameter(name, f"is given, and --draft {draft} drafts nothing", "leave one of the two out")
    return None


def _is_head(name: str) -> bool:
    """Whether `name` is that of a head, as `paceline heads list` has them; their folders tell so when they are read."""
    from paceline.models.heads.registry import all_heads

    return not Path(name).exists() and any(ref.name == name for ref in all_heads())


def config_of_json(text: str) -> SpeculativeConfig | None:
    """The config of ``--speculative-config``; None for plain decoding.

    Raises:
        InvalidParameter: no JSON object, or one that `SpeculativeConfig.of` does not take.
    """
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        remedy = """write e.g. '{"method": "ngram", "num_speculative_tokens": 4}'"""
        raise InvalidParameter("speculative_config", f"{text!r} is no JSON object", remedy)
    return SpeculativeConfig.of(values)


def _name_and_value(field: str, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidParameter(field, f"{text!r} is not NAME=VALUE", "write e.g. threshold=0.5")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def names(text: str | None) -> list[str]:
    """``a,b,c`` as a list; empty for None or an empty text."""
    return [each.strip() for each in (text or "").split(",") if each.strip()]


def numbers(field: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    """``1,2,4`` as numbers of `kind`, at least one. Raises InvalidParameter for anything else."""
    try:
        if found := [kind(each) for each in names(text)]:
            return found
        raise ValueError
    except ValueError:
        form = "1,4,8" if kind is int else "0,0.7,1"
        raise InvalidParameter(field, f"{text!r} is no list of numbers", f"write e.g. {form}") from None


def distinct_numbers(field: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    """As `numbers`, without duplicates, which would be counted twice in a table."""
    found = numbers(field, text, kind)
    if len(set(found)) < len(found):
        raise InvalidParameter(field, f"{text!r} has a number twice", "name each once")
    return found


def share(field: str, text: str) -> float:
    """``3%`` or ``0.03`` as a fraction. Raises InvalidParameter for anything else, or if it is not above 0."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if not 0 < value < 1:
            raise ValueError
    except ValueError:
        raise InvalidParameter(field, f"{text!r} is no share between 0 and 1", "write e.g. 3%") from None
    return value


def need_model(model: str) -> None:
    """Raise InvalidParameter for ``none``, which stands for a model beside --url only."""
    if model == NONE:
        raise InvalidParameter("url", "there is neither a model nor a server", "name a model, or a server with --url")


def load_llm(model: str, speculative: SpeculativeConfig | None, **engine: Any) -> "LLM":
    """The model, with progress bars for whatever takes long: download, conversion, first compilation."""
    from paceline.engine.llm import LLM

    with progress_bars() as progress:
        return LLM(model, speculative=speculative, progress=progress, **engine)


def drafter_of(llm: "LLM") -> str:
    """The name of the drafter that a model really uses."""
    return llm.speculative.method if llm.speculative else NONE


def say_dtype(llm: "LLM", asked: str) -> None:
    """Print the dtype that `auto` chose, and why."""
    if asked == AUTO and llm.dtype_reason:
        messages.print(f"dtype {llm.dtype}: {llm.dtype_reason}", style="dim", soft_wrap=True)
