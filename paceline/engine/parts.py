"""Between the scheduler's words and the model's: a grant and its tree as rows, an accepted path as cache moves."""

from collections.abc import Iterable

from paceline.models.base import PAGE_SIZE, KVCache
from paceline.models.rows import Part, compaction
from paceline.sampling import TokenTree, Verdict
from paceline.scheduling.batch import Grant


def part_of(grant: Grant, tree: TokenTree) -> Part:
    """The rows of a grant: a prefill chunk, or the last committed token as root with the tree below it."""
    state = grant.request
    if not grant.is_decode:
        end = grant.start + grant.num_prefill_tokens
        logits = "last" if grant.needs_logits else "none"
        return Part(state.page_table, grant.start, state.token_ids[grant.start : end], logits=logits)
    tokens = [state.token_ids[grant.start], *tree.tokens]
    parents = None if tree.is_chain else [-1, *(parent + 1 for parent in tree.parents)]
    return Part(state.page_table, grant.start, tokens, parents)


def settle(cache: KVCache, grant: Grant, verdict: Verdict) -> None:
    """Move the keys and values of an accepted path to the slots of its positions."""
    rows = [0, *(node + 1 for node in verdict.path)]
    sources, destinations = compaction(grant.request.page_table, grant.start, rows)
    if sources:
        cache.move(sources, destinations)


def copy_pages(cache: KVCache, copies: Iterable[tuple[int, int]]) -> None:
    """Copy whole pages of keys and values, one after the other: a page may be a source and a destination."""
    for source, destination in copies:
        first, to = source * PAGE_SIZE, destination * PAGE_SIZE
        cache.move(range(first, first + PAGE_SIZE), range(to, to + PAGE_SIZE))
