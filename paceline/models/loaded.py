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
        """The storage dtype of the weights; None where the executor has no choice of one."""
        choice = getattr(self.model, "dtype_choice", None)
        return choice.name if choice else None

    def close(self) -> None:
        """Stop the threads of the model, or the other processes of a parallel run."""
        end = getattr(self.model, "close", None)
        if end is not None:
            end()
