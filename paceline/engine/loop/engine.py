"""`Engine`: the loop. `step()` is schedule, propose, run, verify, update, observe, and nothing else.

All requests share every pass: prefill chunks, decodes and draft trees are rows of one batch. Single-threaded; the clock
is passed in; `LLM` is the user's interface. An error in one request's law, verdict or text ends only that request; a
drafter's error (`drafting.py`) ends none. A failed pass ends the requests in it, and the others are recomputed. Not the
place for policies (`speculation/`), rules (`sampling/`) or kernels (`models/`).
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

from paceline.drafters.base import Drafter
from paceline.engine.loop.drafting import Drafting
from paceline.engine.loop.inputs import copy_pages
from paceline.engine.loop.live import LiveRequest, LiveSample, sample_name
from paceline.engine.loop.memory import small_cache
from paceline.engine.loop.request_checks import check_request
from paceline.engine.loop.speculation import Speculation
from paceline.engine.loop.step import PassRows, StartedStep, StepOutput, VerifiedDraft, provenance_of, verified_draft
from paceline.engine.loop.step_timer import StepTimer
from paceline.engine.loop.target_pass import PassOutput, start_pass, starts_passes
from paceline.engine.loop.verifying import result_of
from paceline.engine.metrics import EngineMetrics
from paceline.engine.text.grammar import Grammars
from paceline.errors import EngineDead, InvalidParameter, WorkerDied, error_text
from paceline.models.base import CausalLM, KVCache
from paceline.models.rows import Part, build_rows
from paceline.models.state_book import StateLost
from paceline.models.text.tokenizer import Tokenizer
from paceline.sampling import TokenTree, fresh_seed
from paceline.scheduling.batch import Commit, Grant, StepPlan, StepResult
from paceline.scheduling.pages import salt_of
from paceline.scheduling.request import RequestState
from paceline.scheduling.scheduler import Scheduler
from paceline.speculation import LearnedPrices, StepOutcome, StepSeconds
from paceline.types import FinishReason, RequestOutput, SamplingParams, TokenOutput

EMPTY = TokenTree()


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
        self._timer = StepTimer(clock)
        self._has_lost_states = False
        """Whether the latest pass could not run because a state was lost."""
        self._started: StartedStep | None = None
        """The next step, whose pass is under way."""
        self._starts_early = starts_passes(type(model)) and speculation.drafter.traits.is_lookup
        """Whether the next pass is started before this one's tokens are reported. Not with drafters that run passes of
        their own: reports would wait for these."""

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
        check_request(request_id, prompt_token_ids, params, priority, timeout, self._model.config.vocab_size)
        if request_id in self._requests:
            raise InvalidParameter("request_id", f"{request_id!r} is in use", "give every request its own id")
        now = self._clock()
        deadline = None if timeout is None else now + timeout
        salt = salt_of(cache_salt)
        samples: list[LiveSample] = []
        for index in range(params.n):
            own = params if params.n == 1 else params.sample(index)
            name = sample_name(request_id, index, params.n, self._live)
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
        ended = self.end(request_id)
        return ended[-1].finished if ended else None

    def end(self, request_id: str) -> list[StepOutput]:
        """As `abort`, but returns the last output of each sample that ended; none when the request is not running."""
        request = self._requests.get(request_id)
        return [] if request is None else [self._end(live, "abort") for live in request.open_samples()]

    def step(self) -> list[StepOutput]:
        """Complete one target pass over the rows that the scheduler granted and return the tokens that it committed.

        On a device that runs passes by itself the next pass is started before these tokens are turned into text.
        """
        self._timer.resume()
        step, self._started = self._started or self._start(), None
        outputs = self._dismiss(step.plan)
        if not step.plan.is_empty:
            outputs += self._complete(step)
        self._timer.pause(goes_on=self.has_unfinished_requests, is_under_way=self._started is not None)
        return [output for output in outputs if output.tokens or output.completion]

    def _start(self) -> StartedStep:
        """Schedule and draft the next step, and start its pass."""
        timer, seconds = self._timer, StepSeconds()
        plan = self.scheduler.schedule(timer.now)
        for state in plan.preempted:
            self._drafting.release(state.request_id)
        seconds.scheduling = timer.lap()
        trees = self._drafting.propose(plan, self._live)
        plan = self.scheduler.fill_up(sum(map(len, trees.values())))
        seconds.drafting = timer.lap()
        seconds.chosen = min(self._drafting.chosen_seconds, seconds.drafting)
        if self._drafting.read_along(plan, self._live):
            reading = timer.lap()
            seconds.drafting, seconds.chosen = seconds.drafting + reading, seconds.chosen + reading
        scores = self._start_pass(plan, trees)
        return StartedStep(plan, trees, frozenset(self._drafting.own), scores, seconds)

    def _complete(self, step: StartedStep) -> list[StepOutput]:
        """Verify and commit a step; between that and the text of its tokens the next one may be started."""
        timer, seconds = self._timer, step.seconds
        results, failed = self._results(step)
        seconds.verifying = timer.lap()
        commits = self.scheduler.update(results, timer.now)
        self._observe(commits)
        outputs = [self._end(live, "error") for live in failed]
        seconds.committing = timer.lap()
        outcome = _outcome(step, commits)
        self.scheduler.length_policy.observe(outcome)
        if self._starts_early and self.scheduler.has_work:
            self._started = self._start()
        self.prices.observe(outcome)
        self.metrics.observe_step(outcome, len(step.plan.preempted), timer.now)
        rows = step.rows
        return outputs + [self._commit(commit, seconds, rows) for commit in commits]

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
        """End expired requests."""
        expired = [live for state in plan.expired if (live := self._live_of(state)) is not None]
        return [self._retire(live, "timeout") for live in expired]

    def _live_of(self, state: RequestState) -> LiveSample | None:
        """The sample with this state; None if it has ended since, whoever has its id now."""
        live = self._live.get(state.request_id)
        return live if live is not None and live.state is state else None

    def _results(self, step: StartedStep) -> tuple[list[StepResult], list[LiveSample]]:
        """Wait for the pass; returns the result of each grant whose request still runs, and the samples that failed."""
        open_grants = [
            (grant, live) for grant in step.plan.grants if (live := self._live_of(grant.request)) is not None
        ]
        try:
            scores = step.scores()
        except StateLost as error:
            return [], self._start_over([live for _, live in open_grants], error)
        except Exception as error:
            return [], self._fail_pass([live for _, live in open_grants], error)
        self._has_lost_states = False
        results, failed = [], []
        for grant, live in open_grants:
            try:
                results.append(self._result(grant, live, step, scores[grant.request.request_id]))
            except Exception as error:
                live.error = error
                failed.append(live)
        return results, failed

    def _start_pass(self, plan: StepPlan, trees: dict[str, TokenTree]) -> Callable[[], dict[str, PassOutput]]:
        """Start a forward pass, unless the plan is empty; see `StartedStep.scores`."""
        if plan.is_empty:
            return dict
        try:
            copy_pages(self.cache, plan.copies)
            return start_pass(self._model, self.cache, self.drafter.traits.taps, plan.grants, trees, self._live)
        except Exception as error:
            return partial(_raise, error)

    def _fail_pass(self, inside: list[LiveSample], error: Exception) -> list[LiveSample]:
        """Handle a failed pass: samples `inside` it, which are returned, end with `error`; all others are recomputed.

        Raises:
            EngineDead: a pass without any request fails too, or the model is closed.
            WorkerDied: a process of a parallel run has died, so no further pass can succeed.
        """
        if isinstance(error, WorkerDied | EngineDead):
            raise error
        self._probe(error)
        for live in inside:
            live.error = error
        self._restart()
        return inside

    def _start_over(self, inside: list[LiveSample], error: StateLost) -> list[LiveSample]:
        """Compute all requests again, because the state of one is lost; as `_fail_pass` if that happens twice in a
        row."""
        if self._has_lost_states:
            return self._fail_pass(inside, error)
        self._has_lost_states = True
        self._restart()
        return []

    def _restart(self) -> None:
        """Discard the cache, and let the drafter forget the requests that will be recomputed."""
        for state in self.scheduler.restart():
            self._drafting.release(state.request_id)

    def _probe(self, error: Exception) -> None:
        """Run a one-row pass on a separate cache. Raises EngineDead when that fails too."""
        try:
            self._model.forward(build_rows([Part(range(1), 0, [0])]), small_cache(self._model, 1))
        except Exception:
            raise EngineDead(f"a pass failed, and so does one without any request: {error_text(error)}") from error

    def _result(self, grant: Grant, live: LiveSample, step: StartedStep, scores: PassOutput) -> StepResult:
        """See `result_of`. Raises the request's own error, where it has one."""
        if live.error is not None:
            raise live.error
        request_id = grant.request.request_id
        tree, is_own = step.trees.get(request_id, EMPTY), request_id in step.own
        return result_of(grant, live, tree, scores, self.cache, watches=self.drafter.traits.watches, is_own=is_own)

    def _observe(self, commits: Sequence[Commit]) -> None:
        """Tell drafter, prediction and grammar what was committed: the next drafts follow from it."""
        for commit in commits:
            live = self._live[commit.request.request_id]
            live.said += commit.token_ids
            self._drafting.observe(commit.outcome, live)
            if commit.token_ids and live.error is None:
                live.learn(commit.outcome)

    def _commit(self, commit: Commit, seconds: StepSeconds, rows: PassRows) -> StepOutput:
        """Detokenise committed tokens and update counters; retire the sample when it is finished."""
        outcome, reason = commit.outcome, commit.finish_reason
        live = self._live[commit.request.request_id]
        live.counters.book(seconds, decoded=not outcome.num_prefill_tokens)
        if not commit.token_ids:
            return StepOutput(live.request_id, (), None, live.index)
        if not outcome.num_prefill_tokens:  # the first token belongs to the prefill
            live.counters.count(outcome)
        try:
            if live.error is not None:
                raise live.error
            tokens = live.commit(commit.token_ids, provenance_of(commit), reason is not None)
        except Exception as error:
            live.error = error
            return self._end(live, "error")
        draft = verified_draft(outcome, rows)
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
        if not self._live:
            self._started = None  # nobody waits for its pass
        return StepOutput(live.request_id, tokens, output, live.index, completion, draft, live.tail)


def _outcome(step: StartedStep, commits: Sequence[Commit]) -> StepOutcome:
    batch = step.plan.batch
    return StepOutcome(
        [commit.outcome for commit in commits],
        step.plan.num_prefill_rows,
        batch.mean_context,
        step.seconds,
        len(commits) == len(step.plan.grants),
        step.plan.prompt_rows if batch.is_full else 0,
    )


def _raise(error: Exception) -> NoReturn:
    raise error
