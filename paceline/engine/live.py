"""`LiveRequest`: what the engine knows of a request while it runs, beyond the scheduler's state.

Its law (warper), its randomness, its text, its counters. Not for pages, budgets or stop rules about ids: those are the
scheduler's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from paceline.engine.text import TextStream
from paceline.models.tokenizer import Tokenizer
from paceline.sampling import CounterRandomness, Law, TokenTree, Warper, fresh_seed
from paceline.scheduling.request import RequestState
from paceline.types import RequestStats, TokenOutput, TokenProvenance


@dataclass(slots=True)
class Counters:
    """Running sums behind `RequestStats`."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_rejections: int = 0
    emitted_per_pass: list[int] = field(default_factory=list)
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0
    prefill_seconds: float = 0.0

    def count(self, num_nodes: int, num_accepted: int, num_rejected: int, num_emitted: int) -> None:
        """One target pass that emitted tokens: of `num_nodes` drafted, how many were accepted, refused, emitted."""
        if num_nodes:
            self.num_drafts += 1
        self.num_draft_tokens += num_nodes
        self.num_accepted_tokens += num_accepted
        self.num_rejections += num_rejected
        self.emitted_per_pass.append(num_emitted)

    def book(self, draft_seconds: float, verify_seconds: float, other_seconds: float) -> None:
        """Time of a step in which the request decoded."""
        self.draft_seconds += draft_seconds
        self.verify_seconds += verify_seconds
        self.other_seconds += other_seconds

    def stats(self) -> RequestStats:
        longest = max(self.emitted_per_pass, default=0)
        return RequestStats(
            num_drafts=self.num_drafts,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
            num_rejections=self.num_rejections,
            num_target_passes=len(self.emitted_per_pass),
            accepted_per_pass=tuple(self.emitted_per_pass.count(n + 1) for n in range(longest)),
            draft_seconds=self.draft_seconds,
            verify_seconds=self.verify_seconds,
            other_seconds=self.other_seconds,
            prefill_seconds=self.prefill_seconds,
        )


class LiveRequest:
    """One request in flight.

    Args:
        state: the scheduler's side of it.
        tokenizer: for its text and its bad words.
        eos_token_ids: ids that end the output.
        vocab_size: ids the model knows.
        request_id: the user's, whose sample number `index` this is.
    """

    def __init__(
        self, state: RequestState, tokenizer: Tokenizer, eos_token_ids: Sequence[int], vocab_size: int,
        request_id: str, index: int = 0,
    ) -> None:  # fmt: skip
        params = state.params
        self.state = state
        self.request_id, self.index = request_id, index
        self.randomness = CounterRandomness(fresh_seed() if params.seed is None else params.seed)
        self.text = TextStream(tokenizer, params.stop)
        self._unread: list[str] = []  # text of tokens that a stop rule has read before they were committed
        self.provenance: list[TokenProvenance] = []
        self.counters = Counters()
        self.lossy = False  # a draft was asked for that a lossy rule judges
        self.end_token_ids = frozenset(() if params.ignore_eos else eos_token_ids).union(params.stop_token_ids)
        self.warper = Warper(
            params,
            bad_word_ids=[ids for word in params.bad_words for ids in spellings(tokenizer, word)],
            eos_token_ids=() if params.ignore_eos else eos_token_ids,
            token_ids=state.token_ids,
            num_prompt_tokens=state.num_prompt_tokens,
            vocab_size=vocab_size,
        )

    def target_law(self, logits: np.ndarray, tree: TokenTree, node: int) -> Law:
        """The law below `node` of `tree`, from logits [1 + nodes, vocab] whose row 0 is the root's."""
        return self.warper.law(logits[node + 1], tree.tokens_to(node))

    def reads_stop(self, token: int) -> bool:
        """Read one committed token, already the state's last; whether it completes a stop string that counts."""
        may_stop = self.state.num_output_tokens > self.state.params.min_tokens
        self._unread.append(self.text.push(token, may_stop))
        return self.text.stopped

    def commit(
        self, token_ids: Sequence[int], provenance: Sequence[TokenProvenance], finished: bool
    ) -> tuple[TokenOutput, ...]:
        """Committed tokens as they are streamed; the last one of a request carries whatever text was held back."""
        pieces, self._unread = self._unread, []
        pieces += [self.text.push(token) for token in token_ids[len(pieces) :]]
        if finished and pieces:
            pieces[-1] += self.text.finish()
        self.provenance += provenance
        return tuple(TokenOutput(*each) for each in zip(token_ids, pieces, provenance, strict=True))


def spellings(tokenizer: Tokenizer, word: str) -> list[list[int]]:
    """Token ids of `word` at the beginning of a text and behind a space, as vLLM forbids both."""
    bare = word.lstrip()
    options = [tokenizer.encode(text, add_special_tokens=False) for text in (bare, " " + bare)]
    return [ids for i, ids in enumerate(options) if ids and ids not in options[:i]]
