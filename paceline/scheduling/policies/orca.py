"""Iteration-level batching: requests join and leave after every pass; prompts are never split into chunks."""

from paceline.scheduling.step import StepBuilder


class Orca:
    """Orca (Yu et al. 2022), algorithm 1: first come, first served, with memory for the longest output reserved.

    Because of the reservation no request is ever preempted. A prompt runs in one pass, so decodes in that pass stall,
    which chunked prefills avoid. Orca bounds a pass by its requests (`max_num_seqs`), not by its tokens: all decodes
    run, and a prompt. Here only further prompts wait for the next step where they exceed the token budget.
    """

    def fill(self, step: StepBuilder) -> None:
        """Grant all decodes, then whole prompts in order until one does not fit."""
        step.decode(step.decoding)
        while step.waiting:
            request = step.waiting[0]
            if step.num_prefills and request.num_to_compute > step.rows_left:
                return
            if not step.admit(request, reserve=True):
                return
            step.prefill(request, request.num_to_compute)
