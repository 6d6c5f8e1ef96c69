"""Iteration-level batching: requests join and leave after every pass; prompts are never cut."""

from paceline.scheduling.step import StepBuilder


class Orca:
    """Orca (Yu et al. 2022), algorithm 1: first come, first served, with memory for the longest output reserved.

    The reservation means nobody is ever preempted. A prompt runs in one pass, so decodes beside it stall: that is what
    chunked prefills improve on. Orca knows no token budget; here a prompt that does not fit waits for the next step,
    unless it is the only one of its step.
    """

    def fill(self, step: StepBuilder) -> None:
        """All decodes, then whole prompts; the first that does not fit ends the admissions."""
        step.decode(step.decoding)
        while step.waiting:
            request = step.waiting[0]
            if step.num_prefills and request.num_to_compute > step.rows_left:
                return
            if not step.admit(request, reserve=True):
                return
            step.prefill(request, request.num_to_compute)
