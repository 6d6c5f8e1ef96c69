"""Translate a scheduler's grant into rows of the pass and into a drafter's context.

Also the cache moves that a step needs. Not for deciding anything.
"""

from collections.abc import Iterable

from paceline.drafters.base import DraftContext
from paceline.engine.loop.live import LiveSample
from paceline.engine.loop.speculation import Speculation
from paceline.models.base import PAGE_SIZE, KVCache
from paceline.models.rows import Part, compaction
from paceline.sampling import TokenTree, Verdict
from paceline.scheduling.batch import Grant
from paceline.scheduling.request import RequestState
from paceline.speculation import BatchStats, PrefixStats


def part_of(grant: Grant, tree: TokenTree) -> Part:
    """The rows of a grant: a prefill chunk, or the last committed token (the root) followed by the tree's nodes."""
    state = grant.request
    if not grant.is_decode:
        end = grant.start + grant.num_prefill_tokens
        logits = "all" if _scores_prompt(state) else "last" if grant.needs_logits else "none"
        return Part(state.page_table, grant.start, state.token_ids[grant.start : end], logits=logits)
    tokens = [state.token_ids[grant.start], *tree.tokens]
    parents = None if tree.is_chain else [-1, *(parent + 1 for parent in tree.parents)]
    return Part(state.page_table, grant.start, tokens, parents)


def _scores_prompt(state: RequestState) -> bool:
    """Whether all prompt rows need logits (`prompt_logprobs`); only the first sample of a request computes them."""
    return state.params.prompt_logprobs is not None and state.leader is None and not state.num_output_tokens


def draft_context(live: LiveSample, grant: Grant, batch: BatchStats, speculation: Speculation) -> DraftContext:
    """The context that a drafter gets for one request in one step. Its policy sees laws and the prefix, never a drawn
    token."""
    state, policy = live.state, speculation.policy
    prefix = PrefixStats(state.draft_stats, batch, grant.draft_budget)
    return DraftContext(
        request_id=state.request_id,
        token_ids=state.token_ids,
        num_prompt_tokens=state.num_prompt_tokens,
        budget=grant.draft_budget,
        params=state.params,
        warp=live.warper.law,
        randomness=live.judge.randomness,
        coupled=live.judge.coupled,
        keep_drafting=lambda laws: policy.keep_drafting(prefix, laws),
        never_edits=live.warper.never_edits,
        target_key=live.judge.target_key,
        asks_beliefs=policy.asks_beliefs,
        asks_laws=policy.asks_laws,
        rank=live.warper.confidence_law,
        page_table=state.page_table,
        end_token_ids=live.end_token_ids,
        max_depth=grant.draft_depth,
        batch=batch,
        salt=state.salt,
    )


def settle(cache: KVCache, grant: Grant, verdict: Verdict) -> None:
    """Move the keys and values of an accepted path to the slots of its positions; those of a chain are there."""
    if verdict.path[-1] == len(verdict.path) - 1:
        return
    rows = [0, *(node + 1 for node in verdict.path)]
    sources, destinations = compaction(grant.request.page_table, grant.start, rows)
    if sources:
        cache.move(sources, destinations)


def copy_pages(cache: KVCache, copies: Iterable[tuple[int, int]]) -> None:
    """Copy whole pages of keys and values, in order: a destination may be the source of a later copy."""
    for source, destination in copies:
        first, to = source * PAGE_SIZE, destination * PAGE_SIZE
        cache.move(range(first, first + PAGE_SIZE), range(to, to + PAGE_SIZE))
