"""`serve --audit-rate`: the law check on a random sample of a server's answers, while the server is idle.

Requests are sampled when only their first token is known, and answers that a client cancelled count up to there: else
what users do with a text would look like a fault. Wealth goes to a ledger and to /metrics. Not for audits with prompts
of their own (`run.py`).
"""

from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from math import log
from pathlib import Path

import numpy as np

from paceline.drafters.base import DraftContext, Drafter
from paceline.engine.loop.engine import Engine
from paceline.engine.prometheus import gauges_text
from paceline.errors import InvalidParameter
from paceline.evaluation.audit.betting import Bets
from paceline.evaluation.audit.law import recorded_places
from paceline.evaluation.audit.ledger import read_bets, write_bets
from paceline.evaluation.audit.recorder import Recorder
from paceline.models.loaded import LoadedModel
from paceline.sampling import rule_called
from paceline.sampling.tree import TokenTree
from paceline.speculation.outcome import RequestOutcome
from paceline.types import SamplingParams

_WAITING = 64
"""Largest number of answers waiting to be scored; further requests are not sampled until there are fewer."""
_LONGEST = 2048
"""Largest number of tokens of a scored answer with its prompt; a longer one would delay the next request too much."""


@dataclass(slots=True)
class _Taken:
    """A sampled request; its tokens grow while it runs."""

    request_id: str
    token_ids: Sequence[int]
    num_prompt_tokens: int
    params: SamplingParams


class Sampler(Recorder):
    """Wraps a drafter and records the proposals of a random sample of the requests.

    Args:
        inner: the wrapped drafter.
        rate: probability that a request is sampled.
        seed: of the sampling.
        scores_cuts: whether laws that are computed again have the tokens of those drawn from. Otherwise requests with
            top-k, top-p or min-p are left out: rounding moves tokens over the cut.
    """

    def __init__(self, inner: Drafter, rate: float, seed: int | None = None, scores_cuts: bool = True) -> None:
        super().__init__(inner)
        self._rate, self._rng, self._scores_cuts = rate, np.random.default_rng(seed), scores_cuts
        self._chosen: dict[str, bool] = {}
        self._running: dict[str, _Taken] = {}
        self._left: dict[str, _Taken] = {}
        self.waiting: deque[_Taken] = deque()

    def propose(self, contexts: Sequence[DraftContext]) -> list[TokenTree]:
        """See `Drafter`."""
        trees = self.inner.propose(contexts)
        for context, tree in zip(contexts, trees, strict=True):
            if self._takes(context):
                self.note(context, tree)
        return trees

    def observe(self, outcome: RequestOutcome) -> None:
        """See `Drafter`."""
        self.inner.observe(outcome)
        taken = self._running.get(outcome.request_id)
        if taken is not None and outcome.finished:
            taken.token_ids = list(outcome.token_ids)
            self._end(outcome.request_id)

    def release(self, request_id: str) -> None:
        """See `Drafter`. Whether the request was cancelled or only preempted is decided in `settle`."""
        self.inner.release(request_id)
        if request_id in self._running:
            self._left[request_id] = self._running.pop(request_id)

    def settle(self) -> None:
        """Count released requests as cancelled, with the text so far; call it only when no request runs."""
        for request_id in list(self._left):
            self._running[request_id] = self._left.pop(request_id)
            self._end(request_id)
        self._chosen.clear()

    def _takes(self, context: DraftContext) -> bool:
        request_id = context.request_id
        if request_id in self._left:
            self._running[request_id] = self._left.pop(request_id)
        if request_id not in self._chosen:
            is_early = len(context.token_ids) == context.num_prompt_tokens + 1
            self._chosen[request_id] = is_early and self._is_fit(context) and self._rng.random() < self._rate
            if self._chosen[request_id]:
                self._running[request_id] = _Taken(
                    request_id, context.token_ids, context.num_prompt_tokens, context.params
                )
        return request_id in self._running

    def _is_fit(self, context: DraftContext) -> bool:
        """Whether the request's laws can be recomputed, its text is independent evidence, and the queue has room."""
        params = context.params
        plain = not (params.is_greedy or params.bad_words or params.structured_outputs)
        if not self._scores_cuts and (params.top_k > 0 or params.top_p < 1 or params.min_p > 0):
            return False
        return plain and params.seed is None and len(self.waiting) < _WAITING

    def _end(self, request_id: str) -> None:
        taken = self._running.pop(request_id)
        taken.token_ids = list(taken.token_ids)
        if len(taken.token_ids) <= _LONGEST:
            self.waiting.append(taken)
        else:
            self.forget(request_id)


