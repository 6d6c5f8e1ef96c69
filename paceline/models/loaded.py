"""`LoadedModel`: a model that is ready to score rows, together with where it came from."""

from dataclasses import dataclass

from paceline.models.base import CausalLM
from paceline.models.resolve import ModelSource


@dataclass(frozen=True, eq=False, slots=True)
class LoadedModel:
    """A model ready to score rows, with its tokenizer (`source.tokenizer`)."""

    source: ModelSource
    model: CausalLM

    @property
    def dtype(self) -> str | None:
        """How its weights are stored, where its executor chose that."""
        choice = getattr(self.model, "dtype_choice", None)
        return choice.name if choice else None

    def close(self) -> None:
        """End what the model keeps running: its threads, or the other processes of a parallel run."""
        end = getattr(self.model, "close", None)
        if end is not None:
            end()
