"""`PromptSizes`: estimated number of tokens of a prompt before it is tokenised, for queues, not for limits."""

from paceline.engine.text.prompts import Gap
from paceline.serving.models.job import Job

_CHARACTERS_PER_TOKEN = 4.0
_PRIOR = 1000.0
"""Weight of the prior, in characters."""


class PromptSizes:
    """Characters per token of every model, from the prompts that were answered."""

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, float]] = {}

    def expected(self, job: Job) -> float:
        """Estimated tokens of the prompt of `job`, at least 1."""
        if isinstance(job.prompt, tuple | list):
            return max(1.0, float(len(job.prompt)))
        characters, tokens = self._counts.get(job.model, (_PRIOR, _PRIOR / _CHARACTERS_PER_TOKEN))
        return max(1.0, _characters(job) * tokens / characters)

    def learn(self, job: Job, num_tokens: int) -> None:
        """Learn that the prompt of `job` had `num_tokens` tokens, unless it may have been cut."""
        is_cut = isinstance(job.prompt, Gap) and job.prompt.keeps_free is not None
        if num_tokens and not is_cut and not isinstance(job.prompt, tuple | list):
            characters, tokens = self._counts.get(job.model, (_PRIOR, _PRIOR / _CHARACTERS_PER_TOKEN))
            self._counts[job.model] = characters + _characters(job), tokens + num_tokens


def _characters(job: Job) -> int:
    if isinstance(job.prompt, str | Gap):
        return len(job.prompt)
    return sum(len(str(message.get("content", ""))) for message in job.messages)