class LiveAudit:
    """The audit of one served model.

    Args:
        loaded: its weights.
        engine: serves it; its drafter is wrapped from now on. Construct this on the engine's thread.
        rate: fraction of the requests, in (0, 1].
        rule: verification rule; must be exact.
        ledger, key: file and key of the wealth; None keeps it in memory.
        alpha: probability of a false alarm, however long it runs.

    Raises:
        InvalidParameter: a rate outside (0, 1], a lossy rule, or a file that is no ledger.
    """

    def __init__(
        self, loaded: LoadedModel, engine: Engine, rate: float, rule: str, ledger: Path | None = None, key: str = "",
        alpha: float = 1e-6, seed: int | None = None,
    ) -> None:  # fmt: skip
        if not 0 < rate <= 1:
            raise InvalidParameter("audit_rate", f"{rate} is not in (0, 1]", "give a share of the requests, e.g. 0.01")
        if rule_called(rule).is_lossy:
            raise InvalidParameter("audit_rate", f"the rule {rule!r} is lossy on purpose", "use an exact rule")
        self._loaded, self._rule, self._ledger, self._key = loaded, rule, ledger, key
        self.bets = read_bets(ledger, key) if ledger else Bets()
        self.log_alpha, self.num_answers = log(alpha), 0
        self.sampler = Sampler(engine.drafter, rate, seed, loaded.model.is_row_invariant)
        self._stack = ExitStack()
        self._stack.enter_context(engine.watched_by(self.sampler))

    @property
    def is_lossy(self) -> bool:
        """Whether the bets rejected, at level alpha, that the text follows the model's laws."""
        return self.bets.peak >= -self.log_alpha

    def work(self, engine: Engine) -> bool:
        """Score one waiting answer if no request runs, on the engine's thread; returns whether one was scored."""
        if engine.has_unfinished_requests:
            return False
        self.sampler.settle()
        if not self.sampler.waiting:
            return False
        self._score(self.sampler.waiting.popleft())
        if self._ledger:
            write_bets(self._ledger, self._key, self.bets)
        return True

    def _score(self, taken: _Taken) -> None:
        places = recorded_places(
            self.sampler, self._loaded, taken.request_id, taken.token_ids, taken.num_prompt_tokens, taken.params
        )
        for place in islice(places, 1, None):  # the first token was known when the request was taken
            self.bets.feed(*place, reads_draft=not rule_called(self._rule).judges_blocks)
        self.num_answers += 1

    def prometheus_text(self, model: str) -> bytes:
        """Wealth and counts in Prometheus' text format."""
        values = {
            "audit_log_wealth": ("logarithm of the evidence that drafts change the text", self.bets.log_e),
            "audit_peak_log_wealth": ("largest logarithm of that evidence so far", self.bets.peak),
            "audit_tokens": ("tokens of audited answers", self.bets.num_tokens),
            "audit_drafted_tokens": ("tokens among them for which something was drafted", self.bets.num_drafted),
            "audit_answers": ("audited answers", self.num_answers),
            "audit_lossy": ("1 where the evidence says that the text is not the target's, else 0", int(self.is_lossy)),
        }
        bounded = {name: (meaning, max(-1e9, min(1e9, value))) for name, (meaning, value) in values.items()}
        return gauges_text(bounded, model)
