"""`LoadedModel`: a model that is ready to score rows, together with where it came from."""

from dataclasses import dataclass

from paceline.models.base import CausalLM
from paceline.models.resolve import ModelSource


@dataclass(frozen=True, eq=False, slots=True)
class LoadedModel:
    """A model ready to score rows, with its tokenizer (`source.tokenizer`)."""

    source: ModelSource
    model: CausalLM

    def close(self) -> None:
        """End what the model keeps running: its threads, or the other processes of a parallel run."""
        end = getattr(self.model, "close", None)
        if end is not None:
            end()
