"""Stall-free batching: decodes never wait for a prefill, prefills are cut into chunks that fit beside them."""

from paceline.scheduling.step import StepBuilder


class StallFree:
    """Sarathi-Serve (Agrawal et al. 2024), algorithm 3: decodes, then started prefills, then admissions.

    Prefill chunks fill what decodes leave of the token budget. Since every request had at least one row in the step
    that made it decode, decodes alone never exceed the budget.
    """

    def fill(self, step: StepBuilder) -> None:
        """Ask in that order; nobody is admitted in a step that had to preempt."""
        step.decode(step.decoding)
        for request in step.prefilling:
            step.prefill(request, step.rows_left)
        while step.waiting and step.rows_left and not step.has_preempted:
            request = step.waiting[0]
            if not step.admit(request):
                return
            step.prefill(request, step.rows_left)
