"""Paceline makes a language model that people already have generate faster without changing what it says.

    from paceline import LLM, SamplingParams

    llm = LLM(model="smollm2-135m", speculative="ngram")
    print(llm.generate("The capital of France is", SamplingParams(temperature=0))[0].text)

Public names load on first use, so that importing a package that needs no model (`paceline.theory`,
`paceline.scheduling`) stays cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.config import SpeculativeConfig
    from paceline.engine.async_llm import AsyncLLM
    from paceline.engine.llm import LLM
    from paceline.errors import (
        CorruptWeights,
        DownloadFailed,
        EngineDead,
        InvalidParameter,
        ModelNotFound,
        PacelineError,
        UnsupportedModel,
    )
    from paceline.types import (
        CompletionOutput,
        RequestMetrics,
        RequestOutput,
        RequestStats,
        SamplingParams,
        TokenOutput,
    )

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "CorruptWeights",
    "DownloadFailed",
    "EngineDead",
    "InvalidParameter",
    "ModelNotFound",
    "PacelineError",
    "RequestMetrics",
    "RequestOutput",
    "RequestStats",
    "SamplingParams",
    "SpeculativeConfig",
    "TokenOutput",
    "UnsupportedModel",
]

_HOMES = {
    "paceline.engine.llm": ("LLM",),
    "paceline.engine.async_llm": ("AsyncLLM",),
    "paceline.config": ("SpeculativeConfig",),
    "paceline.types": (
        "CompletionOutput",
        "RequestMetrics",
        "RequestOutput",
        "RequestStats",
        "SamplingParams",
        "TokenOutput",
    ),
    "paceline.errors": (
        "CorruptWeights",
        "DownloadFailed",
        "EngineDead",
        "InvalidParameter",
        "ModelNotFound",
        "PacelineError",
        "UnsupportedModel",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        from paceline.vllm_names import NAMES, hint

        raise AttributeError(f"module 'paceline' has no attribute {name!r}{hint(name, NAMES)}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
