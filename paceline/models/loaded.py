"""`LoadedModel`: a model that is ready to score rows, together with where it came from."""

from dataclasses import dataclass, field

from paceline.errors import EngineDead
from paceline.models.base import CausalLM, HasDtype, HasProcesses
from paceline.models.resolve import ModelSource
from paceline.models.turnstile import Turnstile


@dataclass(eq=False, slots=True)
class LoadedModel:
    """A model ready to score rows, with its tokenizer (`source.tokenizer`).

    Attributes:
        is_closed: whether `close` was called; no pass can run afterwards.
        turn: held during a step of an engine on these weights, whose threads and buffers serve one pass at a time.
    """

    source: ModelSource
    model: CausalLM
    is_closed: bool = field(default=False, init=False)
    turn: Turnstile = field(default_factory=Turnstile, init=False)

    @property
    def dtype(self) -> str | None:
        """The storage dtype of the weights; None where the executor has no choice of one."""
        return self.model.dtype_choice.name if isinstance(self.model, HasDtype) else None

    def check_open(self) -> None:
        """Raise EngineDead after `close`."""
        if self.is_closed:
            others = "every LLM that shares its loaded weights (drafting_with, from_loaded)"
            raise EngineDead(f"this LLM is closed, as is {others}; make a new one")

    def close(self) -> None:
        """Stop the threads of the model, or the other processes of a parallel run."""
        self.is_closed = True
        if isinstance(self.model, HasProcesses):
            self.model.close()
