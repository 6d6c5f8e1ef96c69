"""`Answer`: the samples of one request, from the first to be added to the last to finish."""

from collections.abc import Iterable, Sequence

from paceline.engine.live import LiveRequest
from paceline.scheduling.request import RequestState
from paceline.types import CompletionOutput, FinishReason, RequestMetrics, RequestOutput


class Answer:
    """Collects the completions of one request.

    Args:
        request_id: the user's.
        prompt_token_ids: of every sample.
        samples: one live request each, in order of their index.
    """

    def __init__(self, request_id: str, prompt_token_ids: Sequence[int], samples: Sequence[LiveRequest]) -> None:
        self.request_id = request_id
        self._prompt_token_ids = tuple(prompt_token_ids)
        self.samples = tuple(samples)
        self._done: dict[int, CompletionOutput] = {}

    def open_samples(self) -> list[LiveRequest]:
        """Samples that have not finished."""
        return [live for live in self.samples if live.index not in self._done]

    def finish(self, live: LiveRequest, reason: FinishReason) -> CompletionOutput:
        """Take in a finished sample; text that was held back for a stop string is released."""
        live.text.finish()
        completion = CompletionOutput(
            index=live.index,
            text=live.text.text,
            token_ids=tuple(live.state.output_token_ids),
            provenance=tuple(live.provenance),
            finish_reason=reason,
            stats=live.counters.stats(),
            lossy=live.lossy,
        )
        self._done[live.index] = completion
        return completion

    def output(self) -> RequestOutput | None:
        """The whole answer, None while a sample is missing."""
        if len(self._done) < len(self.samples):
            return None
        completions = tuple(self._done[index] for index in range(len(self.samples)))
        metrics = _metrics([live.state for live in self.samples])
        return RequestOutput(self.request_id, None, self._prompt_token_ids, completions, metrics)


def _metrics(states: Sequence[RequestState]) -> RequestMetrics:
    return RequestMetrics(
        arrival_time=states[0].arrival_time,
        first_scheduled_time=_earliest(state.first_scheduled_time for state in states),
        first_token_time=_earliest(state.first_token_time for state in states),
        finish_time=max(state.finish_time or state.arrival_time for state in states),
        num_cached_tokens=states[0].num_cached_tokens,
        num_preemptions=sum(state.num_preemptions for state in states),
    )


def _earliest(times: Iterable[float | None]) -> float | None:
    return min((time for time in times if time is not None), default=None)
