"""Stall-free batching: every step serves all decodes; prefills are split into chunks that fit into the rest."""

from paceline.scheduling.step import StepBuilder


class StallFree:
    """Sarathi-Serve (Agrawal et al. 2024), algorithm 3: decodes, then started prefills, then admissions.

    Prefill chunks fill the token budget that decodes leave. Decodes alone never exceed the budget, since every request
    had at least one row in the step in which it began to decode.
    """

    def fill(self, step: StepBuilder) -> None:
        """Grant in that order; a step that had to preempt admits no request."""
        step.decode(step.decoding)
        for request in step.prefilling:
            step.prefill(request, step.rows_left)
        while step.waiting and step.rows_left and not step.has_preempted:
            request = step.waiting[0]
            if not step.admit(request):
                return
            step.prefill(request, step.rows_left)
