"""`StopChecker`: the stop rules, applied token by token, so that a stop inside an accepted draft cuts it there.

Forbidding end tokens before `min_tokens` is the warper's task. Text belongs to the engine, which provides the test for
stop strings as a callback (`RequestState.completes_stop`).
"""

from collections.abc import Collection, Sequence

from paceline.scheduling.request import RequestState
from paceline.types import FinishReason


class StopChecker:
    """Stop rules of every request.

    Args:
        eos_token_ids: end-of-sequence ids of the model.
    """

    def __init__(self, eos_token_ids: Collection[int] = ()) -> None:
        self._eos_token_ids = frozenset(eos_token_ids)

    def commit(self, request: RequestState, token_ids: Sequence[int]) -> tuple[int, FinishReason | None]:
        """Append tokens up to the one that ends the output; returns (number appended, finish reason or None)."""
        params = request.params
        can_end = len(token_ids) >= request.num_output_left or params.ends_by_text or params.stop_token_ids
        if not can_end and (params.ignore_eos or self._eos_token_ids.isdisjoint(token_ids)):
            request.token_ids += token_ids
            return len(token_ids), None
        for count, token in enumerate(token_ids, start=1):
            request.token_ids.append(token)
            reason = self.check(request, token)
            if reason:
                return count, reason
        return len(token_ids), None

    def check(self, request: RequestState, token: int) -> FinishReason | None:
        """The finish reason if the output ends with `token`, already the last of ``request.token_ids``; else None.

        Stop ids do not apply to the first ``min_tokens`` output tokens; `completes_stop` checks that limit itself.
        """
        params = request.params
        if params.ends_by_text and request.completes_stop is not None and request.completes_stop(token):
            return "stop"
        if request.num_output_tokens > params.min_tokens:
            is_eos = token in self._eos_token_ids and not params.ignore_eos
            if is_eos or token in params.stop_token_ids:
                return "stop"
        return "length" if request.num_output_left <= 0 else None
