"""Stall-free batching: every step serves all decodes; prefills are split into chunks that fit into the rest."""

from collections.abc import Iterator

from paceline.scheduling.request import RequestState
from paceline.scheduling.step import StepBuilder


class StallFree:
    """Sarathi-Serve (Agrawal et al. 2024), algorithm 3: decodes, then started prefills, then admissions.

    Prefill chunks fill the token budget that decodes leave. Decodes alone never exceed the budget, since every request
    had at least one row in the step in which it began to decode.

    Beyond the paper: the first prefill is sure of half of these rows only, as far as there are others. So a long prompt
    does not keep short ones waiting until its end, and it takes at most twice as long for them. Beside decodes, rows
    late in a long prompt count as several, for the time of their attention (`StepBuilder.prefill_in_time`). A prompt
    that fills the step leaves rows for drafts that save more time than these rows take
    (`StepBuilder.leave_rows_for_drafts`).
    """

    def fill(self, step: StepBuilder) -> None:
        """Grant in that order; a step that had to preempt admits no request."""
        step.decode(step.decoding)
        if started := step.prefilling:
            self._share(step, *started)
        while step.waiting and step.rows_left and not step.has_preempted:
            request = step.waiting[0]
            if not step.admit(request):
                return
            step.leave_rows_for_drafts()
            step.prefill_in_time(request, step.rows_left)

    def _share(self, step: StepBuilder, first: RequestState, *others: RequestState) -> None:
        """Grant chunks of started prefills and of waiting ones that may overtake the first; it gets what they leave."""
        step.leave_rows_for_drafts()
        kept = min(first.num_to_prefill, step.rows_left - step.rows_left // 2)
        for request in sorted(others, key=lambda one: one.num_to_prefill):
            step.prefill_in_time(request, step.rows_left - kept)
        for request in _overtaking(step, first):
            if step.rows_left <= kept or not step.admit(request):
                break
            step.prefill_in_time(request, step.rows_left - kept)
        step.prefill_in_time(first, step.rows_left)


def _overtaking(step: StepBuilder, first: RequestState) -> Iterator[RequestState]:
    """Waiting requests with at most half as much left to prefill as `first`, none of them before one with a smaller
    priority number.

    A prompt that begins like that of `first` is about as long: it waits, and finds the pages in the prefix cache.
    """
    waiting = [] if step.has_preempted else list(step.waiting)
    for request in waiting:
        if request.priority > min(first.priority, waiting[0].priority):
            return
        if 2 * request.num_to_prefill <= first.num_to_prefill:
            yield request
