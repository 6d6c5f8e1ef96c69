"""The errors Paceline raises on purpose.

Every message names the field that is wrong and says what to do about it. Anything else that escapes is a bug.

    PacelineError
    ├── InvalidParameter     a request or configuration field has a value that cannot be used (also a ValueError)
    │   ├── PromptTooLong    a prompt has more tokens than the model's context
    │   └── UnknownModel     a request names a model that is not served
    ├── ModelNotFound        no model of this name was found
    ├── UnsupportedModel     an architecture, quantisation or vocabulary Paceline cannot run
    ├── CorruptWeights       a weight file that is truncated, damaged or fails its checksum
    ├── WorkerDied           a process of a parallel run ended or does not answer
    ├── DownloadFailed       weights could not be fetched; what was there before is untouched
    ├── RequestRejected      a request is refused: it would miss its deadline, or no running engine could answer it
    ├── GroupLost            an accepted request cannot be answered any more
    └── EngineDead           an engine failed, was shut down, or belongs to an LLM that is closed

A `DrafterWarning` says that a drafter failed and was switched off for a request, a `PolicyWarning` that a length policy
failed and nothing is drafted any more, a `HeadWarning` that a draft head runs under conditions that it was not trained
for. Texts do not change in these cases; generation is only slower.
"""

import logging
import warnings
from collections.abc import Iterable
from difflib import get_close_matches


class DrafterWarning(UserWarning):
    """A drafter failed for a request, which goes on without drafts."""


class PolicyWarning(UserWarning):
    """A length policy failed; the engine goes on without drafts."""


class HeadWarning(UserWarning):
    """A draft head runs, but not as it was trained: drafts may be accepted less often. Texts are unchanged."""


def error_text(error: BaseException) -> str:
    """`repr(error)`, or its type alone where `repr` raises: errors may come from third-party code."""
    try:
        return repr(error)
    except Exception:
        return f"{type(error).__name__}(...)"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its type where the message is empty."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def warn_safely(message: str, category: type[Warning]) -> None:
    """Issue a warning; log it instead where warning filters would raise, so that it cannot end an engine."""
    try:
        warnings.warn(message, category, stacklevel=4)
    except category:
        logging.getLogger(__name__).warning(message)


class PacelineError(Exception):
    """Base of every error Paceline raises on purpose."""


class InvalidParameter(PacelineError, ValueError):
    """A field has a value that cannot be used.

    Args:
        field: name of the field as the user wrote it, e.g. ``top_p``.
        problem: what is wrong, with the value.
        remedy: what to do instead.
    """

    def __init__(self, field: str, problem: str, remedy: str) -> None:
        super().__init__(f"{field}: {problem}; {remedy}")
        self.field = field
        self.problem = problem
        self.remedy = remedy

    def about(self, field: str) -> "InvalidParameter":
        """The same error with `field` as the name of the field."""
        return type(self)(field, self.problem, self.remedy)

    def __reduce__(self) -> tuple[type, tuple[str, str, str]]:
        """Pickle by the constructor's arguments, so that the error can be sent to another process."""
        return type(self), (self.field, self.problem, self.remedy)


class PromptTooLong(InvalidParameter):
    """A prompt has more tokens than the model's context."""


class UnknownModel(InvalidParameter):
    """A request names a model that is not served."""


class ModelNotFound(PacelineError):
    """A model name that is no folder, no GGUF file, no built-in name and no reachable hub id."""


class UnsupportedModel(PacelineError):
    """An architecture, quantisation type or vocabulary that cannot be run as asked."""


class CorruptWeights(PacelineError):
    """A weight file that is truncated, damaged or fails its checksum."""


class DownloadFailed(PacelineError):
    """Weights could not be fetched. Nothing half-written is left where a later run would trust it."""


class WorkerDied(PacelineError):
    """A process of a parallel run ended or does not answer; the message holds the last output of the process."""


class EngineDead(PacelineError):
    """The engine has failed, was shut down or closed; make a new one."""


class RequestRejected(PacelineError):
    """A request was refused before it ran.

    Args:
        problem: why.
        seconds_late: by how much it would have missed its deadline; None when it was refused for another reason.
    """

    def __init__(self, problem: str, seconds_late: float | None = None) -> None:
        super().__init__(problem)
        self.seconds_late = seconds_late


class GroupLost(PacelineError):
    """An accepted request cannot be answered: no group is left that could take it over, even after restarts."""


def nearest(name: object, known: Iterable[str]) -> str:
    """How a remedy begins where `name` is much like one of the `known` names, which have small letters: "did you mean
    ngram? "; else empty."""
    return "".join(f"did you mean {each}? " for each in get_close_matches(str(name).lower(), list(known), 1))
