"""What became of an answer's drafts, as JSON. The answers around it are `answers.py`'s."""

from typing import Any

from paceline.serving.models.job import Step
from paceline.types import RequestStats


def told_step(step: Step) -> dict[str, Any]:
    """The draft of one pass as JSON: its nodes, which were accepted, and the rows of the pass."""
    nodes = [{"id": token_id, "text": text, "parent": parent}
             for (token_id, text), parent in zip(step.tokens, step.parents, strict=True)]  # fmt: skip
    return {"nodes": nodes, "path": list(step.path), "own": step.is_own, "rows": dict(step.rows)}


def vllm_statistics(stats: RequestStats) -> dict[str, Any]:
    """Acceptance statistics of one answer under vLLM's names."""
    histogram = list(stats.accepted_per_pass)
    return {
        "mean_acceptance_length": stats.acceptance_length,
        "draft_acceptance_rate": stats.num_accepted_tokens / stats.num_draft_tokens if stats.num_draft_tokens else None,
        "acceptance_histogram": histogram,
        "num_spec_steps": stats.num_drafts,
        "num_accepted_draft_tokens": stats.num_accepted_tokens,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_spec_tokens": len(stats.drafted_per_level),
    }


def draft_statistics(stats: RequestStats, lossy: bool) -> dict[str, Any]:
    """Draft statistics with fields that vLLM lacks: passes, times, levels of the drafts, whether a rule was lossy."""
    return {
        "lossy": lossy,
        "num_target_passes": stats.num_target_passes,
        "acceptance_rate": stats.acceptance_rate,
        "acceptance_length": stats.acceptance_length,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "tokens_per_pass": list(stats.accepted_per_pass),
        "drafted_per_level": list(stats.drafted_per_level),
        "tested_per_level": list(stats.tested_per_level),
        "accepted_per_level": list(stats.accepted_per_level),
        "draft_seconds": stats.draft_seconds,
        "verify_seconds": stats.verify_seconds,
        "other_seconds": stats.other_seconds,
        "prefill_seconds": stats.prefill_seconds,
    }
