"""The engine's state of a running request, beyond the scheduler's.

A `LiveSample` has the law (warper), the judge, the text and the counters of one sample; a `LiveRequest` collects the
samples of a request until the last has finished. Not for pages, budgets or stop rules on token ids (the scheduler's).
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from paceline.engine.loop.prediction import Prediction
from paceline.engine.text.line_reader import LineReader
from paceline.engine.text.logprobs import LogprobsReader
from paceline.engine.text.stream import TextStream
from paceline.models.text.tokenizer import Tokenizer
from paceline.sampling import Judge, TokenTree, Warper
from paceline.sampling.grammar import GrammarCursor, cut
from paceline.scheduling.request import RequestState
from paceline.speculation import RequestOutcome, StepSeconds
from paceline.types import (
    CompletionOutput,
    FinishReason,
    RequestMetrics,
    RequestOutput,
    RequestStats,
    SamplingParams,
    TokenOutput,
    TokenProvenance,
)


@dataclass(slots=True)
class Counters:
    """Running sums behind `RequestStats`."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_rejected_tokens: int = 0
    emitted_per_pass: list[int] = field(default_factory=list)
    drafted_per_level: list[int] = field(default_factory=list)
    tested_per_level: list[int] = field(default_factory=list)
    accepted_per_level: list[int] = field(default_factory=list)
    seconds: StepSeconds = field(default_factory=StepSeconds)
    prefill_seconds: float = 0.0
    num_predicted: int = 0
    num_accepted_predictions: int = 0
    num_forced: int = 0

    def count(self, outcome: RequestOutcome) -> None:
        """Count a target pass that emitted tokens."""
        self.emitted_per_pass.append(outcome.num_new)
        if not outcome.num_draft_tokens:
            return
        self.num_drafts += 1
        self.num_draft_tokens += outcome.num_draft_tokens
        self.num_accepted_tokens += outcome.num_accepted
        self.num_rejected_tokens += outcome.num_rejected
        _count(self.drafted_per_level, outcome.depth)
        _count(self.tested_per_level, outcome.num_accepted + outcome.level_rejected)
        _count(self.accepted_per_level, outcome.num_accepted)

    def book(self, seconds: StepSeconds, decoded: bool) -> None:
        """Add the time of a step that the request took part in: as prefill time unless it `decoded`."""
        if not decoded:
            self.prefill_seconds += seconds.total
            return
        own = self.seconds
        own.scheduling += seconds.scheduling
        own.drafting += seconds.drafting
        own.verifying += seconds.verifying
        own.committing += seconds.committing

    def stats(self) -> RequestStats:
        """The counters as the user's `RequestStats`."""
        longest = max(self.emitted_per_pass, default=0)
        return RequestStats(
            num_drafts=self.num_drafts,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
            num_rejected_tokens=self.num_rejected_tokens,
            num_target_passes=len(self.emitted_per_pass),
            accepted_per_pass=tuple(self.emitted_per_pass.count(n + 1) for n in range(longest)),
            draft_seconds=self.seconds.drafting,
            verify_seconds=self.seconds.verifying,
            other_seconds=self.seconds.scheduling + self.seconds.committing,
            prefill_seconds=self.prefill_seconds,
            drafted_per_level=tuple(self.drafted_per_level),
            tested_per_level=tuple(self.tested_per_level),
            accepted_per_level=tuple(self.accepted_per_level),
        )


