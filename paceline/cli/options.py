"""Options that several commands share, each written once, and how they become a loaded `LLM`."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from paceline.config import EngineConfig, SpeculativeConfig
from paceline.errors import InvalidParameter
from paceline.types import SamplingParams

if TYPE_CHECKING:
    from paceline.engine.llm import LLM

messages = Console(stderr=True, highlight=False)
"""Where progress, tables and remarks go; standard output is for text and JSON."""

_ENGINE, _SAMPLING = EngineConfig(), SamplingParams()

Model = Annotated[str, typer.Option("--model", "-m", help="Built-in name, GGUF file, safetensors folder or hub id.")]
Draft = Annotated[
    str,
    typer.Option(
        "--draft",
        "-d",
        help="Drafter: none, ngram, suffix, draft_model, specinfer, cross_vocabulary, hybrid, lookahead, jacobi, "
        "layer_skip, sparse_cache, or module:Class (docs/drafters.md).",
    ),
]
DraftModel = Annotated[str | None, typer.Option("--draft-model", help="Smaller model of the same vocabulary.")]
NumDraft = Annotated[
    int | None,
    typer.Option(
        "--num-draft-tokens",
        "-k",
        help="Most drafted tokens per target pass; default 8 for most drafters, 0 switches it off.",
    ),
]
Rule = Annotated[str, typer.Option("--rule", help="Verification: p/q, coupled, block, or a rule named lossy.")]
Policy = Annotated[
    str,
    typer.Option(
        "--policy", help="Draft length: auto, fixed, heuristic, confidence, disco, goodput, steady or cascade."
    ),
]
PolicyOption = Annotated[
    list[str] | None, typer.Option("--policy-option", help="NAME=VALUE for the policy, e.g. threshold=0.5.")
]
DraftOption = Annotated[
    list[str] | None, typer.Option("--draft-option", help="NAME=VALUE for the drafter, e.g. prompt_lookup_max=4.")
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", help="Most output tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy.")]
TopP = Annotated[float, typer.Option("--top-p", help="Nucleus, in (0, 1].")]
TopK = Annotated[int, typer.Option("--top-k", help="0 switches it off.")]
MinP = Annotated[float, typer.Option("--min-p", help="In [0, 1].")]
Seed = Annotated[int | None, typer.Option("--seed", help="Same seed, same text.")]
Dtype = Annotated[str, typer.Option("--dtype", help="Weights: bfloat16, float32, int8, or w8a8 (activations too).")]
Threads = Annotated[int | None, typer.Option("--threads", help="Threads of a pass; default all processors.")]
TensorParallel = Annotated[
    int, typer.Option("--tensor-parallel-size", help="Processes that share every layer (torch executor).")
]
PipelineParallel = Annotated[
    int, typer.Option("--pipeline-parallel-size", help="Groups of processes with some of the layers each.")
]
CacheBytes = Annotated[
    int | None,
    typer.Option(
        "--kv-cache-memory-bytes", help="Room for keys and values, 512 MiB if left out; long texts need more."
    ),
]
CacheDtype = Annotated[
    str, typer.Option("--kv-cache-dtype", help="Keys and values: float32, float16, or auto (float16 with w8a8).")
]
ExecutorName = Annotated[str, typer.Option("--executor", help="auto, numba or torch.")]

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_DRAFT = "ngram"
DEFAULT_DTYPE = _ENGINE.dtype
DEFAULT_TEMPERATURE = 0.0
DEFAULT_MAX_TOKENS = _SAMPLING.max_tokens


def speculative_config(
    draft: str,
    draft_model: str | None = None,
    num_draft_tokens: int | None = None,
    rule: str = "p/q",
    policy: str = "auto",
    draft_option: list[str] | None = None,
    policy_option: list[str] | None = None,
) -> SpeculativeConfig | None:
    """The config that the drafting options describe; None for plain decoding."""
    fields: dict[str, Any] = {"method": draft, "model": draft_model, "rule": rule, "policy": policy}
    if num_draft_tokens is not None:
        fields["num_draft_tokens"] = num_draft_tokens
    fields["options"] = dict(_name_and_value("draft_option", text) for text in draft_option or [])
    fields["policy_options"] = dict(_name_and_value("policy_option", text) for text in policy_option or [])
    config = SpeculativeConfig(**fields)
    return None if draft in ("none", "plain") else config


def _name_and_value(field: str, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise InvalidParameter(field, f"{text!r} is not NAME=VALUE", "write e.g. threshold=0.5")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def load_llm(model: str, speculative: SpeculativeConfig | None, **engine: Any) -> "LLM":
    """The model, with progress bars for whatever takes long: download, conversion, first compilation."""
    from paceline.engine.llm import LLM

    with progress_bars() as progress:
        return LLM(model, speculative=speculative, progress=progress, **engine)


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Bars on standard error that vanish at the end; call what it gives with (what, done, total)."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=messages, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield progress
