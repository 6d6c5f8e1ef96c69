"""What a drafter is told of one request in one step: a grant and a live request as a `DraftContext`."""

from paceline.drafters.base import DraftContext
from paceline.engine.live import LiveRequest
from paceline.engine.speculation import Speculation
from paceline.sampling import may_change
from paceline.scheduling.batch import Grant
from paceline.scheduling.stats import BatchStats, PrefixStats


def draft_context(grant: Grant, batch: BatchStats, live: LiveRequest, speculation: Speculation) -> DraftContext:
    """The context of a grant with a draft budget; its policy sees laws and the prefix, never a drawn token."""
    state = grant.request
    policy = speculation.length_for(state.params)
    live.lossy = live.lossy or may_change(speculation.verifier, state.params.is_greedy)
    prefix = PrefixStats(state.draft_stats, batch, grant.draft_budget)

    return DraftContext(
        request_id=state.request_id,
        token_ids=state.token_ids,
        num_prompt_tokens=state.num_prompt_tokens,
        budget=grant.draft_budget,
        params=state.params,
        warp=live.warper.law,
        randomness=live.randomness,
        coupled=speculation.coupled,
        keep_drafting=lambda laws: policy.keep_drafting(prefix, laws),
        asks_beliefs=getattr(policy, "asks_beliefs", False),
        rank=live.warper.confidence_law,
        page_table=state.page_table,
        end_token_ids=live.end_token_ids,
    )
