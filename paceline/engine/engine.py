"""`Engine`: the loop. `step()` is schedule, propose, run, verify, update, observe, and nothing else.

Many requests share every pass: prefill chunks, decodes and draft trees are rows of one batch. Single-threaded and
without a clock of its own choosing; `LLM` is the friendly face. Not the place for policies (`scheduling/`), rules
(`sampling/`) or kernels (`models/`).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np

from paceline.engine.answer import Answer
from paceline.engine.contexts import draft_context
from paceline.engine.live import LiveRequest
from paceline.engine.live_cost import LearnedCost
from paceline.engine.metrics import EngineMetrics
from paceline.engine.parts import copy_pages, part_of, settle
from paceline.engine.speculation import Speculation
from paceline.errors import InvalidParameter
from paceline.models.base import CausalLM, KVCache
from paceline.models.rows import build_rows
from paceline.models.tokenizer import Tokenizer
from paceline.sampling import TokenTree, Verdict, fresh_seed
from paceline.scheduling.batch import Commit, StepPlan, StepResult
from paceline.scheduling.length import StepRecord
from paceline.scheduling.request import RequestState
from paceline.scheduling.scheduler import Scheduler
from paceline.types import CompletionOutput, FinishReason, RequestOutput, SamplingParams, TokenOutput, TokenProvenance

EMPTY = TokenTree()


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step committed for one sample of a request.

    Attributes:
        completion: the whole sample, when these tokens are its last.
        finished: the whole answer, when no other sample of the request goes on either.
    """

    request_id: str
    tokens: tuple[TokenOutput, ...]
    finished: RequestOutput | None = None
    index: int = 0
    completion: CompletionOutput | None = None