class LiveSample:
    """One sample of a running request.

    Args:
        state: the scheduler's state of the sample.
        judge: verification rule and randomness for its drafts.
        tokenizer: for its text and its bad words.
        eos_token_ids: ids that end the output.
        vocab_size: of the model.
        request_id: the user's id of the request, of which this is sample number `index`.
        grammar: constrains its text.

    Attributes:
        error: an error of this request alone, else None; the request ends with it at its next verdict.
        said: its committed output tokens, in a list that no drafter can reach.
        tail: text that `completion` released and no token has.
    """

    def __init__(
        self, state: RequestState, judge: Judge, tokenizer: Tokenizer, eos_token_ids: Sequence[int], vocab_size: int,
        request_id: str, index: int = 0, grammar: GrammarCursor | None = None,
    ) -> None:  # fmt: skip
        params = state.params
        self.state, self.judge = state, judge
        self.request_id, self.index = request_id, index
        self.error: Exception | None = None
        self.said: list[int] = []
        self.tail = ""
        self.text = TextStream(tokenizer, params.stop, params.include_stop_str_in_output, LineReader.of(params))
        state.completes_stop = self._reads_stop
        self._unread: list[str] = []  # text of tokens that the stop rule decoded before their commit
        self.provenance: list[TokenProvenance] = []
        self.counters = Counters()
        self.prediction, self.grammar = predicted(tokenizer, params), grammar
        self._forced: Sequence[int] = ()
        self.end_token_ids = frozenset(() if params.ignore_eos else eos_token_ids).union(params.stop_token_ids)
        self.warper = Warper(
            params,
            bad_word_ids=[ids for word in params.bad_words for ids in spellings(tokenizer, word)],
            eos_token_ids=() if params.ignore_eos else eos_token_ids,
            token_ids=state.token_ids,
            num_prompt_tokens=state.num_prompt_tokens,
            grammar=grammar,
            vocab_size=vocab_size,
        )
        self.scores = LogprobsReader(params, self.warper)
        self.expect()

    def expect(self) -> None:
        """Update the tokens forced by the grammar, and tell the scheduler how many tokens the request itself drafts."""
        self._forced = self.grammar.forced() if self.grammar is not None else ()
        wanted = self.prediction.wanted if self.prediction else 0
        self.state.least_drafts = len(self._forced) or wanted

    def own_draft(self, most: int) -> Sequence[int]:
        """The request's own draft, at most `most` tokens: those its grammar forces, else those of its prediction.

        Where there is one, the drafter is not asked.
        """
        return self._forced[:most] or (self.prediction.draft(most) if self.prediction else ())

    def trimmed(self, tree: TokenTree) -> TokenTree:
        """A drafter's tree without nodes that the grammar forbids; empty, with `error` set, when the grammar fails."""
        if self.grammar is None:
            return tree
        try:
            return cut(tree, self.grammar)
        except Exception as error:
            self.error = error
            return TokenTree()

    def restore(self) -> None:
        """Restore the token list that drafters may read, after one has changed it."""
        self.state.token_ids[:] = [*self.state.prompt_token_ids, *self.said]

    def learn(self, outcome: RequestOutcome) -> None:
        """Update prediction, grammar and counters after a commit."""
        if self.prediction is None and self.grammar is None:
            return
        if outcome.is_own and self._forced:
            self.counters.num_forced += outcome.num_accepted
        elif outcome.is_own and self.prediction is not None:
            self.counters.num_predicted += outcome.num_draft_tokens
            self.counters.num_accepted_predictions += outcome.num_accepted
            self.prediction.judge(outcome.num_draft_tokens, outcome.num_accepted)
        if outcome.finished:
            return
        if self.prediction is not None:
            self.prediction.follow(outcome.new_tokens)
        try:
            self.expect()
        except Exception as error:
            self.error = error

    def _reads_stop(self, token: int) -> bool:
        """Decode one accepted token; whether it completes the grammar or a stop string, or a line ends the text.

        Called by the scheduler's stop rule with the token already appended. An error is stored in `error`, and True
        returned, so that the request ends there.
        """
        may_stop = self.state.num_output_tokens > self.state.params.min_tokens
        try:
            self._unread.append(self.text.push(token, may_stop))
            if self.grammar is not None:
                self.grammar.commit(token)
        except Exception as error:
            self.error = error
            return True
        return self.text.stopped or (self.grammar is not None and self.grammar.is_finished)

    def commit(
        self, token_ids: Sequence[int], provenance: Sequence[TokenProvenance], finished: bool
    ) -> tuple[TokenOutput, ...]:
        """Committed tokens with text, provenance and log-probabilities, as streamed.

        When `finished`, the last token also carries the text that was held back.
        """
        pieces, self._unread = self._unread, []
        push = self.text.push
        pieces += [push(token) for token in token_ids[len(pieces) :]]
        if finished and pieces:
            pieces[-1] += self.text.finish()
        self.provenance += provenance
        scores = self.scores.commit(len(token_ids))
        return tuple(map(TokenOutput, token_ids, pieces, provenance, scores))

    def completion(self, reason: FinishReason) -> CompletionOutput:
        """The finished sample; a failed one has the text and tokens from before its error.

        Also sets the state's finish reason.
        """
        if self.text.is_cut and reason == "stop":
            reason = "length"
        if self.error is None:
            try:
                self.tail = self.text.finish()
            except Exception as error:
                self.error, reason = error, "error"
        self.state.finish_reason = reason
        return CompletionOutput(
            index=self.index,
            text=self.text.text,
            token_ids=tuple(self.said[: len(self.provenance)]),
            provenance=tuple(self.provenance),
            finish_reason=reason,
            stats=self.counters.stats(),
            lossy=self.judge.rule.may_change(self.state.params.is_greedy, self.counters.num_drafts > 0),
            error=None if self.error is None else f"{type(self.error).__name__}: {self.error}",
            logprobs=self.scores.output(len(self.provenance)),
            num_predicted_tokens=self.counters.num_predicted,
            num_accepted_predictions=self.counters.num_accepted_predictions,
            num_forced_tokens=self.counters.num_forced,
            stop_reason=self._stop_reason() if reason == "stop" else None,
        )

    def _stop_reason(self) -> str | int | None:
        """The stop string or stop token id of the request that ended the text; None where the model's EOS did."""
        named = [token for token in self.said[-1:] if token in self.state.params.stop_token_ids]
        return self.text.stop_string or next(iter(named), None)


