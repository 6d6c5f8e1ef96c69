"""`ModelSpec`: a model to be served: its name, its weights and its engine's options. Not the place for groups."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.config import EngineConfig, SpeculativeConfig, from_mapping
from paceline.errors import InvalidParameter

DECODED = 8
"""Rows of a prompt that cost about as much as a token that is generated: passes that decode read all weights for a few
rows."""
FROM_THE_PLAN = ("tensor_parallel_size", "pipeline_parallel_size", "num_threads")
"""Options of engines that groups decide."""


@dataclass(frozen=True)
class ModelSpec:
    """A model that groups hold.

    Attributes:
        name: what requests call it.
        path: built-in name, GGUF file, safetensors folder or hub id.
        slo: seconds from arrival to answer; infinite for none.
        engine: options of `EngineConfig`.
        num_tokens: output tokens of the request that was profiled, or that answers are expected to have; None when
            service times do not follow them.
        slo_first: seconds from arrival to the first token; infinite for none.
        slo_token: seconds per further token; infinite for none.
        prompt_tokens: that prompts are expected to have; None when it is not known.
        speculative: how its engine drafts, as `SpeculativeConfig.of` takes it, ``none`` for not at all; None where the
            plan does not say.

    Raises:
        InvalidParameter: a deadline or number of tokens that is not above 0, or options no engine has.
    """

    name: str
    path: str
    slo: float = float("inf")
    engine: Mapping[str, Any] = field(default_factory=dict)
    num_tokens: int | None = None
    slo_first: float = float("inf")
    slo_token: float = float("inf")
    prompt_tokens: int | None = None
    speculative: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        where = f"models.{self.name}"
        for name in ("slo", "slo_first", "slo_token"):
            seconds = getattr(self, name)
            if not seconds > 0:
                raise InvalidParameter(f"{where}.{name}", f"{seconds} s", "give seconds above 0, or leave it out")
        for name in ("num_tokens", "prompt_tokens"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise InvalidParameter(f"{where}.{name}", f"{count}", "give 1 or more, or leave it out")
        for key in FROM_THE_PLAN:
            if key in self.engine:
                raise InvalidParameter(f"{where}.engine", f"{key} is given", "leave it out: groups decide it")
        from_mapping(EngineConfig, self.engine)
        SpeculativeConfig.of(self.speculative)

    @property
    def seats(self) -> int:
        """Requests that its engine runs at once."""
        return from_mapping(EngineConfig, self.engine).max_num_seqs

    @property
    def options(self) -> Mapping[str, Any]:
        """Options of its engine: its own, and how its layers are best shared by the stages of a pipeline.

        The head is one row of a prompt's work and all of a decode's, so it counts by the time that goes to decodes.
        """
        if self.prompt_tokens is None or self.num_tokens is None:
            return self.engine
        decoding = DECODED * self.num_tokens
        return {"pipeline_head_share": decoding / (decoding + self.prompt_tokens), **self.engine}

    def size(self, max_tokens: int) -> float:
        """Work of a request for `max_tokens` tokens over that of the profiled one."""
        return max_tokens / self.num_tokens if self.num_tokens else 1.0
