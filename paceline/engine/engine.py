"""`Engine`: the loop. `step()` is schedule, propose, run, verify, update, observe, and nothing else.

All requests share every pass: prefill chunks, decodes and draft trees are rows of one batch. Single-threaded; the clock
is passed in; `LLM` is the user's interface. An error in one request's law, verdict or text ends only that request; a
drafter's error (`drafting.py`) ends none. A failed pass ends the requests in it, and the others are recomputed. Not the
place for policies (`speculation/`), rules (`sampling/`) or kernels (`models/`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import NamedTuple

from paceline.drafters.base import Drafter
from paceline.engine.drafting import Drafting
from paceline.engine.drawing import Scores, score, verdict_of
from paceline.engine.grammar import Grammars
from paceline.engine.inputs import copy_pages, settle
from paceline.engine.live import LiveRequest, LiveSample
from paceline.engine.metrics import EngineMetrics
from paceline.engine.speculation import Speculation
from paceline.engine.step_timer import StepTimer
from paceline.errors import EngineDead, InvalidParameter, WorkerDied, error_text
from paceline.models.base import CausalLM, KVCache
from paceline.models.rows import Part, build_rows
from paceline.models.tokenizer import Tokenizer
from paceline.sampling import TokenTree, fresh_seed
from paceline.scheduling.batch import Commit, Grant, StepPlan, StepResult
from paceline.scheduling.pages import salt_of
from paceline.scheduling.request import RequestState
from paceline.scheduling.scheduler import Scheduler
from paceline.speculation import LearnedPrices, RequestOutcome, StepOutcome, StepSeconds
from paceline.types import CompletionOutput, FinishReason, RequestOutput, SamplingParams, TokenOutput, TokenProvenance

EMPTY = TokenTree()


class PassRows(NamedTuple):
    """Numbers of rows of one pass by kind, over all requests."""

    prefill: int
    decode: int
    draft: int


class VerifiedDraft(NamedTuple):
    """The draft tree that a step verified for one sample, and the rows of that pass.

    Attributes:
        tokens, parents: of its nodes, as in `TokenTree`.
        num_accepted: accepted nodes among the committed tokens; they form a path from the root.
        is_own: the draft came from the request's own grammar or prediction, not from the drafter.
        rows: of the whole pass, all requests together.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    num_accepted: int
    is_own: bool
    rows: PassRows


@dataclass(slots=True)
class StepOutput:
    """What a step committed for one sample of a request. Not frozen, which would make it slow to construct.

    Attributes:
        completion: the finished sample, when these are its last tokens.
        finished: the request's output, when this was its last unfinished sample.
        draft: the verified draft; None where nothing was drafted.
    """

    request_id: str
    tokens: tuple[TokenOutput, ...]
    finished: RequestOutput | None = None
    index: int = 0
    completion: CompletionOutput | None = None
    draft: VerifiedDraft | None = None