class LiveRequest:
    """Collects the completions of one request.

    Args:
        request_id: the user's id.
        prompt_token_ids: the prompt that all samples share.
        samples: in order of their index.
    """

    def __init__(self, request_id: str, prompt_token_ids: Sequence[int], samples: Sequence[LiveSample]) -> None:
        self.request_id = request_id
        self._prompt_token_ids = tuple(prompt_token_ids)
        self.samples = tuple(samples)
        self._done: dict[int, CompletionOutput] = {}

    def open_samples(self) -> list[LiveSample]:
        """Samples that have not finished."""
        return [live for live in self.samples if live.index not in self._done]

    def finish(self, live: LiveSample, reason: FinishReason) -> CompletionOutput:
        """Store and return the completion of a sample; text that was held back for a stop string is released."""
        completion = self._done[live.index] = live.completion(reason)
        return completion

    def output(self) -> RequestOutput | None:
        """The request's output; None while a sample is unfinished."""
        if len(self._done) < len(self.samples):
            return None
        completions = tuple(self._done[index] for index in range(len(self.samples)))
        metrics = _metrics([live.state for live in self.samples])
        prompts = (live.scores.prompt(len(self._prompt_token_ids)) for live in self.samples)
        prompt_logprobs = next((each for each in prompts if each is not None), None)
        return RequestOutput(self.request_id, None, self._prompt_token_ids, completions, metrics, prompt_logprobs)


def sample_name(request_id: str, index: int, num_samples: int, in_use: Container[str]) -> str:
    """An id for the scheduler's state of sample `index`, unlike all that are `in_use`.

    It is the user's `request_id`, with ``0_``, ``1_``, ... in front where there are several samples. Users' own ids may
    look the same; then apostrophes are appended. Outputs have the user's id, never this one.
    """
    name = request_id if num_samples == 1 else f"{index}_{request_id}"
    while name in in_use:
        name += "'"
    return name


def predicted(tokenizer: Tokenizer, params: SamplingParams) -> Prediction | None:
    """The request's prediction, tokenised; None when it has none."""
    text = params.prediction
    token_ids = tokenizer.encode(text, add_special_tokens=False) if isinstance(text, str) else text
    return Prediction(token_ids) if token_ids else None


def spellings(tokenizer: Tokenizer, word: str) -> list[list[int]]:
    """Token ids of `word` at the beginning of a text and after a space, and as it is where it begins with white space;
    all are forbidden."""
    bare = word.lstrip()
    texts = (bare, " " + bare) if bare else ()
    options = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    if word != bare:
        options.append(_within_text(tokenizer, word))
    return [ids for i, ids in enumerate(options) if ids and ids not in options[:i]]


def _within_text(tokenizer: Tokenizer, word: str) -> list[int]:
    """Token ids of `word` after other text: before what begins one, some tokenizers put a space."""
    before, whole, alone = [tokenizer.encode(text, add_special_tokens=False) for text in ("a", "a" + word, word)]
    return whole[len(before) :] if whole[: len(before)] == before else alone


def _count(levels: list[int], depth: int) -> None:
    """Add one to each of the first `depth` levels."""
    levels += [0] * (depth - len(levels))
    for level in range(depth):
        levels[level] += 1


def _metrics(states: Sequence[RequestState]) -> RequestMetrics:
    return RequestMetrics(
        arrival_time=states[0].arrival_time,
        first_scheduled_time=_earliest(state.first_scheduled_time for state in states),
        first_token_time=_earliest(state.first_token_time for state in states),
        finish_time=max(state.finish_time or state.arrival_time for state in states),
        num_cached_tokens=states[0].num_cached_tokens,
        num_preemptions=sum(state.num_preemptions for state in states),
    )


def _earliest(times: Iterable[float | None]) -> float | None:
    return min((time for time in times if time is not None), default=None)
