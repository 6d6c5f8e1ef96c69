"""Request-level (static) batching: a batch runs until its last request ends; only then the next one is formed."""

from paceline.scheduling.step import StepBuilder


class RequestLevel:
    """Static batches, the baseline of Orca (Yu et al. 2022, section 2): late requests wait, finished ones leave gaps.

    A finished request is returned at once and has no further rows. In Orca's baseline it is computed on and returned
    when the batch ends, so this one is the faster of the two. Memory for the longest outputs is reserved. Prompts that
    do not fit into one pass are split into chunks.
    """

    def fill(self, step: StepBuilder) -> None:
        """Decode and prefill the batch; admit the next one when it is empty."""
        decoding = step.decoding
        if not decoding and not step.prefilling:
            while step.waiting and step.admit(step.waiting[0], reserve=True):
                pass
        step.decode(decoding)
        for request in step.prefilling:
            step.prefill(request, step.rows_left)