class Engine:
    """Runs requests on one model.

    Args:
        model: the target.
        cache: keys and values, in the pages that the scheduler's pool allocates.
        scheduler: decides which rows each request gets in a step.
        tokenizer, eos_token_ids: of the target.
        speculation: drafter, verification rule and length policy.
        prices: cost estimates, updated after every step.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        model: CausalLM,
        cache: KVCache,
        scheduler: Scheduler,
        tokenizer: Tokenizer,
        eos_token_ids: Sequence[int],
        speculation: Speculation,
        prices: LearnedPrices,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model, self.cache, self.scheduler = model, cache, scheduler
        self._tokenizer, self._eos = tokenizer, tuple(eos_token_ids)
        self.speculation, self.prices, self._clock = speculation, prices, clock
        self._drafting = Drafting(speculation, model.config.vocab_size)
        self.grammars = Grammars(tokenizer, self._eos, model.config.vocab_size)
        self._live: dict[str, LiveSample] = {}
        self._requests: dict[str, LiveRequest] = {}
        self._next_sample = fresh_seed()
        """Number of the next sample; those of two engines differ, or they would share acceptance coins (`judge`)."""
        self.metrics = EngineMetrics(scheduler)

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._live)

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
    ) -> None:
        """Queue a request.

        Args:
            priority: smaller values run earlier, as in vLLM; equal ones run in order of arrival.
            timeout: seconds after which the request ends with the tokens it has, finish reason ``timeout``.
            cache_salt: cached pages and remembered texts are shared only among requests of the same salt, so that
                others cannot infer a prompt from response times.

        Raises:
            InvalidParameter: an empty or too long prompt, a token id outside the vocabulary, a request id in use, a
                priority that is not whole, a timeout that is not above 0, or parameters that this engine cannot honour.
        """
        self._check_door(request_id, prompt_token_ids, params, priority, timeout)
        now = self._clock()
        deadline = None if timeout is None else now + timeout
        salt = salt_of(cache_salt)
        samples: list[LiveSample] = []
        for index in range(params.n):
            own = params if params.n == 1 else params.sample(index)
            name = request_id if params.n == 1 else f"{index}_{request_id}"
            leader = samples[0].state if samples else None
            state = RequestState(name, prompt_token_ids, own, now, priority, deadline, leader, salt)
            self.speculation.shape(own, state)
            judge = self.speculation.judge_of(own, self._next_sample + index)
            vocab_size = self._model.config.vocab_size
            wanted = own.structured_outputs
            grammar = None if wanted is None else self.grammars.cursor(wanted)
            live = LiveSample(state, judge, self._tokenizer, self._eos, vocab_size, request_id, index, grammar)
            samples.append(live)
        self._next_sample += len(samples)
        self._admit(LiveRequest(request_id, prompt_token_ids, samples))

    @property
    def drafter(self) -> Drafter:
        """The drafter in use."""
        return self._drafting.drafter

    @contextmanager
    def watched_by(self, drafter: Drafter) -> Iterator[None]:
        """Within the context, replace the drafter by `drafter`, a wrapper around it that records its calls."""
        own, self._drafting.drafter = self._drafting.drafter, drafter
        try:
            yield
        finally:
            self._drafting.drafter = own

    def state_of(self, request_id: str, index: int = 0) -> RequestState:
        """The scheduler's state of one sample of a running request, for inspection."""
        return self._requests[request_id].samples[index].state

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now and return its output so far; None when it is not running."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        return [self._end(live, "abort") for live in request.open_samples()][-1].finished

    def step(self) -> list[StepOutput]:
        """Run one target pass over the rows that the scheduler granted and return the tokens that it committed."""
        timer = StepTimer(self._clock)
        plan = self.scheduler.schedule(timer.now)
        outputs = self._dismiss(plan)
        if plan.is_empty:
            return outputs
        timer.scheduled()
        trees = self._drafting.propose(plan, self._live)
        timer.drafted(self._drafting.chosen_seconds)
        results, failed = self._results(plan, trees)
        timer.verified()
        commits = self.scheduler.update(results, timer.now)
        timer.committed()
        rows = PassRows(plan.batch.num_prefill_rows, plan.batch.num_decodes, sum(map(len, trees.values())))
        outputs += [self._commit(commit, timer.seconds, rows) for commit in commits]
        outputs += [self._end(self._live[request_id], "error") for request_id in failed if request_id in self._live]
        self._learn(plan, commits, timer)
        return [output for output in outputs if output.tokens or output.completion]

    def _check_door(
        self, request_id: str, prompt_token_ids: Sequence[int], params: SamplingParams, priority: int,
        timeout: float | None,
    ) -> None:  # fmt: skip
        vocab_size, remedy = self._model.config.vocab_size, "tokenise it with this model's own tokenizer"
        predicted = () if isinstance(params.prediction, str) else params.prediction
        given = {
            "prompt_token_ids": prompt_token_ids, "prediction": predicted, "stop_token_ids": params.stop_token_ids,
        }  # fmt: skip
        for name, token_ids in given.items():
            unknown = next((i for i in token_ids if not 0 <= i < vocab_size), None)
            if unknown is not None:
                raise InvalidParameter(name, f"{unknown} is outside the vocabulary of {vocab_size}", remedy)
        if not isinstance(request_id, str) or not request_id:
            raise InvalidParameter("request_id", f"{request_id!r} is no name", "give a text, or leave it out")
        if request_id in self._requests:
            raise InvalidParameter("request_id", f"{request_id!r} is in use", "give every request its own id")
        if timeout is not None and not (isinstance(timeout, Real) and timeout > 0):
            raise InvalidParameter("timeout", f"{timeout!r} is not above 0", "give seconds, or leave it out")
        if not isinstance(priority, int):
            raise InvalidParameter("priority", f"{priority!r} is no whole number", "give a smaller one to run earlier")

    def _admit(self, request: LiveRequest) -> None:
        """Add all samples of a request to the scheduler, or none when one is refused."""
        for live in request.samples:
            try:
                self.scheduler.add(live.state)
            except InvalidParameter:
                for added in request.samples[: live.index]:
                    self.scheduler.abort(added.state.request_id)
                raise
        self._live.update((live.state.request_id, live) for live in request.samples)
        self._requests[request.request_id] = request

    def _dismiss(self, plan: StepPlan) -> list[StepOutput]:
        """End expired requests, and let the drafter release preempted ones."""
        for state in plan.preempted:
            self._drafting.release(state.request_id)
        return [self._retire(self._live[state.request_id], "timeout") for state in plan.expired]

    def _results(self, plan: StepPlan, trees: dict[str, TokenTree]) -> tuple[list[StepResult], list[str]]:
        """Run the pass; returns the result of each grant, and the ids of the requests that failed."""
        try:
            copy_pages(self.cache, plan.copies)
            scores = self._run(plan, trees)
        except Exception as error:
            return [], self._fail_pass(plan, error)
        results, failed = [], []
        for grant in plan.grants:
            live = self._live[grant.request.request_id]
            try:
                results.append(self._result(grant, live, trees, scores[grant.request.request_id]))
            except Exception as error:
                live.error = error
                failed.append(grant.request.request_id)
        return results, failed

    def _run(self, plan: StepPlan, trees: dict[str, TokenTree]) -> dict[str, Scores]:
        """One forward pass; its outputs by request id."""
        return score(self._model, self.cache, self.drafter.traits.taps, plan.grants, trees, self._live)

    def _fail_pass(self, plan: StepPlan, error: Exception) -> list[str]:
        """Handle a failed pass: its requests, whose ids are returned, end with `error`; all others are recomputed.

        Raises:
            EngineDead: a pass without any request fails too, or the model is closed.
            WorkerDied: a process of a parallel run has died, so no further pass can succeed.
        """
        if isinstance(error, WorkerDied | EngineDead):
            raise error
        self._probe(error)
        failed = [grant.request.request_id for grant in plan.grants]
        for request_id in failed:
            self._live[request_id].error = error
        for state in self.scheduler.restart():
            self._drafting.release(state.request_id)
        return failed

    def _probe(self, error: Exception) -> None:
        """Run a one-row pass on a separate cache. Raises EngineDead when that fails too."""
        try:
            self._model.forward(build_rows([Part(range(1), 0, [0])]), self._model.new_cache(1))
        except Exception:
            raise EngineDead(f"a pass failed, and so does one without any request: {error_text(error)}") from error

    def _result(self, grant: Grant, live: LiveSample, trees: dict[str, TokenTree], scores: Scores) -> StepResult:
        """Verify one grant's draft and move the cache rows of the accepted path to the slots of their positions.

        Raises the request's own error, where it has one.
        """
        if live.error is not None:
            raise live.error
        request_id = grant.request.request_id
        result = StepResult(request_id, grant.num_prefill_tokens, taps=scores.taps or None)
        if not scores.says_something:
            return result
        if scores.logits is not None:
            rows = live.scores.read_prompt(grant, scores.logits)
            scores = scores if rows is scores.logits else scores._replace(logits=rows, peaks=None)
        if not grant.needs_logits:
            return result
        tree = trees.get(request_id, EMPTY)
        verdict = verdict_of(live, tree, scores)
        if scores.logits is not None:
            live.scores.read(tree, verdict, scores.logits)
        if verdict.path:
            settle(self.cache, grant, verdict)
        result.token_ids = (*[tree.tokens[node] for node in verdict.path], verdict.token)
        if scores.taps and grant.is_decode:
            nodes = [0, *(node + 1 for node in verdict.path)]
            kept = slice(len(nodes)) if nodes[-1] == len(nodes) - 1 else nodes  # of a chain nothing is copied
            result.taps = {tap: states[kept] for tap, states in scores.taps.items()}
        if len(tree):
            result.num_draft_tokens, result.depth = len(tree), tree.depth
            result.tokens, result.parents = tree.tokens, tree.parents
            result.promised = sum(tree.chances or ())
            result.rejected, result.num_refused = verdict.kind == "recovered", verdict.num_rejected
            result.is_own = request_id in self._drafting.own
            if self.drafter.traits.watches:
                result.picks = scores.picks()
        return result

    def _commit(self, commit: Commit, seconds: StepSeconds, rows: PassRows) -> StepOutput:
        """Detokenise committed tokens and update counters; retire the sample when it is finished."""
        state, outcome, reason = commit.request, commit.outcome, commit.finish_reason
        live = self._live[state.request_id]
        live.said += commit.token_ids
        self._drafting.observe(outcome, live)
        live.counters.book(seconds, decoded=not outcome.num_prefill_tokens)
        if not commit.token_ids:
            return StepOutput(live.request_id, (), None, live.index)
        if not outcome.num_prefill_tokens:  # the first token belongs to the prefill
            live.counters.count(outcome)
        try:
            if live.error is not None:
                raise live.error
            tokens = live.commit(commit.token_ids, _provenance(commit), reason is not None)
        except Exception as error:
            live.error = error
            return self._end(live, "error")
        live.learn(outcome)
        draft = _verified(outcome, rows)
        if reason:
            return self._retire(live, reason, tokens, draft)
        return StepOutput(live.request_id, tokens, None, live.index, None, draft)

    def _end(self, live: LiveSample, reason: FinishReason) -> StepOutput:
        """End a sample at once, with the tokens it has."""
        self.scheduler.abort(live.state.request_id, self._clock(), reason)
        return self._retire(live, reason)

    def _retire(
        self, live: LiveSample, reason: FinishReason, tokens: tuple[TokenOutput, ...] = (),
        draft: VerifiedDraft | None = None,
    ) -> StepOutput:  # fmt: skip
        """Remove a sample that ended with `tokens`, and its request when no other sample is unfinished."""
        state_id, request = live.state.request_id, self._requests[live.request_id]
        self._drafting.release(state_id)
        del self._live[state_id]
        completion = request.finish(live, reason)
        self.metrics.observe_sample(state_id, completion.finish_reason)
        output = request.output()
        if output is not None:
            del self._requests[live.request_id]
            self.metrics.observe_request(output)
        return StepOutput(live.request_id, tokens, output, live.index, completion, draft)

    def _learn(self, plan: StepPlan, commits: Sequence[Commit], timer: StepTimer) -> None:
        """Report the step's outcome to the length policy, the prices and the metrics."""
        step = StepOutcome(
            [commit.outcome for commit in commits],
            plan.batch.num_prefill_rows,
            plan.batch.mean_context,
            timer.finished(),
            len(commits) == len(plan.grants),
        )
        self.scheduler.length.observe(step)
        self.prices.observe(step)
        self.metrics.observe_step(step, len(plan.preempted), timer.now)


def _verified(outcome: RequestOutcome, rows: PassRows) -> VerifiedDraft | None:
    if not outcome.num_draft_tokens:
        return None
    return VerifiedDraft(outcome.tokens, outcome.parents, outcome.num_accepted, outcome.is_own, rows)


def _provenance(commit: Commit) -> list[TokenProvenance]:
    """The provenance of each committed token."""
    outcome = commit.outcome
    own: TokenProvenance = "target"
    if outcome.num_draft_tokens:
        own = "recovered" if outcome.level_refused else "bonus" if outcome.num_accepted else "target"
    kinds: list[TokenProvenance] = ["drafted"] * outcome.num_accepted
    kinds.append(own)
    return kinds[: outcome.num_new]
