"""Decode-maximal batching: one prefill chunk per pass, filled up with decodes."""

from paceline.scheduling.step import StepBuilder


class Sarathi:
    """SARATHI (Agrawal et al. 2023), section 4: one chunk plus as many decodes as fit, together a multiple of the tile.

    A row beyond a tile costs a whole tile, so the chunk is reduced by the number of decodes; the last chunk of a prompt
    may be shorter. Decodes that do not fit wait; earlier requests go first.
    """

    def fill(self, step: StepBuilder) -> None:
        """Grant decodes for all rows but one, then one chunk; without a prefill the last row goes to a decode too.

        Where there is one row in all, it goes to a decode: prompts would keep requests that have begun from going on.

        A preempted request whose rows are all in the prefix cache decodes as it is admitted: it has the last row then.
        """
        tile = step.config.tile
        aligned = step.config.max_num_batched_tokens // tile * tile
        decoding = step.decoding
        step.decode(decoding[: max(1, aligned - 1)])
        if step.num_rows >= aligned:
            return
        if not step.prefilling and step.waiting and not step.has_preempted:
            step.admit(step.waiting[0])
        for request in step.prefilling[:1]:
            step.prefill(request, aligned - step.num_rows)
        if not step.num_prefills and step.num_rows < aligned:
            step.decode(decoding[aligned - 1 : aligned])