class Engine:
    """Runs requests on one model.

    Args:
        model: the target.
        cache: pages the scheduler's pool hands out.
        scheduler: decides who computes what.
        tokenizer, eos_token_ids: of the target.
        speculation: see `Speculation`.
        cost: is told what every decoding pass took.
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
        cost: LearnedCost,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model, self.cache, self.scheduler = model, cache, scheduler
        self._tokenizer, self._eos = tokenizer, tuple(eos_token_ids)
        self.speculation, self._cost, self._clock = speculation, cost, clock
        self._live: dict[str, LiveRequest] = {}
        self._answers: dict[str, Answer] = {}
        self.metrics = EngineMetrics(scheduler)

    @property
    def has_unfinished_requests(self) -> bool:
        return bool(self._live)

    def step_seconds(self, num_draft_tokens: int) -> float:
        """What a step of one request with so many drafted tokens has been taking, drafting included."""
        return num_draft_tokens * self._cost.draft_seconds(1) + self._cost(1 + num_draft_tokens)

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        timeout: float | None = None,
    ) -> None:
        """Queue a request.

        Args:
            priority: smaller runs earlier, as in vLLM; equal ones run in order of arrival.
            timeout: seconds after which it ends with what it has said, reason ``timeout``.

        Raises:
            InvalidParameter: an empty or too long prompt, an id the model does not know, a name already in use.
        """
        self._check_door(request_id, prompt_token_ids, timeout)
        now = self._clock()
        deadline = None if timeout is None else now + timeout
        samples: list[LiveRequest] = []
        for each in self._split(params):
            index = len(samples)
            name = request_id if params.n == 1 else f"{index}_{request_id}"
            leader = samples[0].state if samples else None
            state = RequestState(name, prompt_token_ids, each, now, priority, deadline, leader)
            state.length = self.speculation.length_for(each)
            state.draft_length = self.speculation.promised_length(each)
            vocab_size = self._model.config.vocab_size
            samples.append(LiveRequest(state, self._tokenizer, self._eos, vocab_size, request_id, index))
        self._admit(Answer(request_id, prompt_token_ids, samples))

    def _check_door(self, request_id: str, prompt_token_ids: Sequence[int], timeout: float | None) -> None:
        vocab_size = self._model.config.vocab_size
        unknown = next((i for i in prompt_token_ids if not 0 <= i < vocab_size), None)
        if unknown is not None:
            remedy = "tokenise the prompt with this model's own tokenizer"
            raise InvalidParameter("prompt_token_ids", f"{unknown} is outside the vocabulary of {vocab_size}", remedy)
        if request_id in self._answers:
            raise InvalidParameter("request_id", f"{request_id!r} is in use", "give every request its own id")
        if timeout is not None and not (isinstance(timeout, Real) and timeout > 0):
            raise InvalidParameter("timeout", f"{timeout!r} is not above 0", "give seconds, or leave it out")

    @staticmethod
    def _split(params: SamplingParams) -> list[SamplingParams]:
        """The parameters of each sample."""
        if params.n == 1:
            return [params]
        seed = fresh_seed() if params.seed is None else params.seed
        return [params.sample(index, seed) for index in range(params.n)]

    def _admit(self, answer: Answer) -> None:
        """Hand all samples to the scheduler, or none."""
        for live in answer.samples:
            try:
                self.scheduler.add(live.state)
            except InvalidParameter:
                for added in answer.samples[: live.index]:
                    self.scheduler.abort(added.state.request_id)
                raise
        self._live.update((live.state.request_id, live) for live in answer.samples)
        self._answers[answer.request_id] = answer

    def state_of(self, request_id: str, index: int = 0) -> RequestState:
        """The scheduler's state of a sample of a running request, to look at."""
        return self._answers[request_id].samples[index].state

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now; what it has said so far is returned. None when it is not running."""
        answer = self._answers.get(request_id)
        if answer is None:
            return None
        return [self._abort(live) for live in answer.open_samples()][-1].finished

    def _abort(self, live: LiveRequest) -> StepOutput:
        self.scheduler.abort(live.state.request_id, self._clock())
        return self._retire(live, "abort")

    def step(self) -> list[StepOutput]:
        """One pass of the target over whatever the scheduler grants; the tokens it committed."""
        started = self._clock()
        plan = self.scheduler.schedule(started)
        expired = [self._retire(self._live[state.request_id], "timeout") for state in plan.expired]
        for state in plan.preempted:
            self.speculation.drafter.release(state.request_id)
        if plan.is_empty:
            return expired
        scheduled = self._clock()
        copy_pages(self.cache, plan.copies)
        trees = self._propose(plan)
        drafted = self._clock()
        verdicts = self._verify(plan, trees, self._run(plan, trees))
        verified = self._clock()
        self._learn_costs(plan, trees, drafted - scheduled, verified - drafted)
        commits = self.scheduler.update(self._results(plan, trees, verdicts), verified)
        overhead = scheduled - started + self._clock() - verified
        self._book(plan, drafted - scheduled, verified - drafted, overhead)
        num_drafted = sum(map(len, trees.values()))
        self.metrics.observe_step(plan, num_drafted, commits, verified)
        if plan.only_decodes:
            tokens = sum(len(commit.token_ids) for commit in commits)
            self.speculation.observe_step(StepRecord(plan.num_decodes, num_drafted, tokens, self._clock() - started))
        outputs = [self._commit(commit, verdicts, trees) for commit in commits]
        return expired + [output for output in outputs if output.tokens or output.completion]

    def _propose(self, plan: StepPlan) -> dict[str, TokenTree]:
        """A tree for every request that was granted a draft."""
        grants = [grant for grant in plan.grants if grant.draft_budget > 0]
        if not grants:
            return {}
        live = self._live
        contexts = [draft_context(g, plan.batch, live[g.request.request_id], self.speculation) for g in grants]
        trees = self.speculation.drafter.propose(contexts)
        return {g.request.request_id: tree.prune(g.draft_budget) for g, tree in zip(grants, trees, strict=True)}

    def _run(self, plan: StepPlan, trees: dict[str, TokenTree]) -> dict[str, np.ndarray]:
        """One forward pass; the asked logits [rows, vocab] of every request that gets a token."""
        parts = [part_of(grant, trees.get(grant.request.request_id, EMPTY)) for grant in plan.grants]
        output = self._model.forward(build_rows(parts), self.cache)
        logits, first = {}, 0
        for grant, part in zip(plan.grants, parts, strict=True):
            if part.logits != "none":
                last = first + (len(part.tokens) if part.logits == "all" else 1)
                logits[grant.request.request_id] = output.logits[first:last]
                first = last
        return logits

    def _verify(self, plan: StepPlan, trees: dict[str, TokenTree], logits: dict[str, np.ndarray]) -> dict[str, Verdict]:
        """A verdict for every request with logits; accepted branches are moved to their natural slots."""
        verdicts = {}
        for grant in plan.grants:
            state = grant.request
            if state.request_id not in logits:
                continue
            live, tree = self._live[state.request_id], trees.get(state.request_id, EMPTY)
            rows = logits[state.request_id]

            def target(node: int, live=live, rows=rows, tree=tree):
                return live.target_law(rows, tree, node)

            verdict = self.speculation.verifier(tree, target, live.randomness, state.num_tokens)
            if verdict.path:
                settle(self.cache, grant, verdict)
            if self.speculation.watcher is not None and len(tree):
                self.speculation.watcher.watch(state.request_id, tree, rows.argmax(axis=1))
            verdicts[state.request_id] = verdict
        return verdicts

    def _results(self, plan: StepPlan, trees: dict[str, TokenTree], verdicts: dict[str, Verdict]) -> list[StepResult]:
        results = []
        for grant in plan.grants:
            request_id = grant.request.request_id
            tree, verdict = trees.get(request_id, EMPTY), verdicts.get(request_id)
            tokens = (*(tree.tokens[n] for n in verdict.path), verdict.token) if verdict else ()
            rejected = verdict is not None and verdict.kind == "recovered"
            results.append(StepResult(request_id, grant.num_prefill_tokens, tokens, len(tree), rejected))
        return results

    def _commit(self, commit: Commit, verdicts: dict[str, Verdict], trees: dict[str, TokenTree]) -> StepOutput:
        """Tell the drafter, turn committed tokens into text, and retire the request when it is done."""
        state, reason = commit.request, commit.finish_reason
        live, verdict = self._live[state.request_id], verdicts.get(state.request_id)
        self.speculation.drafter.observe(state.request_id, state.token_ids, reason is not None)
        if verdict is None:
            return StepOutput(live.request_id, ())
        drafted: list[TokenProvenance] = ["drafted"] * len(verdict.path)
        kinds = (drafted + [verdict.kind])[: len(commit.token_ids)]  # noqa: RUF005 (the type checker needs the sum)
        if state.num_output_tokens > len(commit.token_ids):  # the first token belongs to the prefill
            nodes = len(trees.get(state.request_id, EMPTY))
            live.counters.count(nodes, commit.num_accepted, int(commit.rejected), len(commit.token_ids))
        tokens = live.commit(commit.token_ids, kinds, reason is not None)
        return self._retire(live, reason, tokens) if reason else StepOutput(live.request_id, tokens, None, live.index)

    def find_stop_string(self, state: RequestState, token: int) -> bool:
        """For the scheduler's stop rules: whether `token` completes a stop string of the request."""
        return self._live[state.request_id].reads_stop(token)

    def _retire(self, live: LiveRequest, reason: FinishReason, tokens: tuple[TokenOutput, ...] = ()) -> StepOutput:
        """A sample has ended with `tokens`; its request has, when it was the last one."""
        state_id, answer = live.state.request_id, self._answers[live.request_id]
        self.speculation.drafter.release(state_id)
        del self._live[state_id]
        completion = answer.finish(live, reason)
        self.metrics.observe_sample(state_id, reason)
        output = answer.output()
        if output is not None:
            del self._answers[live.request_id]
            self.metrics.observe_request(output)
        return StepOutput(live.request_id, tokens, output, live.index, completion)

    def _learn_costs(self, plan: StepPlan, trees: dict[str, TokenTree], drafting: float, verifying: float) -> None:
        """Tell the cost curve what a draft took, and a pass that only decoded.

        A draft after steps without one had to read what was said meanwhile, and the first one the whole prompt.
        """
        drafted = [grant.request for grant in plan.grants if len(trees.get(grant.request.request_id, EMPTY))]
        if all(r.draft_stats.num_drafts and not r.draft_stats.steps_since_draft for r in drafted):
            depth = max((max(trees[request.request_id].depths) for request in drafted), default=0)
            self._cost.observe_draft(depth, drafting, len(drafted), plan.batch.mean_context)
        if plan.only_decodes:
            rows = len(plan.grants) + sum(map(len, trees.values()))
            self._cost.observe(rows, verifying, plan.batch.mean_context)

    def _book(self, plan: StepPlan, drafting: float, verifying: float, overhead: float) -> None:
        """The step's seconds on the requests that shared it."""
        for grant in plan.grants:
            counters = self._live[grant.request.request_id].counters
            if grant.is_decode:
                counters.book(drafting, verifying, overhead)
            else:
                counters.prefill_seconds += drafting + verifying + overhead
